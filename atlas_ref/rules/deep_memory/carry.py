"""factor X + Y of tensors of many memories as one entry of a tape: S and W after a write.

Specified in specs/deep_memory.md (DEEP-11, DEEP-13).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.types import Array
from tape.contractions import matmul
from tape.core import Pullback, defvjp, primitive
from tape.shapes import fitted, reshape, squeeze


def carry(factor: Any, X: Array, Y: Array, rank: int, *, minus: bool = False) -> Array:
    """factor X + Y, or factor X - Y: factor (...,), of tensors with `rank` axes of their own."""
    if factor is None:
        return X - Y if minus else X + Y
    return _carry(factor, X, Y, rank=rank, minus=minus)


@primitive
def _carry(factor: Array, X: Array, Y: Array, rank: int, minus: bool) -> Array:
    y = factor.reshape((*factor.shape, *(1,) * rank)) * X
    own = y.shape == Y.shape and y.dtype == Y.dtype and y.ndim > 0  # a number has no place
    if minus:
        return np.subtract(y, Y, out=y) if own else y - Y
    return np.add(y, Y, out=y) if own else y + Y


def _of_factor(y: Array, factor: Array, X: Array, Y: Array, rank: int, minus: bool) -> Pullback:
    def back(g: Array) -> Array:
        flat = [reshape(each, (*each.shape[: each.ndim - rank], 1, -1)) for each in (g, X)]
        return squeeze(matmul(flat[0], flat[1].swapaxes(-1, -2)), (-2, -1))

    return fitted(factor, back)


def _of_tensor(y: Array, factor: Array, X: Array, Y: Array, rank: int, minus: bool) -> Pullback:
    spread = (*factor.shape, *(1,) * rank)
    return fitted(X, lambda g: reshape(factor, spread) * g)


def _of_step(y: Array, factor: Array, X: Array, Y: Array, rank: int, minus: bool) -> Pullback:
    return fitted(Y, lambda g: -g) if minus else fitted(Y, lambda g: g)


defvjp(_carry, _of_factor, _of_tensor, _of_step)
