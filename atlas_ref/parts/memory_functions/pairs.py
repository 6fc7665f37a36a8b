"""Products of two entries of a vector, each pair once, and the maps of its derivatives.

    pairs(z)  = z_i z_j                 for i = 0..d-1, j = i..d-1, row by row
    gather(H) = H_ij + H_ji             in the same order
    spread(g) = U + U^T                 U upper triangular with the entries of g
    polar(u, z) = u_i z_j + u_j z_i

spread is the transpose of gather, and pairs(z) = gather(z z^T) / 2. No pullback scatters.

Specified in specs/memory_functions.md (MEMFUN-4).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from atlas_ref.types import Array
from tape.constants import beside
from tape.core import defvjp, primitive
from tape.shapes import fitted

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


@primitive
def polar(u: Array, z: Array) -> Array:
    """u_i z_j + u_j z_i for i <= j: twice the pairs of z where u is z (MEMFUN-6)."""
    i, j, _ = (beside(each, z) for each in _places(z.shape[-1]))
    return u[..., i] * z[..., j] + u[..., j] * z[..., i]


@primitive
def pairs_back(z: Array, g: Array) -> Array:
    """The cotangent of z for a cotangent g of pairs(z): (U + U^T) z (MEMFUN-4)."""
    if type(z) is np.ndarray and type(g) is np.ndarray and z.shape[:-1] == g.shape[:-1]:
        return _by_rows(z, g)
    U = spread.function(g, d=z.shape[-1])
    return np.matmul(U, z[..., None])[..., 0]


def _by_rows(z: Array, g: Array) -> Array:
    """The same with tokens last, a row of U for all of them at once."""
    d = z.shape[-1]
    columns = np.ascontiguousarray(z.reshape(-1, d).T)  # (d, tokens)
    parts = np.ascontiguousarray(g.reshape(-1, g.shape[-1]).T)
    total = np.zeros(columns.shape, np.result_type(z, g))
    room, first = np.empty_like(total), 0
    for i in range(d):
        row = parts[first : first + d - i]  # pairs of i and i, i + 1, ..., d - 1
        first += d - i
        product = np.multiply(row, columns[i:], out=room[: d - i])
        total[i] += product.sum(axis=0)
        total[i:] += np.multiply(row, columns[i], out=product)
    return np.ascontiguousarray(total.T).reshape(z.shape)


defvjp(pairs, lambda y, z: lambda g: pairs_back(z, g))
defvjp(gather, lambda y, H: lambda g: spread(g, d=H.shape[-1]))
defvjp(spread, lambda y, g, d: gather)
defvjp(
    polar,
    lambda y, u, z: fitted(u, lambda g: pairs_back(z, g)),
    lambda y, u, z: fitted(z, lambda g: pairs_back(u, g)),
)
defvjp(
    pairs_back,
    lambda y, z, g: fitted(z, lambda bar: pairs_back(bar, g)),
    lambda y, z, g: fitted(g, lambda bar: polar(bar, z)),
)
