"""The gated mix of two branches as one opaque block; plain twin: `blocks.mix.plain_gate_mix`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`), which the plain twin misses. Specified in specs/blocks.md (BLOCKS-3).

With g = sigmoid(W x + c), y = g a + (1 - g) m:  da = g dy,  dm = (1 - g) dy,
dz = g (1 - g) (a - m) dy,  dx = W^T dz
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.engine.layers.support import block_or_plain, column_sums, flat, sigmoids
from atlas_ref.types import Array


def block(plainly: Callable[..., Any]) -> Callable[..., Any]:
    """The mix by a gate.

    Returns:
        a function of x, a, m (..., d), W (d, d) and b (d,), to g a + (1 - g) m.
    """

    def forward(x: Array, a: Array, m: Array, W: Array, b: Array) -> tuple[Array, Any]:
        rows, a_rows, m_rows = flat(x), flat(a), flat(m)
        z = rows @ W.T
        z += b
        g, rest = np.empty_like(z), np.empty_like(z)
        sigmoids(z, g, rest)
        y = np.multiply(g, a_rows, out=z)
        y += rest * m_rows
        return y.reshape(x.shape), (rows, a_rows, m_rows, W, g, rest, x.shape)

    def backward(residuals: Any, dy: Array) -> tuple[Array, ...]:
        rows, a, m, W, g, rest, shape = residuals
        dy = flat(dy)
        da, dm = g * dy, rest * dy
        dz = a - m
        dz *= rest
        dz *= da
        return (
            (dz @ W).reshape(shape),
            da.reshape(shape),
            dm.reshape(shape),
            dz.T @ rows,
            column_sums(dz),
        )

    return block_or_plain(plainly, forward, backward)
