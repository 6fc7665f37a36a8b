"""A folded group of chunks under the running reference; plain twin:
`atlas_ref.forms.chunked_plain`.

    F = L^{-1} (V - G Z),          G = [diag(c') Phi | diag(f') Phi]
    Y = R [Z; F],                  R = [diag(c) Psi | diag(f) Psi | A]
    Z' = keep Z + P^T F

Four products a chunk, which find the state of the last chunk in the cache. Specified in
specs/exact.md (EXACT-20).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend.buffers import short_buffers
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.folded.layout import (
    Folded,
    Halves,
    Keep,
    by_chunk,
    first_reference,
    left_rows,
    side_by_side,
)
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.engine.group.triangular import invert_unit_lower
from atlas_ref.engine.masked.rows import before_rows, read_rows, spread, spread_transposed
from atlas_ref.types import Array


def intra_chunk(layout: Layout, inputs: Arrays, folded: Folded) -> None:
    """The intra-chunk matrices, which depend on no state."""
    with scratch.frame():
        phi_T = spread_transposed(layout, inputs.keys)
        # before has shape (B, g, K, bases + K)
        before = before_rows(layout, folded.rows.gates, folded.rows.D)[:, :, 0]
        scale(layout, folded, phi_T, before)
        invert(layout, folded, phi_T, before)


def invert(layout: Layout, folded: Folded, phi_T: Array, before: Array) -> None:
    """L^{-1} of every chunk."""
    np.matmul(folded.phi, phi_T, out=folded.keyed)
    with scratch.frame():
        strict = scratch.empty(folded.keyed.shape, folded.keyed)
        _times(before[..., folded.rows.gates.bases :], folded.keyed, strict)
        invert_unit_lower(strict, folded.inverse)


def scale(layout: Layout, folded: Folded, phi_T: Array, before: Array) -> None:
    """P, G and R."""
    nb, rows, K = folded.rows.gates.bases, folded.rows, layout.columns
    if folded.reads:
        np.matmul(folded.queries, phi_T, out=folded.scores)
    side_by_side(folded.phi, left_rows(rows), folded.P)
    side_by_side(folded.phi, before[..., :nb], folded.ask[..., :K, :])
    if folded.reads:
        reading = read_rows(layout, rows.D)[:, :, 0]
        side_by_side(folded.queries, reading[..., :nb], folded.ask[..., K:, :])
        _times(reading[..., nb:], folded.scores, folded.A)


def _times(coefficients: Array, products: Array, out: Array) -> None:
    """Coefficient rows (B, g, rows, K) times products of the same shape.

    Rows of the same place in all chunks lie side by side (`coefficients`), so the loop is over
    places. In a loop over chunks, every entry would bring a line into the first cache that is
    evicted before its next use.
    """
    np.multiply(
        coefficients.swapaxes(1, 2), products.swapaxes(1, 2), out=out.swapaxes(1, 2), order="C"
    )


def inter_chunk(layout: Layout, inputs: Arrays, folded: Folded, y: Array) -> None:
    """The inter-chunk loop: residuals, reads into y (B, n, o) unless it is None, and states.

    Source: EXACT-20.
    """
    d, K, height, slots = folded.phi.shape[-1], layout.columns, folded.height, folded.both.shape[1]
    each = None if y is None else y.reshape(*folded.queries.shape[:-1], -1)  # a view
    reads = each if folded.reads else None
    reference = first_reference(layout, inputs, folded)
    with scratch.frame(), short_buffers():
        values = spread(layout, inputs.values)
        H = scratch.empty((len(values), K, values.shape[-1]), values)
        change = scratch.empty(folded.both[:, 0, :height].shape, values)
        added = Halves.of(change, d).whole
        places, passed = (
            list(by_chunk(folded.states(), folded.both[:, :, height:], folded.both)),
            Halves.of_each(folded.states(), d),
        )
        factors = by_chunk(
            folded.ask[:, :, :K], values, folded.inverse, folded.P.swapaxes(-1, -2), folded.R, reads
        )
        for k, (keep, (ask, V, inverse, P_T, R, Y)) in enumerate(
            zip(Keep.of_each(folded), factors, strict=True)
        ):
            Z, F, both = places[k % slots]
            if layout.keeps_reference:
                if layout.refresh[k]:
                    reference[...] = Z[:, :d]
                if folded.references.flags.writeable:
                    folded.references[:, k] = reference
            np.matmul(ask, Z, out=H)
            np.subtract(V, H, out=H)
            np.matmul(inverse, H, out=F)
            if Y is not None:
                np.matmul(R, both, out=Y)
            np.matmul(P_T, F, out=change)
            keep.forward(passed[k % slots], added, passed[(k + 1) % slots])
    if each is not None and not folded.reads:
        np.matmul(folded.queries, folded.references, out=each)
