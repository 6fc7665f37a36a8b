"""A folded group of chunks whose residuals are known: what values have beyond the predictions of a reference.

    F = V - Phi M_ref^T            of all tokens of a span at once
    Z' = keep Z + P^T F            from chunk to chunk no product is left
    Y = R [Z; F],                  R = [diag(c) Psi | diag(f) Psi | A]

Specified in specs/chunkwise.md (CHUNK-6, CHUNK-8, CHUNK-9, CHUNK-30).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import negated
from atlas_ref.parallel.dual import read_rows, runs, spread, spread_transposed
from atlas_ref.parallel.group import Arrays, Layout
from atlas_ref.parallel.stacked import Halves, Keep, Stacked, first_reference, left_rows, side_by_side
from atlas_ref.scratch import scratch
from atlas_ref.types import Array


def fold(layout: Layout, given: Arrays, made: Stacked) -> None:
    """P, and R of the scores."""
    nb, rows = made.rows.gates.bases, made.rows
    side_by_side(made.phi, left_rows(rows), made.P)
    if made.R is None:
        return
    with scratch.frame():
        np.matmul(made.queries, spread_transposed(layout, given.keys), out=made.scores)
    reading = read_rows(layout, rows.D)[:, :, 0]
    side_by_side(made.queries, reading[..., :nb], made.R)
    np.multiply(reading[..., nb:], made.scores, out=made.R[..., made.height :])


def older(layout: Layout, first: int) -> int:
    """How many tokens of the window before a run of chunks under one reference belong to older spans (WINDOW-13)."""
    h = layout.window - 1
    return h - min(h, layout.position if first == 0 else 0)


def walk(layout: Layout, given: Arrays, made: Stacked) -> None:
    """F of all tokens of a span at once, then the states (CHUNK-6, CHUNK-8, CHUNK-9, CHUNK-30)."""
    d, states, beyond = made.phi.shape[-1], made.states(), made.beyond()
    passed, keeps = Halves.of_each(states, d), Keep.of_each(made)
    reference = first_reference(layout, given, made)
    if layout.carry:
        h = layout.window - 1
        negated(given.residuals, out=made.arrivals[:, :h])
    for first, last in runs(layout.refresh):
        chunks = slice(first, last)
        if layout.keeps_reference:
            if layout.refresh[first]:
                reference[...] = states[:, first, :d]
            if made.references.flags.writeable:
                made.references[:, chunks] = reference[:, None]
        with scratch.frame():
            _residuals(layout, given, chunks, reference, made.arrivals, beyond[:, chunks])
            changes = Halves.of_each(scratch.product(made.P[:, chunks].swapaxes(-1, -2), beyond[:, chunks]), d)
            for k, change in enumerate(changes, first):
                keeps[k].forward(passed[k], change.whole, passed[k + 1])


def _residuals(layout: Layout, given: Arrays, chunks: slice, reference: Array, arrivals: Array, beyond: Array) -> None:
    """F of a run of chunks under one reference into `beyond`; under carry, that of older spans out of `arrivals`, and its own into them."""
    C, h = layout.chunk, layout.window - 1
    tokens = slice(chunks.start * C, chunks.stop * C + h)
    values = given.values[:, tokens]
    if layout.reference != "frozen":
        beyond[...] = spread(layout, values)
        return
    predicted = scratch.product(given.keys[:, tokens], reference)
    if not layout.carry:
        np.subtract(spread(layout, values), spread(layout, predicted), out=beyond)
        return
    rows = np.subtract(values, predicted, out=predicted)
    count = older(layout, chunks.start)
    rows[:, :count] = arrivals[:, tokens.start : tokens.start + count]
    arrivals[:, tokens.start + h : tokens.stop] = rows[:, h:]
    beyond[...] = spread(layout, rows)


def read(layout: Layout, made: Stacked, y: Array) -> None:
    """Write y (B, n, o) of every token."""
    y = y.reshape(*made.queries.shape[:-1], -1)  # a view
    if layout.read == "reference":
        np.matmul(made.queries, made.references, out=y)
    else:
        np.matmul(made.R, made.both[:, :-1], out=y)
