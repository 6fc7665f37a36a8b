"""RMSNorm and LayerNorm of rows as one opaque block; plain twin: `layers.norm.plain_norm`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`). With the plain twin alone it takes 1.18 times as long. Specified in
specs/norm.md (NORM-4 to NORM-7).

With r = 1 / sqrt(mean x^2 + eps), n = r x, y = n w:  dx = r (w dy - n mean(n w dy))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.engine.layers.support import (
    MODULE,
    block_or_plain,
    column_sums,
    flat,
    line,
    loop,
    row_sums,
)
from atlas_ref.types import Array


def block(
    plainly: Callable[..., Any], kind: str, eps: float, guard: str, heads_first: bool
) -> Callable[..., Any]:
    """The norm of rows, with its weight and where there is one its bias.

    Args:
        plainly: the same in tape ops.
        kind: rms, layer or l2.
        guard: add or clamp.
        heads_first: whether x (B, T, H, d) becomes y (B, H, T, d).

    Returns:
        a function of x (..., d), weight and perhaps bias, both (d,) or (H, d).
    """

    def forward(x: Array, weight: Array, *bias: Array) -> tuple[Array, Any]:
        fast = None if kind == "layer" else loop("norm", x, x.shape[-1])
        if fast is not None:
            return _compiled(fast, (kind, eps, guard, heads_first), x, weight)
        return _forward((kind, eps, guard, heads_first), x, weight, *bias)

    def backward(residuals: Any, g: Array) -> tuple[Array, ...]:
        back, kept = residuals
        cotangents: tuple[Array, ...] = back((kind, eps, guard, heads_first), kept, g)
        return cotangents

    return block_or_plain(plainly, forward, backward)


def _forward(how: Any, x: Array, weight: Array, *bias: Array) -> tuple[Array, Any]:
    kind, eps, guard, heads_first = how
    d = x.shape[-1]
    if kind == "layer":
        x = x - row_sums(x) * (1.0 / d)
    rows = flat(x)
    squares = np.einsum("ni,ni->n", rows, rows).reshape(*x.shape[:-1], 1)
    if kind != "l2":
        squares *= 1.0 / d
    clamped = squares < eps * eps if guard == "clamp" else None
    squares = squares + eps if clamped is None else np.where(clamped, eps * eps, squares)
    r = (1.0 / np.sqrt(squares)).astype(x.dtype, copy=False)
    n = x * r
    y = np.empty(_shape(x, heads_first), x.dtype)
    to = y.swapaxes(1, 2) if heads_first else y
    np.multiply(n, weight, out=to)
    if bias:
        to += bias[0]
    return y, (_backward, (n, r, clamped, weight, bool(bias)))


def _backward(how: Any, residuals: Any, g: Array) -> tuple[Array, ...]:
    kind, _, _, heads_first = how
    n, r, clamped, weight, has_bias = residuals
    g = g.swapaxes(1, 2) if heads_first else g
    d, together = n.shape[-1], weight.size
    products = np.multiply(g, n, out=np.empty_like(n))
    d_weight = column_sums(products.reshape(-1, together)).reshape(weight.shape)
    products *= weight
    along = row_sums(products)
    if kind != "l2":
        along *= 1.0 / d
    if clamped is not None:
        along[clamped] = 0.0
    np.multiply(n, along, out=products)
    dx = np.multiply(g, weight, out=np.empty_like(n))
    dx -= products
    dx *= r
    if kind == "layer":
        dx -= row_sums(dx) * (1.0 / d)
    of_bias = (column_sums(g.reshape(-1, together)).reshape(weight.shape),) if has_bias else ()
    return dx, d_weight, *of_bias


def _compiled(fast: Any, how: Any, x: Array, weight: Array) -> tuple[Array, Any]:
    heads_first = how[-1]
    y, r = np.empty(_shape(x, heads_first), x.dtype), np.empty(x.shape[:-1], x.dtype)
    fast(line(x), line(weight), *_settings(how, x), line(r), line(y))
    return y, (_compiled_back, (x, weight, r))


def _compiled_back(how: Any, residuals: Any, g: Array) -> tuple[Array, ...]:
    x, weight, r = residuals
    if g.dtype != x.dtype:
        g = g.astype(x.dtype)
    dx, d_weight = np.empty(x.shape, x.dtype), np.zeros(weight.shape, x.dtype)
    fast = compiled.loop(MODULE, x.dtype, "norm_back")
    assert fast is not None
    fast(*map(line, (x, weight, r, g)), *_settings(how, x), line(dx), line(d_weight))
    return dx, d_weight


def _settings(how: Any, x: Array) -> tuple[Any, ...]:
    kind, eps, guard, heads_first = how
    d, number = x.shape[-1], x.dtype.type
    sizes = x.shape[:3] if heads_first else (1, x.size // d, 1)
    return *sizes, d, number(1.0 if kind == "l2" else 1.0 / d), number(eps), guard == "clamp"


def _shape(x: Array, heads_first: bool) -> tuple[int, ...]:
    return (x.shape[0], x.shape[2], x.shape[1], x.shape[3]) if heads_first else x.shape
