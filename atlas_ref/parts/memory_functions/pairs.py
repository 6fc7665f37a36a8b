"""Products of two entries of a vector, each pair once, and the two linear maps of its derivatives.

    pairs(z)  = z_i z_j                 for i = 0..d-1, j = i..d-1, row by row
    gather(H) = H_ij + H_ji             in the same order
    spread(g) = U + U^T                 U upper triangular with the entries of g

spread is the transpose of gather, and pairs(z) = gather(z z^T) / 2. No pullback scatters.

Specified in specs/memory_functions.md (MEMFUN-4).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from atlas_ref.types import Array
from tape import ops
from tape.constants import beside
from tape.core import defvjp, primitive

Index = np.ndarray[Any, Any]


@functools.lru_cache(maxsize=64)
def _places(d: int) -> tuple[Index, Index, Index]:
    """Rows and columns of the pairs, and for each entry of a matrix the number of its pair."""
    i, j = np.triu_indices(d)
    number = np.empty((d, d), i.dtype)
    number[i, j] = number[j, i] = np.arange(len(i))
    return i, j, number


@primitive
def pairs(z: Array) -> Array:
    """z_i z_j for i <= j, row by row: (..., d) -> (..., d (d + 1) / 2) (MEMFUN-4)."""
    i, j, _ = (beside(each, z) for each in _places(z.shape[-1]))
    return z[..., i] * z[..., j]


@primitive
def gather(H: Array) -> Array:
    """H_ij + H_ji for i <= j: (..., d, d) -> (..., d (d + 1) / 2)."""
    i, j, _ = (beside(each, H) for each in _places(H.shape[-1]))
    return H[..., i, j] + H[..., j, i]


@primitive
def spread(g: Array, d: int) -> Array:
    """U + U^T of the upper triangle with the entries of g: (..., d (d + 1) / 2) -> (..., d, d)."""
    number = beside(_places(d)[2], g)
    return g[..., number] * beside(1.0 + np.eye(d, dtype=g.dtype), g)


def pairs_back(z: Array, g: Array) -> Array:
    """The cotangent of z for a cotangent g of pairs(z): (U + U^T) z (MEMFUN-4)."""
    U = spread(g, d=z.shape[-1])
    return ops.squeeze(U @ ops.expand_dims(z, -1), -1)


defvjp(pairs, lambda y, z: lambda g: pairs_back(z, g))
defvjp(gather, lambda y, H: lambda g: spread(g, d=H.shape[-1]))
defvjp(spread, lambda y, g, d: gather)
