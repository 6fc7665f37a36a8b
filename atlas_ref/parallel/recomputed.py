"""A block that keeps its arguments alone and is recorded again in the backward sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atlas_ref.types import Array
from tape import opaque, vjp


def recomputed(plain: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """The same function of arrays (or None) and tuple of arrays, as one opaque entry without residuals (CHUNK-15)."""

    def forward(*arrays: Array) -> tuple[Any, Any]:
        return plain(*arrays), arrays

    def backward(arrays: tuple[Array, ...], bars: tuple[Array, ...]) -> Sequence[Array | None]:
        present = [i for i, x in enumerate(arrays) if x is not None]

        def some(*chosen: Array) -> Any:
            full: list[Array] = [None] * len(arrays)
            for i, x in zip(present, chosen, strict=True):
                full[i] = x
            return plain(*full)

        values, pulled = vjp(some, *[arrays[i] for i in present])
        seeds = tuple(np.zeros_like(value) if bar is None else bar for bar, value in zip(bars, values, strict=True))
        found: list[Array | None] = [None] * len(arrays)
        for i, cotangent in zip(present, pulled(seeds), strict=True):
            found[i] = cotangent
        return found

    return opaque(plain, forward, backward)
