"""Causal convolution of each channel as one opaque block; plain twin:
`layers.convolution.plain_taps`.

Target: a training step of a MAG model at most 1.65 times one of a plain transformer
(`benchmarks.models`). With the plain twin alone it takes 1.12 times as long. Specified in
specs/convolution.md (CONVOLUTION-1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.layers.support import MODULE, block_or_plain, column_sums, flat, line, loop
from atlas_ref.types import Array


def block(plainly: Callable[..., Any]) -> Callable[..., Any]:
    """The sum over all taps.

    Returns:
        a function of earlier rows (B, K - 1, d), x (B, T, d), weight (d, K) and perhaps bias (d,),
        to (B, T, d).
    """

    def forward(earlier: Array, x: Array, weight: Array, *bias: Array) -> tuple[Array, Any]:
        taps, y = np.ascontiguousarray(weight.T), np.empty(x.shape, x.dtype)
        fast = None if bias else loop("taps", x, x.shape[-1])
        if fast is not None:
            fast(*map(line, (earlier, x, taps)), *_sizes(x, taps), line(y))
            return y, (earlier, x, taps, False, True)
        with scratch.frame():
            rows = scratch.empty((earlier.shape[1] + x.shape[1], x.shape[2]), x)
            term = scratch.empty(x.shape[1:], x)
            for i, to in enumerate(y):
                _placed(earlier[i], x[i], rows)
                np.multiply(taps[0], rows[: len(to)], out=to)
                for j in range(1, len(taps)):
                    np.multiply(taps[j], rows[j : j + len(to)], out=term)
                    to += term
                if bias:
                    to += bias[0]
        return y, (earlier, x, taps, bool(bias), False)

    def backward(residuals: Any, g: Array) -> tuple[Array, ...]:
        earlier, x, taps, has_bias, by_loop = residuals
        if by_loop:
            return _compiled_back(earlier, x, taps, g.astype(x.dtype, copy=False))
        before, T = earlier.shape[1], x.shape[1]
        d_earlier, dx = np.empty_like(earlier, order="C"), np.empty_like(x, order="C")
        d_taps = np.zeros_like(taps)
        with scratch.frame():
            rows, d_rows = (scratch.empty((before + T, x.shape[2]), x) for _ in range(2))
            term = scratch.empty(x.shape[1:], x)
            for i, of in enumerate(g):
                _placed(earlier[i], x[i], rows)
                d_rows[...] = 0.0
                for j, tap in enumerate(taps):
                    np.multiply(of, tap, out=term)
                    d_rows[j : j + T] += term
                    d_taps[j] += np.einsum("tc,tc->c", of, rows[j : j + T])
                d_earlier[i], dx[i] = d_rows[:before], d_rows[before:]
        of_bias = (column_sums(flat(g)),) if has_bias else ()
        return d_earlier, dx, np.ascontiguousarray(d_taps.T), *of_bias

    return block_or_plain(plainly, forward, backward)


def _compiled_back(earlier: Array, x: Array, taps: Array, g: Array) -> tuple[Array, ...]:
    dx = np.empty(x.shape, x.dtype)
    d_earlier, d_taps = np.zeros(earlier.shape, x.dtype), np.zeros_like(taps)
    fast = compiled.loop(MODULE, x.dtype, "taps_back")
    assert fast is not None
    fast(
        *map(
            line,
            (
                earlier,
                x,
                taps,
                g,
            ),
        ),
        *_sizes(x, taps),
        *map(line, (d_earlier, dx, d_taps)),
    )
    return d_earlier, dx, np.ascontiguousarray(d_taps.T)


def _sizes(x: Array, taps: Array) -> tuple[int, ...]:
    return *x.shape[:2], *taps.shape


def _placed(earlier: Array, x: Array, rows: Array) -> None:
    rows[: len(earlier)] = earlier
    rows[len(earlier) :] = x
