"""A folded group of chunks whose residuals are solved for: predictions come from the memory as it runs.

    F = L^{-1} (V - G Z),          G = [diag(c') Phi | diag(f') Phi]
    Y = R [Z; F],                  R = [diag(c) Psi | diag(f) Psi | A]
    Z' = keep Z + P^T F

Four products a chunk, which find the state where the last chunk left it, near the processor. Specified in specs/exact.md (EXACT-20).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atlas_ref.parallel.dual import before_rows, read_rows, spread, spread_transposed
from atlas_ref.parallel.group import Arrays, Layout
from atlas_ref.parallel.stacked import Halves, Keep, Stacked, by_chunk, first_reference, left_rows, side_by_side
from atlas_ref.parallel.triangular import invert_unit_lower
from atlas_ref.rules.run import short_buffers
from atlas_ref.scratch import scratch
from atlas_ref.types import Array

Part = Callable[[Layout, Stacked, Array, Array], None]


def fold(layout: Layout, given: Arrays, made: Stacked, parts: Sequence[Part] | None = None) -> None:
    """Everything that needs no state, or some parts of it."""
    with scratch.frame():
        phi_T = spread_transposed(layout, given.keys)
        before = before_rows(layout, made.rows.gates, made.rows.D)[:, :, 0]  # (B, g, K, bases + K)
        for part in PARTS if parts is None else parts:
            part(layout, made, phi_T, before)


def invert(layout: Layout, made: Stacked, phi_T: Array, before: Array) -> None:
    """L^{-1} of every chunk."""
    np.matmul(made.phi, phi_T, out=made.keyed)
    with scratch.frame():
        strict = scratch.empty(made.keyed.shape, made.keyed)
        _times(before[..., made.rows.gates.bases :], made.keyed, strict)
        invert_unit_lower(strict, made.inverse)


def scale(layout: Layout, made: Stacked, phi_T: Array, before: Array) -> None:
    """P, G and R."""
    nb, rows, K = made.rows.gates.bases, made.rows, layout.columns
    if made.reads:
        np.matmul(made.queries, phi_T, out=made.scores)
    side_by_side(made.phi, left_rows(rows), made.P)
    side_by_side(made.phi, before[..., :nb], made.ask[..., :K, :])
    if made.reads:
        reading = read_rows(layout, rows.D)[:, :, 0]
        side_by_side(made.queries, reading[..., :nb], made.ask[..., K:, :])
        _times(reading[..., nb:], made.scores, made.A)


def _times(coefficients: Array, products: Array, out: Array) -> None:
    """Coefficient rows (B, g, rows, K) times products of the same shape.

    Rows of the same place in all chunks lie side by side (`coefficients`), so they are taken place after place: chunk after
    chunk, every entry would bring a line into the first cache that is gone before its next one is asked for.
    """
    np.multiply(coefficients.swapaxes(1, 2), products.swapaxes(1, 2), out=out.swapaxes(1, 2), order="C")


PARTS: tuple[Part, ...] = (scale, invert)  # neither needs the other


def walk(layout: Layout, given: Arrays, made: Stacked, y: Array) -> None:
    """From chunk to chunk: residuals, reads into y (B, n, o) unless it is None, and the state after them (EXACT-20)."""
    d, K, height, slots = made.phi.shape[-1], layout.columns, made.height, made.both.shape[1]
    each = None if y is None else y.reshape(*made.queries.shape[:-1], -1)  # a view
    reads = each if made.reads else None
    reference = first_reference(layout, given, made)
    with scratch.frame(), short_buffers():
        values = spread(layout, given.values)
        H = scratch.empty((len(values), K, values.shape[-1]), values)
        change = scratch.empty(made.both[:, 0, :height].shape, values)
        added = Halves.of(change, d).whole
        places, passed = list(by_chunk(made.states(), made.both[:, :, height:], made.both)), Halves.of_each(made.states(), d)
        factors = by_chunk(made.ask[:, :, :K], values, made.inverse, made.P.swapaxes(-1, -2), made.R, reads)
        for k, (keep, (ask, V, inverse, P_T, R, Y)) in enumerate(zip(Keep.of_each(made), factors, strict=True)):
            Z, F, both = places[k % slots]
            if layout.keeps_reference:
                if layout.refresh[k]:
                    reference[...] = Z[:, :d]
                if made.references.flags.writeable:
                    made.references[:, k] = reference
            np.matmul(ask, Z, out=H)
            np.subtract(V, H, out=H)
            np.matmul(inverse, H, out=F)
            if Y is not None:
                np.matmul(R, both, out=Y)
            np.matmul(P_T, F, out=change)
            keep.forward(passed[k % slots], added, passed[(k + 1) % slots])
    if each is not None and not made.reads:
        np.matmul(made.queries, made.references, out=each)
