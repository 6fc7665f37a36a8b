"""The gated half of a feed-forward as one opaque block; plain twin: `layers.feed_forward.plain_gated`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`), which the plain twin misses. Specified in specs/feed_forward.md (FEED-1 to FEED-3).

With s = sigmoid(b), y = a b s:  da = b s dy,  db = a s (1 + b (1 - s)) dy. The forward keeps a,
b s and s (1 + b (1 - s)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.layers.support import block_or_plain, column_sums, flat, runs, sigmoids
from atlas_ref.types import Array


def block(plainly: Callable[..., Any], gate_second: bool) -> Callable[..., Any]:
    """A function of x (..., d), W (2n, d) and perhaps b (2n,), to a silu(b) of [a; b] = W x + b.

    Args:
        plainly: the same in tape ops.
        gate_second: whether the second half is the gate, else the first.
    """

    def halves(h: Array) -> tuple[Array, Array]:
        n = h.shape[-1] // 2
        return (h[..., :n], h[..., n:]) if gate_second else (h[..., n:], h[..., :n])

    def forward(x: Array, W: Array, *b: Array) -> tuple[Array, Any]:
        rows, n = flat(x), len(W) // 2
        h = rows @ W.T
        y, slope = (np.empty((len(rows), n), h.dtype) for _ in range(2))
        for part in runs(len(rows), n):
            if b:
                h[part] += b[0]
            value, gate = halves(h[part])
            with scratch.frame():
                s = scratch.empty(gate.shape, y)
                sigmoids(gate, s, slope[part])
                slope[part] *= gate
                slope[part] += 1.0
                slope[part] *= s
                gate *= s  # its silu from here on
                np.multiply(gate, value, out=y[part])
        return y.reshape(*x.shape[:-1], n), (rows, W, h, slope, x.shape, bool(b))

    def backward(residuals: Any, g: Array) -> tuple[Array, ...]:
        rows, W, h, slope, shape, has_bias = residuals
        g = flat(g)
        dh = np.empty_like(h)
        for part in runs(len(rows), slope.shape[-1]):
            (value, silu), (d_value, d_gate) = halves(h[part]), halves(dh[part])
            np.multiply(silu, g[part], out=d_value)
            np.multiply(slope[part], value, out=d_gate)
            d_gate *= g[part]
        of_bias = (column_sums(dh),) if has_bias else ()
        return (dh @ W).reshape(shape), dh.T @ rows, *of_bias

    return block_or_plain(plainly, forward, backward)
