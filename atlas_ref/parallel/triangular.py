"""Inverse of unit lower triangular matrices by recursive halves, batched.

    [A 0; N D]^{-1} = [A^{-1} 0; -D^{-1} N A^{-1}  D^{-1}]

Two halves of a matrix, all quarters, all eighths: every level is one batched product. Sums of powers of the strict
triangle give the same matrix on paper and lose all digits where keys repeat (EXACT-4).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import as_strided, negated
from atlas_ref.cuda import triangular as kernels
from atlas_ref.cuda.hook import kernel
from atlas_ref.types import Array

SMALL = 4  # rows of the blocks that are inverted by substitution


@kernel(kernels.inverse_unit_lower)
def inverse_unit_lower(strict: Array) -> Array:
    """(I + N)^{-1} for the strictly lower triangular part N of a matrix (EXACT-4).

    Args:
        strict (..., n, n): N; entries on and above the diagonal are not read.

    Returns:
        (..., n, n), unit lower triangular, exact zeros above the diagonal.
    """
    n = strict.shape[-1]
    size = 1 << (n - 1).bit_length()
    if size != n:
        padded = np.zeros_like(strict, shape=(*strict.shape[:-2], size, size))
        padded[..., :n, :n] = strict
        return inverse_unit_lower(padded)[..., :n, :n]
    inverse = np.zeros_like(strict, order="C")
    _diagonal_blocks(inverse, 1, 1)[...] = 1.0
    half = min(SMALL, n)
    _substitute(_diagonal_blocks(strict, half, half), _diagonal_blocks(inverse, half, half))
    while half < n:
        below = _diagonal_blocks(strict, half, 2 * half, half, 0)
        first, second = _diagonal_blocks(inverse, half, 2 * half), _diagonal_blocks(inverse, half, 2 * half, half, half)
        corner = _diagonal_blocks(inverse, half, 2 * half, half, 0)
        negated(np.matmul(second, np.matmul(below, first)), out=corner)
        half *= 2
    return inverse


def _substitute(strict: Array, inverse: Array) -> None:
    """Blocks too small for products: row after row, from ones on the diagonal."""
    for i in range(1, strict.shape[-1]):
        for j in range(i):
            inverse[..., i, : j + 1] -= strict[..., i, j, None] * inverse[..., j, : j + 1]


def _diagonal_blocks(x: Array, size: int, every: int, row: int = 0, column: int = 0) -> Array:
    """A view (..., n / every, size, size) of the blocks at (row, column) of the diagonal blocks of size `every`."""
    down, right = x.strides[-2:]
    shape = (*x.shape[:-2], x.shape[-1] // every, size, size)
    return as_strided(x[..., row:, column:], shape, (*x.strides[:-2], every * (down + right), down, right))
