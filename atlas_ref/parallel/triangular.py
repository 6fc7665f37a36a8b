"""Inverse of unit lower triangular matrices by recursive halves, batched.

    [A 0; N D]^{-1} = [A^{-1} 0; -D^{-1} N A^{-1}  D^{-1}]

Two halves of a matrix, all quarters, all eighths: every level is one batched product. Sums of powers of the strict
triangle give the same matrix on paper and lose all digits where keys repeat (EXACT-4).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.types import Array


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
    inverse[..., np.arange(n), np.arange(n)] = 1.0
    half = 1
    while half < n:
        below = _diagonal_blocks(strict, half, half, 0)
        if half == 1:
            _diagonal_blocks(inverse, 1, 1, 0)[...] = -below
        else:
            first, second = _diagonal_blocks(inverse, half, 0, 0), _diagonal_blocks(inverse, half, half, half)
            _diagonal_blocks(inverse, half, half, 0)[...] = -(second @ (below @ first))
        half *= 2
    return inverse


def _diagonal_blocks(x: Array, size: int, row: int, column: int) -> Array:
    """A view (..., n / 2 size, size, size) of the blocks at (row, column) of every diagonal block of twice the size."""
    down, right = x.strides[-2:]
    count = x.shape[-1] // (2 * size)
    return np.lib.stride_tricks.as_strided(
        x[..., row:, column:],
        shape=(*x.shape[:-2], count, size, size),
        strides=(*x.strides[:-2], 2 * size * (down + right), down, right),
    )
