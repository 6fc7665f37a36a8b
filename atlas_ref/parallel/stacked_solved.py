"""A folded group of chunks whose residuals are solved for: predictions come from the memory as it runs.

    [H; Y_0] = ask Z,              ask = [diag(c') Phi | diag(f') Phi; diag(c) Psi | diag(f) Psi]
    F = L^{-1} (V - H),            Y = Y_0 + A F
    Z' = keep Z + P^T F

Four products a chunk, which find the state where the last chunk left it, near the processor. Specified in specs/exact.md (EXACT-20).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.parallel.dual import before_rows, read_rows, spread, spread_transposed
from atlas_ref.parallel.group import Arrays, Layout
from atlas_ref.parallel.scratch import scratch
from atlas_ref.parallel.stacked import Keep, Stacked, first_reference, halves, left_rows, side_by_side
from atlas_ref.parallel.triangular import inverse_unit_lower
from atlas_ref.types import Array


def fold(layout: Layout, given: Arrays, made: Stacked) -> None:
    """P, what a chunk asks of a state, the inverse of its system, and A."""
    nb, rows, K = made.rows.gates.bases, made.rows, layout.columns
    side_by_side(made.phi, left_rows(rows), made.P)
    with scratch.frame():
        phi_T = spread_transposed(layout, given.keys)
        np.matmul(made.phi, phi_T, out=made.keyed)
        if made.reads:
            np.matmul(made.queries, phi_T, out=made.scores)
    with scratch.frame():
        before = before_rows(layout, rows.gates, rows.D)[:, :, 0]  # (B, g, K, bases + K)
        side_by_side(made.phi, before[..., :nb], made.ask[..., :K, :])
        made.inverse[...] = inverse_unit_lower(scratch.times(before[..., nb:], made.keyed))
    if made.reads:
        reading = read_rows(layout, rows.D)[:, :, 0]
        side_by_side(made.queries, reading[..., :nb], made.ask[..., K:, :])
        np.multiply(reading[..., nb:], made.scores, out=made.A)


def walk(layout: Layout, given: Arrays, made: Stacked, y: Array) -> None:
    """From chunk to chunk: residuals, reads into y (B, n, o) unless it is None, and the state after them (EXACT-20)."""
    d, K, height, keep, slots = made.phi.shape[-1], layout.columns, made.height, Keep.of(made), made.both.shape[1]
    rows = K + (made.reads if y is not None else 0)
    ask, P_T = made.ask[:, :, :rows], made.P.swapaxes(-1, -2)
    y = None if y is None else y.reshape(*made.queries.shape[:-1], -1)  # a view
    reference = first_reference(layout, given, made)
    with scratch.frame():
        values = spread(layout, given.values)
        asked = scratch.empty((len(ask), rows, values.shape[-1]), values)
        mixed = scratch.empty((len(ask), rows - K, values.shape[-1]), values)
        change = scratch.empty(made.both[:, 0, :height].shape, values)
        for k, refresh in enumerate(layout.refresh):
            Z, F = made.both[:, k % slots, :height], made.both[:, k % slots, height:]
            if layout.keeps_reference:
                if refresh:
                    reference[...] = Z[:, :d]
                if made.references.flags.writeable:
                    made.references[:, k] = reference
            np.matmul(ask[:, k], Z, out=asked)
            np.subtract(values[:, k], asked[:, :K], out=asked[:, :K])
            np.matmul(made.inverse[:, k], asked[:, :K], out=F)
            if rows > K:
                np.matmul(made.A[:, k], F, out=mixed)
                np.add(asked[:, K:], mixed, out=y[:, k])
            np.matmul(P_T[:, k], F, out=change)
            keep.forward(k, halves(Z, d), halves(change, d), halves(made.both[:, (k + 1) % slots, :height], d))
    if y is not None and rows == K:
        np.matmul(made.queries, made.references, out=y)
