"""The gated half of a feed-forward as one opaque block; plain twin:
`layers.feed_forward.plain_gated`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`). With the plain twin alone it takes 1.22 times as long. Specified in
specs/feed_forward.md (FEED-1 to FEED-3).

With s = sigmoid(b), y = a b s:  da = b s dy,  db = a s (1 + b (1 - s)) dy. The forward keeps a,
b s and s (1 + b (1 - s)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled.panels import PANEL_BYTES
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.layers.support import (
    MODULE,
    block_or_plain,
    column_sums,
    flat,
    line,
    loop,
    runs,
    sigmoids,
)
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
        bias = b[0] if b else np.zeros(2 * n, h.dtype)
        y, silu, slope = (np.empty((len(rows), n), h.dtype) for _ in range(3))
        fast = loop("gated", h) if n >= PANEL_BYTES // h.itemsize else None
        if fast is not None:
            fast(line(h), line(bias), len(h), n, not gate_second, *map(line, (silu, slope, y)))
        else:
            h += bias
            for part in runs(len(rows), n):
                value, gate = halves(h[part])
                _gated(value, gate, silu[part], slope[part], y[part])
        kept = (rows, W, h, bias, silu, slope, x.shape, bool(b), fast is not None)
        return y.reshape(*x.shape[:-1], n), kept

    def backward(residuals: Any, g: Array) -> tuple[Array, ...]:
        rows, W, h, bias, silu, slope, shape, has_bias, by_loop = residuals
        g, n = flat(g).astype(h.dtype, copy=False), silu.shape[-1]
        dh = np.empty_like(h)
        if by_loop:
            fast = compiled.loop(MODULE, h.dtype, "gated_back")
            assert fast is not None
            lines = map(line, (h, bias, silu, slope, g))
            fast(*lines, len(h), n, not gate_second, line(dh))
        else:
            for part in runs(len(rows), n):
                (value, _), (d_value, d_gate) = halves(h[part]), halves(dh[part])
                np.multiply(silu[part], g[part], out=d_value)
                np.multiply(slope[part], value, out=d_gate)
                d_gate *= g[part]
        of_bias = (column_sums(dh),) if has_bias else ()
        return (dh @ W).reshape(shape), dh.T @ rows, *of_bias

    return block_or_plain(plainly, forward, backward)


def _gated(value: Array, gate: Array, silu: Array, slope: Array, y: Array) -> None:
    with scratch.frame():
        s = scratch.empty(gate.shape, y)
        sigmoids(gate, s, slope)
        slope *= gate
        slope += 1.0
        slope *= s
        np.multiply(s, gate, out=silu)
        np.multiply(silu, value, out=y)
