"""The backward of a folded group of chunks; plain twin: the gradient of
`atlas_ref.forms.chunked_plain`.

    frozen:  R^T y_bar             cotangents of Z and F from the reads;   Z_bar += keep^T Z'_bar, then F_bar += P Z'_bar
    running: V_bar = L^{-T} (A^T y_bar + P Z'_bar),                         Z_bar = keep^T Z'_bar + ask^T [-V_bar; y_bar]

and for all chunks at once: [-V_bar; y_bar] [Z; F]^T holds the cotangents of the
predictions, of L and of R. The equations are CHUNK-16 and EXACT-8 to EXACT-10.
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import negated
from atlas_ref.backend.buffers import short_buffers
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.folded.cotangents import (
    CotangentSums,
    at_the_end,
    from_side_by_side,
    through_ends,
    through_reads,
    through_references,
)
from atlas_ref.engine.folded.frozen import older
from atlas_ref.engine.folded.layout import Folded, Halves, Keep, by_chunk
from atlas_ref.engine.group.cotangents import Cotangents, Into, RowCotangents
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.engine.masked.forward import runs
from atlas_ref.engine.masked.gates_backward import through_before
from atlas_ref.engine.masked.rows import before_rows, gathered
from atlas_ref.types import Array


def backward(
    layout: Layout,
    inputs: Arrays,
    folded: Folded,
    cotangents: Cotangents,
    d_rows: RowCotangents,
    into: Into,
) -> End:
    """Cotangents of the start of some memories.

    Those of tokens and coefficient rows go into `into` and `d_rows`.
    """
    residuals = None
    if layout.running:
        sums, first, reference = _running(layout, folded, cotangents, d_rows, into)
    else:
        sums, first, reference, residuals = _frozen(
            layout, inputs, folded, cotangents, d_rows, into
        )
    through_ends(folded, sums, d_rows)
    gathered(layout, sums.phi, into.keys)
    d = folded.phi.shape[-1]
    M, S = (
        first[:, base * d : base * d + d].swapaxes(-1, -2).copy()
        if base * d < folded.height
        else None
        for base in range(2)
    )
    return End(
        M=M,
        S=S,
        reference=reference.swapaxes(-1, -2) if layout.keeps_reference else None,
        residuals=residuals,
    )


# -- under a running reference ---------------------------------------------------------------------


def _running(
    layout: Layout, folded: Folded, cotangents: Cotangents, d_rows: RowCotangents, into: Into
) -> tuple[CotangentSums, Array, Array]:
    """Sums of cotangents, and the cotangents of the first state and of its reference."""
    K, lead, o, reads = (
        layout.columns,
        folded.phi.shape[:2],
        folded.both.shape[-1],
        0 if cotangents.y is None else folded.reads,
    )
    sums = CotangentSums.of(folded, scratch.empty((*lead, folded.height, o), folded.both))
    # rows hold minus V_bar and, with reads, the cotangents of reads
    rows = scratch.empty((*lead, K + reads, o), folded.both)
    if not reads:
        sums = through_references(folded, cotangents.y, sums, into)
    first, reference = _through_chunks(layout, folded, cotangents, sums, rows)
    with scratch.frame():
        found = scratch.product(rows, sums.transposed)
        if reads:
            through_reads(layout, folded, found[..., K:, :], sums, d_rows, into)
        _through_system(layout, folded, found[..., :K, :], sums, d_rows)
        gathered(layout, negated(rows[..., :K, :], out=rows[..., :K, :]), into.values)
    return sums, first, reference


def _through_chunks(
    layout: Layout, folded: Folded, cotangents: Cotangents, sums: CotangentSums, rows: Array
) -> tuple[Array, Array]:
    """The inter-chunk loop in reverse: [-V_bar; y_bar] of each chunk into `rows`; cotangents of the
    first state and reference.
    """
    d, K, keeps = folded.phi.shape[-1], layout.columns, Keep.of_each(folded)
    end, d_reference = at_the_end(folded, cotangents)
    if rows.shape[2] > K:
        rows[..., K:, :] = cotangents.y.reshape(*folded.queries.shape[:-1], -1)
        np.matmul(folded.A.swapaxes(-1, -2), rows[..., K:, :], out=rows[..., :K, :])
    else:
        rows[...] = 0.0
    dZ, passed = scratch.copy(end), Halves.of_each(sums.ends, d)
    inverse_T, ask_T = (
        folded.inverse.swapaxes(-1, -2),
        folded.ask[:, :, : rows.shape[2]].swapaxes(-1, -2),
    )
    steps = list(by_chunk(sums.ends, folded.P, inverse_T, ask_T, rows, rows[:, :, :K]))
    with scratch.frame(), short_buffers():
        dF, dV, room = (
            scratch.empty(shape, dZ)
            for shape in (rows[:, 0, :K].shape, rows[:, 0, :K].shape, dZ.shape)
        )
        before, spare = Halves.of(dZ, d).whole, Halves.of(room, d)
        for k in range(len(layout.refresh) - 1, -1, -1):
            after, P, L_inverse_T, asks, asked, row_F = steps[k]  # row_F: A^T y_bar, then -V_bar
            after[...] = dZ
            np.matmul(P, after, out=dF)
            np.add(dF, row_F, out=dF)
            np.matmul(L_inverse_T, dF, out=dV)
            negated(dV, out=row_F)
            np.matmul(asks, asked, out=dZ)
            keeps[k].backward(passed[k], before, spare)
            if sums.references is not None:
                d_reference = d_reference + sums.references[:, k]
            if layout.keeps_reference and layout.refresh[k]:
                dZ[:, :d] += d_reference
                d_reference = np.zeros_like(d_reference)
    return dZ, d_reference


def _through_system(
    layout: Layout, folded: Folded, cotangent: Array, sums: CotangentSums, d_rows: RowCotangents
) -> None:
    """From [G | L], G = [c' Phi | f' Phi], to columns, coefficient rows and retain.

    `cotangent` is overwritten.
    """
    nb, rows, height = folded.rows.gates.bases, folded.rows, folded.height
    before = before_rows(layout, rows.gates, rows.D)[:, :, 0]  # (B, g, K, bases + K)
    with scratch.frame():
        d_before = scratch.empty(before.shape, cotangent)
        d_before[..., :nb] = 0.0
        from_side_by_side(cotangent, folded.phi, before[..., :nb], sums.phi, d_before[..., :nb])
        dN = cotangent[..., height:]
        np.multiply(dN, folded.keyed, out=d_before[..., nb:])
        d_keyed = np.multiply(dN, before[..., nb:], out=dN)
        sums.phi[...] += scratch.product(d_keyed + d_keyed.swapaxes(-1, -2), folded.phi)
        through_before(layout, rows, d_before[:, :, None], d_rows)


# -- under a frozen reference ----------------------------------------------------------------------


def _frozen(
    layout: Layout,
    inputs: Arrays,
    folded: Folded,
    cotangents: Cotangents,
    d_rows: RowCotangents,
    into: Into,
) -> tuple[CotangentSums, Array, Array, Array]:
    """Sums of cotangents, and the cotangents of the first state, its reference, and under carry the
    residuals before.
    """
    sums = CotangentSums.of(folded, scratch.empty(folded.states()[:, 1:].shape, folded.both))
    # the cotangents of the state before each chunk, from the reads alone, and of F
    both = scratch.empty(folded.both[:, 1:].shape, folded.both)
    if cotangents.y is None or folded.R is None:
        sums = through_references(folded, cotangents.y, sums, into)
        both[...] = 0.0
    else:
        y = cotangents.y.reshape(*folded.queries.shape[:-1], -1)
        np.matmul(folded.R.swapaxes(-1, -2), y, out=both)
        with scratch.frame():
            through_reads(layout, folded, scratch.product(y, sums.transposed), sums, d_rows, into)
    return sums, *_through_spans(layout, inputs, folded, cotangents, sums, both, into)


def _through_spans(
    layout: Layout,
    inputs: Arrays,
    folded: Folded,
    cotangents: Cotangents,
    sums: CotangentSums,
    both: Array,
    into: Into,
) -> tuple[Array, Array, Array]:
    """The inter-chunk loop in reverse under a frozen reference.

    One product a span computes its residuals (CHUNK-16).
    """
    C, h, d, height, keeps = (
        layout.chunk,
        layout.window - 1,
        folded.phi.shape[-1],
        folded.height,
        Keep.of_each(folded),
    )
    dZ, d_reference = at_the_end(folded, cotangents)
    arrivals: Array = None
    if layout.carry:
        arrivals = np.zeros_like(folded.arrivals)
        if cotangents.residuals is not None:
            arrivals[:, -layout.window :] -= cotangents.residuals
    earlier = both[:, :, :height]
    steps = list(
        zip(
            keeps,
            by_chunk(sums.ends, earlier, Halves.of(earlier, d).whole),
            Halves.of_each(sums.ends, d),
            strict=True,
        )
    )
    for first, last in reversed(runs(layout.refresh)):
        tokens, chunks = slice(first * C, last * C + h), slice(first, last)
        with scratch.frame():
            spare = Halves.of(scratch.empty(dZ.shape, dZ), d)
            for keep, (after, d_before, before), passed in reversed(steps[chunks]):
                after[...] = dZ
                dZ = d_before
                keep.backward(passed, before, spare)
            dF = both[:, chunks, height:]
            dF += scratch.product(folded.P[:, chunks], sums.ends[:, chunks])
            rows = scratch.zeros(inputs.values[:, tokens].shape, dF)
            gathered(layout, dF, rows)
            if arrivals is not None:
                count = older(layout, first)
                arrivals[:, first * C : first * C + count] += rows[:, :count]
                rows[:, :count] = 0.0
                rows[:, h:] += arrivals[:, tokens.start + h : tokens.stop]
            into.values[:, tokens] += rows
            if layout.reference == "frozen":
                into.keys[:, tokens] -= scratch.product(
                    rows, scratch.transposed(folded.references[:, first])
                )
                d_reference = d_reference - inputs.keys[:, tokens].swapaxes(-1, -2) @ rows
        if sums.references is not None:
            d_reference = d_reference + sums.references[:, chunks].sum(axis=1)
        if layout.keeps_reference and layout.refresh[first]:
            dZ[:, :d] += d_reference
            d_reference = np.zeros_like(d_reference)
    return dZ, d_reference, None if arrivals is None else -arrivals[:, :h]
