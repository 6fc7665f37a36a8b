"""Pull a folded group of chunks back, by hand: from reads and ends to tokens, coefficient rows and what the group began with.

    known:   R^T y_bar             cotangents of Z and F from the reads;   Z_bar += keep^T Z'_bar, then F_bar += P Z'_bar
    solved:  V_bar = L^{-T} (A^T y_bar + P Z'_bar),                         Z_bar = keep^T Z'_bar + ask^T [-V_bar; y_bar]

and what does not pass from chunk to chunk for all of them at once: [-V_bar; y_bar] [Z; F]^T holds the cotangents of the
predictions, of L and of R. The equations are CHUNK-16 and EXACT-8 to EXACT-10.
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import negated
from atlas_ref.parallel.dual import before_rows, gathered, runs
from atlas_ref.parallel.dual_backward import through_before
from atlas_ref.parallel.dual_bars import Bars, Into, RowBars
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.stacked import Halves, Keep, Stacked, by_chunk
from atlas_ref.parallel.stacked_bars import Pulled, at_the_end, from_side_by_side, through_ends, through_reads, through_references
from atlas_ref.parallel.stacked_known import older
from atlas_ref.rules.run import short_buffers
from atlas_ref.scratch import scratch
from atlas_ref.types import Array


def backward(layout: Layout, given: Arrays, made: Stacked, bars: Bars, summed: RowBars, into: Into) -> End:
    """Cotangents of what some memories of a group began with; those of tokens and of coefficient rows go into `into` and `summed`."""
    residuals = None
    if layout.solved:
        pulled, first, reference = _solved(layout, made, bars, summed, into)
    else:
        pulled, first, reference, residuals = _known(layout, given, made, bars, summed, into)
    through_ends(made, pulled, summed)
    gathered(layout, pulled.phi, into.keys)
    d = made.phi.shape[-1]
    M, S = (first[:, base * d : base * d + d].swapaxes(-1, -2).copy() if base * d < made.height else None for base in range(2))
    return End(M=M, S=S, reference=reference.swapaxes(-1, -2) if layout.keeps_reference else None, residuals=residuals)


# -- residuals that are solved for ----------------------------------------------------------------------


def _solved(layout: Layout, made: Stacked, bars: Bars, summed: RowBars, into: Into) -> tuple[Pulled, Array, Array]:
    """Cotangents on the way, of the first state and of its reference."""
    K, lead, o, reads = layout.columns, made.phi.shape[:2], made.both.shape[-1], 0 if bars.y is None else made.reads
    pulled = Pulled.of(made, scratch.empty((*lead, made.height, o), made.both))
    rows = scratch.empty((*lead, K + reads, o), made.both)  # of what is asked: minus V_bar, and the cotangents of reads
    if not reads:
        pulled = through_references(made, bars.y, pulled, into)
    first, reference = _through_chunks(layout, made, bars, pulled, rows)
    with scratch.frame():
        found = scratch.product(rows, pulled.turned)
        if reads:
            through_reads(layout, made, found[..., K:, :], pulled, summed, into)
        _through_system(layout, made, found[..., :K, :], pulled, summed)
        gathered(layout, negated(rows[..., :K, :], out=rows[..., :K, :]), into.values)
    return pulled, first, reference


def _through_chunks(layout: Layout, made: Stacked, bars: Bars, pulled: Pulled, rows: Array) -> tuple[Array, Array]:
    """Chunks in reverse: [-V_bar; y_bar] of each into `rows`, and the state after it; cotangents of the first state and its reference."""
    d, K, keeps = made.phi.shape[-1], layout.columns, Keep.of_each(made)
    end, d_reference = at_the_end(made, bars)
    if rows.shape[2] > K:
        rows[..., K:, :] = bars.y.reshape(*made.queries.shape[:-1], -1)
        np.matmul(made.A.swapaxes(-1, -2), rows[..., K:, :], out=rows[..., :K, :])
    else:
        rows[...] = 0.0
    dZ, passed = scratch.copy(end), Halves.of_each(pulled.ends, d)
    inverse_T, ask_T = made.inverse.swapaxes(-1, -2), made.ask[:, :, : rows.shape[2]].swapaxes(-1, -2)
    steps = list(by_chunk(pulled.ends, made.P, inverse_T, ask_T, rows, rows[:, :, :K]))
    with scratch.frame(), short_buffers():
        dF, dV, room = (scratch.empty(shape, dZ) for shape in (rows[:, 0, :K].shape, rows[:, 0, :K].shape, dZ.shape))
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
            if pulled.references is not None:
                d_reference = d_reference + pulled.references[:, k]
            if layout.keeps_reference and layout.refresh[k]:
                dZ[:, :d] += d_reference
                d_reference = np.zeros_like(d_reference)
    return dZ, d_reference


def _through_system(layout: Layout, made: Stacked, bar: Array, pulled: Pulled, summed: RowBars) -> None:
    """From [G | L], G = [c' Phi | f' Phi], to columns, coefficient rows and retain; `bar` is overwritten."""
    nb, rows, height = made.rows.gates.bases, made.rows, made.height
    before = before_rows(layout, rows.gates, rows.D)[:, :, 0]  # (B, g, K, bases + K)
    with scratch.frame():
        d_before = scratch.empty(before.shape, bar)
        d_before[..., :nb] = 0.0
        from_side_by_side(bar, made.phi, before[..., :nb], pulled.phi, d_before[..., :nb])
        dN = bar[..., height:]
        np.multiply(dN, made.keyed, out=d_before[..., nb:])
        d_keyed = np.multiply(dN, before[..., nb:], out=dN)
        pulled.phi[...] += scratch.product(d_keyed + d_keyed.swapaxes(-1, -2), made.phi)
        through_before(layout, rows, d_before[:, :, None], summed)


# -- residuals that are known ---------------------------------------------------------------------------


def _known(layout: Layout, given: Arrays, made: Stacked, bars: Bars, summed: RowBars, into: Into) -> tuple[Pulled, Array, Array, Array]:
    """Cotangents on the way, of the first state, of its reference, and under carry of the residuals before."""
    pulled = Pulled.of(made, scratch.empty(made.states()[:, 1:].shape, made.both))
    both = scratch.empty(made.both[:, 1:].shape, made.both)  # of the state before each chunk from the reads alone, and of F
    if bars.y is None or made.R is None:
        pulled = through_references(made, bars.y, pulled, into)
        both[...] = 0.0
    else:
        y = bars.y.reshape(*made.queries.shape[:-1], -1)
        np.matmul(made.R.swapaxes(-1, -2), y, out=both)
        with scratch.frame():
            through_reads(layout, made, scratch.product(y, pulled.turned), pulled, summed, into)
    return pulled, *_through_spans(layout, given, made, bars, pulled, both, into)


def _through_spans(
    layout: Layout, given: Arrays, made: Stacked, bars: Bars, pulled: Pulled, both: Array, into: Into
) -> tuple[Array, Array, Array]:
    """Chunks in reverse under a reference that is known: one product a span for what its tokens have beyond it (CHUNK-16)."""
    C, h, d, height, keeps = layout.chunk, layout.window - 1, made.phi.shape[-1], made.height, Keep.of_each(made)
    dZ, d_reference = at_the_end(made, bars)
    arrivals: Array = None
    if layout.carry:
        arrivals = np.zeros_like(made.arrivals)
        if bars.residuals is not None:
            arrivals[:, -layout.window :] -= bars.residuals
    earlier = both[:, :, :height]
    steps = list(zip(keeps, by_chunk(pulled.ends, earlier, Halves.of(earlier, d).whole), Halves.of_each(pulled.ends, d), strict=True))
    for first, last in reversed(runs(layout.refresh)):
        tokens, chunks = slice(first * C, last * C + h), slice(first, last)
        with scratch.frame():
            spare = Halves.of(scratch.empty(dZ.shape, dZ), d)
            for keep, (after, d_before, before), passed in reversed(steps[chunks]):
                after[...] = dZ
                dZ = d_before
                keep.backward(passed, before, spare)
            dF = both[:, chunks, height:]
            dF += scratch.product(made.P[:, chunks], pulled.ends[:, chunks])
            rows = scratch.zeros(given.values[:, tokens].shape, dF)
            gathered(layout, dF, rows)
            if arrivals is not None:
                count = older(layout, first)
                arrivals[:, first * C : first * C + count] += rows[:, :count]
                rows[:, :count] = 0.0
                rows[:, h:] += arrivals[:, tokens.start + h : tokens.stop]
            into.values[:, tokens] += rows
            if layout.reference == "frozen":
                into.keys[:, tokens] -= scratch.product(rows, scratch.turned(made.references[:, first]))
                d_reference = d_reference - given.keys[:, tokens].swapaxes(-1, -2) @ rows
        if pulled.references is not None:
            d_reference = d_reference + pulled.references[:, chunks].sum(axis=1)
        if layout.keeps_reference and layout.refresh[first]:
            dZ[:, :d] += d_reference
            d_reference = np.zeros_like(d_reference)
    return dZ, d_reference, None if arrivals is None else -arrivals[:, :h]
