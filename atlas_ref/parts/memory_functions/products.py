"""Products and norms of rows with parameters that may be one per row of the batch.

A parameter has its own shape, or leading axes in front of it that broadcast against those of the
rows (MEMFUN-3).
"""

from __future__ import annotations

from atlas_ref.types import Array
from tape import ops


def rows(W: Array, x: Array) -> Array:
    """W x of each token: W (..., m, k), x (..., n, k) -> (..., n, m)."""
    return x @ ops.transpose(W)


def outer_sum(g: Array, x: Array) -> Array:
    """Sum of g x^T over the tokens: g (..., n, m), x (..., n, k) -> (..., m, k)."""
    return ops.transpose(g) @ x


def vector(p: Array) -> Array:
    """A vector (..., m) beside rows (..., n, m)."""
    return ops.expand_dims(p, -2)


def scalar(p: Array) -> Array:
    """A number (...) beside rows (..., n, m)."""
    return ops.expand_dims(p, (-2, -1))


def over_tokens(g: Array) -> Array:
    """Sum over the tokens: (..., n, m) -> (..., m)."""
    return ops.sum(g, axis=-2)


def standardised(x: Array, eps: float) -> tuple[Array, Array]:
    """(x - mean x) r and r = 1 / sqrt(mean (x - mean x)^2 + eps), (..., 1) (MEMFUN-4)."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    r = 1.0 / ops.sqrt(ops.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return centred * r, r


def standardised_back(n: Array, r: Array, g: Array) -> Array:
    """The cotangent of x for a cotangent g of n: r (g - mean g - n mean(g n)) (MEMFUN-6)."""
    along = ops.mean(g * n, axis=-1, keepdims=True)
    return r * (g - ops.mean(g, axis=-1, keepdims=True) - n * along)
