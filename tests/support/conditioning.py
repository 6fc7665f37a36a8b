"""How much a computation amplifies the rounding of its inputs, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.close import relative_error

NOISE = 1e-9
DRAWS = 5


def amplification(
    results: Callable[[dict[str, Any]], Sequence[Any]], inputs: Mapping[str, Any]
) -> float:
    """The largest relative change of a result, over that of floating inputs under noise.

    A bound for draws that are worse conditioned than a rule's own bound allows for: an error below
    it is one that rounding of the inputs would make.
    """
    random = np.random.default_rng(1)

    def near(value: Any) -> Any:
        value = np.asarray(value)
        if value.dtype.kind != "f":
            return value
        return value * (1.0 + NOISE * random.standard_normal(value.shape))

    at, worst = results(dict(inputs)), 0.0
    for _ in range(DRAWS):
        beside = results({name: near(value) for name, value in inputs.items()})
        worst = max(worst, *(relative_error(b, a) for a, b in zip(at, beside, strict=True)))
    return worst / NOISE


def together(arrays: Iterable[Any]) -> Any:
    """All entries in one row, so that they are measured against all of them."""
    return np.concatenate([np.ravel(each) for each in arrays])
