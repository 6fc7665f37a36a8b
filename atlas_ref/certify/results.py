"""Types of the results of `certify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Unresolved:
    """An entry whose ball has several nearest float64: those of its ends.

    Attributes:
        index: place in the tensor.
        low, high: neighbours in float64 unless the ball is still wide; infinities for a ball
            without bounds.
    """

    index: tuple[int, ...]
    low: float
    high: float


class Certified(NamedTuple):
    """Certified results of a case.

    Attributes:
        values: name -> float64: every result, and gradients under `grad`; an unresolved entry holds
            `low`, nan where unknown.
        bits: name -> precision at which every entry of the tensor that is resolved had one nearest
            float64.
        unresolved: name -> entries that the last precision did not resolve; tensors without any are
            not there. Those of directions are here and in `bits` under directions/grad/NAME.
        directions: grad/NAME -> DIRECTIONS derivatives along `direction(shape, i)`, for cases with
            more than 8 tokens or 4 dimensions.
    """

    values: dict[str, Array]
    bits: dict[str, int]
    unresolved: dict[str, list[Unresolved]]
    directions: dict[str, Array]
