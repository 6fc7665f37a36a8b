"""A folded group of chunks under a frozen reference; plain twin: `atlas_ref.forms.chunked_plain`.

F is minus the residuals: values less the predictions of the reference.

    F = V - Phi M_ref^T            of all tokens of a span at once
    Z' = keep Z + P^T F            from chunk to chunk no product is left
    Y = R [Z; F],                  R = [diag(c) Psi | diag(f) Psi | A]

Specified in specs/chunkwise.md (CHUNK-6, CHUNK-8, CHUNK-9, CHUNK-30).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import negated
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.folded.layout import (
    Folded,
    Halves,
    Keep,
    first_reference,
    left_rows,
    side_by_side,
)
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.engine.masked.forward import runs
from atlas_ref.engine.masked.rows import read_rows, spread, spread_transposed
from atlas_ref.types import Array


def intra_chunk(layout: Layout, inputs: Arrays, folded: Folded) -> None:
    """The intra-chunk matrices: P, and R of the scores."""
    nb, rows = folded.rows.gates.bases, folded.rows
    side_by_side(folded.phi, left_rows(rows), folded.P)
    if folded.R is None:
        return
    with scratch.frame():
        np.matmul(folded.queries, spread_transposed(layout, inputs.keys), out=folded.scores)
    reading = read_rows(layout, rows.D)[:, :, 0]
    side_by_side(folded.queries, reading[..., :nb], folded.R)
    np.multiply(reading[..., nb:], folded.scores, out=folded.R[..., folded.height :])


def older(layout: Layout, first: int) -> int:
    """Number of window tokens before a run of chunks of one reference that belong to older spans.

    Source: WINDOW-13.
    """
    h = layout.window - 1
    return h - min(h, layout.position if first == 0 else 0)


def inter_chunk(layout: Layout, inputs: Arrays, folded: Folded) -> None:
    """The inter-chunk loop: F of all tokens of a span at once, then the states.

    Source: CHUNK-6, CHUNK-8, CHUNK-9, CHUNK-30.
    """
    d, states, beyond = folded.phi.shape[-1], folded.states(), folded.beyond()
    passed, keeps = Halves.of_each(states, d), Keep.of_each(folded)
    reference = first_reference(layout, inputs, folded)
    if layout.carry:
        h = layout.window - 1
        negated(inputs.residuals, out=folded.arrivals[:, :h])
    for first, last in runs(layout.refresh):
        chunks = slice(first, last)
        if layout.keeps_reference:
            if layout.refresh[first]:
                reference[...] = states[:, first, :d]
            if folded.references.flags.writeable:
                folded.references[:, chunks] = reference[:, None]
        with scratch.frame():
            _residuals(layout, inputs, chunks, reference, folded.arrivals, beyond[:, chunks])
            changes = Halves.of_each(
                scratch.product(folded.P[:, chunks].swapaxes(-1, -2), beyond[:, chunks]), d
            )
            for k, change in enumerate(changes, first):
                keeps[k].forward(passed[k], change.whole, passed[k + 1])


def _residuals(
    layout: Layout, inputs: Arrays, chunks: slice, reference: Array, arrivals: Array, beyond: Array
) -> None:
    """F of a run of chunks under one reference into `beyond`.

    Under carry, F of older spans is read from `arrivals`, and that of this span is written there.
    """
    C, h = layout.chunk, layout.window - 1
    tokens = slice(chunks.start * C, chunks.stop * C + h)
    values = inputs.values[:, tokens]
    if layout.reference != "frozen":
        beyond[...] = spread(layout, values)
        return
    predicted = scratch.product(inputs.keys[:, tokens], reference)
    if not layout.carry:
        np.subtract(spread(layout, values), spread(layout, predicted), out=beyond)
        return
    rows = np.subtract(values, predicted, out=predicted)
    count = older(layout, chunks.start)
    rows[:, :count] = arrivals[:, tokens.start : tokens.start + count]
    arrivals[:, tokens.start + h : tokens.stop] = rows[:, h:]
    beyond[...] = spread(layout, rows)


def read(layout: Layout, folded: Folded, y: Array) -> None:
    """Write y (B, n, o) of every token."""
    y = y.reshape(*folded.queries.shape[:-1], -1)  # a view
    if layout.read == "reference":
        np.matmul(folded.queries, folded.references, out=y)
    else:
        np.matmul(folded.R, folded.both[:, :-1], out=y)
