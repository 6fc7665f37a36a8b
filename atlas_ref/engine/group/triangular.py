"""Inverse of unit lower triangular matrices by recursive halves, batched; plain twin:
`tape.ops.solve_triangular`.

    [A 0; N D]^{-1} = [A^{-1} 0; -D^{-1} N A^{-1}  D^{-1}]

Two halves of a matrix, all quarters, all eighths: every level is one batched product. Sums of
powers of the strict triangle give the same matrix on paper and lose all digits where keys repeat
(EXACT-4).
"""

from __future__ import annotations

import math

import numpy as np

from atlas_ref.backend import as_strided, negated
from atlas_ref.engine.cuda import triangular as kernels
from atlas_ref.engine.cuda.hook import kernel
from atlas_ref.types import Array

SMALL = 8  # rows of the blocks that are inverted by substitution


@kernel(kernels.inverse_unit_lower)
def inverse_unit_lower(strict: Array) -> Array:
    """(I + N)^{-1} for the strictly lower triangular part N of a matrix (EXACT-4).

    Args:
        strict (..., n, n): N; entries on and above the diagonal are not read.

    Returns:
        (..., n, n), unit lower triangular, exact zeros above the diagonal.
    """
    inverse: Array = np.empty_like(strict, order="C")
    invert_unit_lower(strict, inverse)
    return inverse


def invert_unit_lower(strict: Array, out: Array) -> None:
    """Write `inverse_unit_lower` into an array that may be a view of another one (EXACT-4)."""
    n = strict.shape[-1]
    size = 1 << (n - 1).bit_length()
    if size != n:
        padded = np.zeros_like(strict, shape=(*strict.shape[:-2], size, size))
        padded[..., :n, :n] = strict
        out[...] = inverse_unit_lower(padded)[..., :n, :n]
        return
    out[...] = 0.0
    half = min(SMALL, n)
    _diagonal_blocks(out, half)[...] = _substituted(_diagonal_blocks(strict, half))
    while half < n:
        below, found = (
            _diagonal_blocks(strict, 2 * half)[..., half:, :half],
            _diagonal_blocks(out, 2 * half),
        )
        first, second = found[..., :half, :half], found[..., half:, half:]
        negated(np.matmul(second, np.matmul(below, first)), out=found[..., half:, :half])
        half *= 2


def _substituted(strict: Array) -> Array:
    """Inverses of small blocks by substitution, all blocks of an entry contiguous."""
    lead, n = strict.shape[:-2], strict.shape[-1]
    count = math.prod(lead)
    blocks = np.moveaxis(strict, (-2, -1), (0, 1)).reshape(n, n, count)
    inverse = np.zeros_like(blocks)
    for j in range(n):
        inverse[j, j] = 1.0
        inverse[j + 1 :, : j + 1] -= blocks[j + 1 :, j, None] * inverse[j, : j + 1]
    return np.moveaxis(inverse.reshape(n, n, *lead), (0, 1), (-2, -1))


def _diagonal_blocks(x: Array, size: int) -> Array:
    """A view (..., n / size, size, size) of the blocks on the diagonal."""
    down, right = x.strides[-2:]
    shape = (*x.shape[:-2], x.shape[-1] // size, size, size)
    return as_strided(x, shape, (*x.strides[:-2], size * (down + right), down, right))
