"""Batched Newton-Schulz as a share of the rate of one large matrix product.

Three products of n x n x n a step; the rate is 2 n^3 operations for each of them over the time of
the whole call, with its norms and sums. The large product runs on all threads of the BLAS. Wall
time, since both sides use several threads; it counts only on a machine with nothing else to do.
"""

from __future__ import annotations

import time

import numpy as np

from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz
from benchmarks.measure import LARGE, LEAD, Row, Spread, Target, bracketed, relative_error

COUNT, N = 512, 64


def rows() -> list[Row]:
    """512 matrices of 64 x 64, five steps."""
    settings = NewtonSchulz()
    draw = np.random.default_rng(0)
    S = draw.standard_normal((COUNT, N, N)).astype(np.float32)
    a, b = (draw.standard_normal((LARGE, LARGE)).astype(np.float32) for _ in range(2))
    timing = bracketed(
        lambda: newton_schulz(S, settings),
        lambda: np.matmul(a, b),
        samples=9,
        clock=time.perf_counter,
        lead=LEAD,
    )
    operations = COUNT * settings.steps * 3 * 2 * N**3
    share = [operations / (2 * LARGE**3) / ratio for ratio in timing.ratio]
    rate = 2 * LARGE**3 / float(np.median(timing.theirs)) / 1e9
    return [
        Row(
            f"Newton-Schulz, {settings.steps} steps, {COUNT} matrices of {N} x {N}, float32",
            "ms",
            Spread.of(timing.ours, 1e3),
            f"product of {LARGE} x {LARGE}",
            Spread.of(timing.theirs, 1e3),
            Spread.of(share),
            Target("at least", 0.5),
            relative_error(
                newton_schulz(S, settings), newton_schulz(S.astype(np.float64), settings)
            ),
            relative_error(a @ b, a.astype(np.float64) @ b.astype(np.float64)),
            f"wall time; the ratio is one of rates, the product's is {rate:.0f} GFLOP/s",
        )
    ]
