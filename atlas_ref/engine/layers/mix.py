"""The gated mix of two branches as one opaque block; plain twin: `blocks.mix.plain_gate_mix`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`). With the plain twin alone it takes 1.05 times as long. Specified in
specs/blocks.md (BLOCKS-3).

With g = sigmoid(W x + c), y = g a + (1 - g) m:  da = g dy,  dm = (1 - g) dy,
dz = g (1 - g) (a - m) dy,  dx = W^T dz
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
    sigmoids,
)
from atlas_ref.types import Array


def block(plainly: Callable[..., Any]) -> Callable[..., Any]:
    """The mix by a gate.

    Returns:
        a function of x, a, m (..., d), W (d, d) and b (d,), to g a + (1 - g) m.
    """

    def forward(x: Array, a: Array, m: Array, W: Array, b: Array) -> tuple[Array, Any]:
        rows, a_rows, m_rows = (np.ascontiguousarray(flat(each)) for each in (x, a, m))
        z = rows @ W.T
        g, rest, y = (np.empty_like(z) for _ in range(3))
        fast = loop("mixed", z, z.shape[-1])
        if fast is not None:
            fast(*map(line, (z, b, a_rows, m_rows)), *z.shape, *map(line, (g, rest, y)))
        else:
            z += b
            sigmoids(z, g, rest)
            np.multiply(g, a_rows, out=y)
            y += rest * m_rows
        kept = (rows, a_rows, m_rows, W, g, rest, x.shape, fast is not None)
        return y.reshape(x.shape), kept

    def backward(residuals: Any, dy: Array) -> tuple[Array, ...]:
        rows, a, m, W, g, rest, shape, by_loop = residuals
        dy = flat(dy).astype(g.dtype, copy=False)
        da, dm, dz = (np.empty_like(g) for _ in range(3))
        if by_loop:
            fast = compiled.loop(MODULE, g.dtype, "mixed_back")
            assert fast is not None
            fast(*map(line, (a, m, g, rest, dy, da, dm, dz)))
        else:
            np.multiply(g, dy, out=da)
            np.multiply(rest, dy, out=dm)
            np.subtract(a, m, out=dz)
            dz *= rest
            dz *= da
        back = (each.reshape(shape) for each in (dz @ W, da, dm))
        return *back, dz.T @ rows, column_sums(dz)

    return block_or_plain(plainly, forward, backward)
