"""Products of rows with parameters that may be one per row of the batch.

A parameter has its own shape, or leading axes in front of it that broadcast against those of the
rows (MEMFUN-3).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.types import Array
from tape import ops
from tape.core import defvjp, primitive
from tape.shapes import fitted
from tape.variable import plain


def rows(W: Array, x: Array) -> Array:
    """W x of each token: W (..., m, k), x (..., n, k) -> (..., n, m)."""
    return x @ ops.transpose(W)


def outer_sum(g: Array, x: Array) -> Array:
    """Sum of g x^T over the tokens: g (..., n, m), x (..., n, k) -> (..., m, k)."""
    return _outer(g, x) if plain(g).shape[-2] == 1 else ops.transpose(g) @ x


@primitive
def _outer(g: Array, x: Array) -> Array:
    """The same for one token, of which a product of matrices takes several times as long."""
    if type(g) is np.ndarray and type(x) is np.ndarray:
        return np.einsum("...m,...k->...mk", g[..., 0, :], x[..., 0, :])
    return g.swapaxes(-1, -2) * x


defvjp(
    _outer,
    lambda y, g, x: fitted(g, lambda bar: x @ ops.transpose(bar)),
    lambda y, g, x: fitted(x, lambda bar: g @ bar),
)


def vector(p: Array) -> Array:
    """A vector (..., m) beside rows (..., n, m)."""
    return ops.reshape(p, (*p.shape[:-1], 1, p.shape[-1]))


def scalar(p: Array) -> Array:
    """A number (...) beside rows (..., n, m)."""
    return ops.reshape(p, (*p.shape, 1, 1))


def over_tokens(g: Array) -> Array:
    """Sum over the tokens: (..., n, m) -> (..., m)."""
    return ops.sum(g, axis=-2)
