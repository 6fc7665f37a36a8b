"""Projections of tokens as one opaque block; plain twin: `layers.projection.plain_linear`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`). With the plain twin alone, which multiplies a batch at a time and keeps the
product apart from its sum with a bias, it takes 1.05 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.engine.layers.support import block_or_plain, column_sums, flat
from atlas_ref.types import Array


def block(plainly: Callable[..., Any]) -> Callable[..., Any]:
    """A function of x (..., d), W (n, d) and perhaps b (n,), to x W^T + b."""

    def forward(x: Array, W: Array, *b: Array) -> tuple[Array, Any]:
        rows = flat(x)
        y = rows @ W.T
        if b:
            y += b[0]
        return y.reshape(*x.shape[:-1], len(W)), (rows, W, x.shape, bool(b))

    def backward(residuals: Any, g: Array) -> tuple[Array, ...]:
        rows, W, shape, has_bias = residuals
        g = flat(g)
        of_bias = (column_sums(g),) if has_bias else ()
        return (g @ W).reshape(shape), g.T @ rows, *of_bias

    return block_or_plain(plainly, forward, backward)
