"""The layer norm of rows without gain and bias, and its pullback, each one entry of a tape.

    n = (x - mean x) r,  r = 1 / sqrt(mean (x - mean x)^2 + eps)
    y = r (g - mean g - n mean(g n))

With u = r y_bar and z = y / r:  x_bar = r (n_bar - mean n_bar - n mean(n_bar n) - n r r_bar / d),
g_bar = u - mean u - n mean(u n),  n_bar = -mean(g n) u - mean(u n) g,  r_bar = sum y_bar z. Specified
in specs/memory_functions.md (MEMFUN-4, MEMFUN-6).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.types import Array
from tape import opaque, ops


def standardised(x: Array, eps: float) -> tuple[Array, Array]:
    """n (..., d) and r (..., 1) of rows x (..., d) (MEMFUN-4)."""
    n, r = _standardised(eps)(x)
    return n, r


def standardised_back(n: Array, r: Array, g: Array) -> Array:
    """The cotangent of x for a cotangent g of n alone (MEMFUN-6)."""
    y: Array = _pulled(n, r, g)
    return y


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) / x.shape[-1]


@functools.lru_cache(maxsize=64)
def _standardised(eps: float) -> Callable[[Array], Any]:
    def plainly(x: Array) -> tuple[Array, Array]:
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        r = 1.0 / ops.sqrt(ops.mean(centred * centred, axis=-1, keepdims=True) + eps)
        return centred * r, r

    def forward(x: Array) -> tuple[Any, Any]:
        centred = x - _mean(x)
        r = 1.0 / np.sqrt(_mean(centred * centred) + eps)
        n = centred * r
        return (n, r), (n, r)

    def backward(kept: Any, cotangents: Any) -> tuple[Array]:
        (n, r), (of_n, of_r) = kept, cotangents
        along = 0.0 if of_r is None else of_r * r / n.shape[-1]
        if of_n is None:
            return (-(r * n * along),)
        return (r * (of_n - _mean(of_n) - n * (_mean(of_n * n) + along)),)

    return opaque(plainly, forward, backward)


def _plain_pulled(n: Array, r: Array, g: Array) -> Array:
    along = ops.mean(g * n, axis=-1, keepdims=True)
    return r * (g - ops.mean(g, axis=-1, keepdims=True) - n * along)


def _pulled_forward(n: Array, r: Array, g: Array) -> tuple[Array, Any]:
    along = _mean(g * n)
    z = g - _mean(g) - n * along
    return r * z, (n, r, g, z, along)


def _pulled_backward(kept: Any, bar: Array) -> tuple[Array, ...]:
    n, r, g, z, along = kept
    u = r * bar
    across = _mean(u * n)
    return (
        _like(-(along * u) - across * g, n),
        _like((bar * z).sum(axis=-1, keepdims=True), r),
        _like(u - _mean(u) - n * across, g),
    )


def _like(x: Array, argument: Array) -> Array:
    """A cotangent summed over the axes along which its argument was broadcast."""
    lost = x.ndim - argument.ndim
    x = x.sum(axis=tuple(range(lost))) if lost else x
    short = [i for i, size in enumerate(argument.shape) if size == 1 and x.shape[i] != 1]
    return x.sum(axis=tuple(short), keepdims=True) if short else x


_pulled = opaque(_plain_pulled, _pulled_forward, _pulled_backward)
