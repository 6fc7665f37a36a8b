"""RMSNorm and LayerNorm of rows as one opaque block; plain twin: `layers.norm.plain_norm`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`), which the plain twin misses. Specified in specs/norm.md (NORM-4 to NORM-7).

With r = 1 / sqrt(mean x^2 + eps), n = r x, y = n w:  dx = r (w dy - n mean(n w dy))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.engine.layers.support import block_or_plain, column_sums, flat, row_sums
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
        d = x.shape[-1]
        if kind == "layer":
            x = x - row_sums(x) * (1.0 / d)
        rows = flat(x)
        squares = np.einsum("ni,ni->n", rows, rows).reshape(*x.shape[:-1], 1)
        if kind != "l2":
            squares *= 1.0 / d
        if guard == "clamp":
            clamped = squares < eps * eps
            r = 1.0 / np.sqrt(np.where(clamped, eps * eps, squares))
        else:
            clamped = None
            r = 1.0 / np.sqrt(squares + eps)
        r = r.astype(x.dtype, copy=False)
        n = x * r
        shape = (x.shape[0], x.shape[2], x.shape[1], d) if heads_first else x.shape
        y = np.empty(shape, x.dtype)
        to = y.swapaxes(1, 2) if heads_first else y
        np.multiply(n, weight, out=to)
        if bias:
            to += bias[0]
        return y, (n, r, clamped, weight, bool(bias))

    def backward(residuals: Any, g: Array) -> tuple[Array, ...]:
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

    return block_or_plain(plainly, forward, backward)
