"""The backward pass of `stacked`, by hand: again all but two products a chunk is done for all chunks at once.

    R^T y_bar              cotangents of Z and of F from the reads,       y_bar [Z; F]^T  that of R
    F_bar += P Z'_bar,     Z_bar += keep^T Z'_bar - W^T F_bar             from chunk to chunk, in reverse
    V_bar = L^{-T} F_bar,  -V_bar [Z; F]^T                                cotangents of [c' Phi | f' Phi] and of L

The equations are CHUNK-16 and EXACT-8 to EXACT-10.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.parallel.dual import before_rows, gathered, read_rows, runs
from atlas_ref.parallel.dual_backward import row_dots, through_before
from atlas_ref.parallel.dual_bars import Bars, Into, RowBars
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.scratch import scratch
from atlas_ref.parallel.stacked import Keep, Stacked, halves, left_rows, older
from atlas_ref.types import Array


class _Pulled(NamedTuple):
    """Cotangents while they are being added up.

    Attributes:
        phi (B, g, K, d).
        both (B, g, bases d + K, o): of the state before each chunk from the reads alone, and of F.
        ends (B, g, bases d, o): of the state after each chunk.
        turned (B, g, o, bases d + K): [Z; F] itself, transposed: a product by the transpose of a matrix is half as fast.
        references (B, g, d, o): of the references that are read; None where none is.
    """

    phi: Array
    both: Array
    ends: Array
    turned: Array
    references: Array


def backward(layout: Layout, given: Arrays, made: Stacked, bars: Bars, summed: RowBars, into: Into) -> End:
    """Cotangents of what some memories of a group began with; those of tokens and of coefficient rows go into `into` and `summed`."""
    states = made.states()
    pulled = _Pulled(
        phi=scratch.empty(made.phi.shape, states),
        both=scratch.empty(made.both[:, 1:].shape, states),
        ends=scratch.empty(states[:, 1:].shape, states),
        turned=scratch.empty((*made.phi.shape[:2], *made.both.shape[:1:-1]), states),
        references=scratch.empty(made.references.shape, states) if layout.read == "reference" and bars.y is not None else None,
    )
    _through_reads(layout, made, bars.y, pulled, summed, into)
    residuals = None
    if layout.solved:
        first, reference = _through_chunks(layout, made, bars, pulled)
        _through_system(layout, made, pulled, summed, into)
    else:
        first, reference, residuals = _through_spans(layout, given, made, bars, pulled, into)
    _through_ends(made, pulled, summed)
    gathered(layout, pulled.phi, into.keys)
    d = made.phi.shape[-1]
    M, S = (first[:, base * d : base * d + d].swapaxes(-1, -2).copy() if base * d < made.height else None for base in range(2))
    return End(M=M, S=S, reference=reference.swapaxes(-1, -2) if layout.keeps_reference else None, residuals=residuals)


def _through_reads(layout: Layout, made: Stacked, y: Array, pulled: _Pulled, summed: RowBars, into: Into) -> None:
    """From Y = R [Z; F], or Y = Psi M_ref^T, to the queries, scores, coefficient rows, states and F."""
    pulled.turned[...] = made.both[:, :-1].swapaxes(-1, -2)
    queries, phi = into.queries.reshape(made.queries.shape), pulled.phi
    if y is None or layout.read == "reference":
        phi[...], pulled.both[...], queries[...] = 0.0, 0.0, 0.0
        if y is not None:
            g = y.reshape(*queries.shape[:-1], -1)
            np.matmul(g, scratch.turned(made.references), out=queries)
            np.matmul(made.queries.swapaxes(-1, -2), g, out=pulled.references)
        return
    g, nb = y.reshape(*queries.shape[:-1], -1), made.rows.gates.bases
    coefficients, bars = read_rows(layout, made.rows.D)[:, :, 0], read_rows(layout, summed.D)[:, :, 0]
    np.matmul(made.R.swapaxes(-1, -2), g, out=pulled.both)
    with scratch.frame():
        dR = scratch.product(g, pulled.turned)
        dA = dR[..., made.height :]
        np.multiply(dA, made.scores, out=bars[..., nb:])
        d_scores = scratch.times(dA, coefficients[..., nb:])
        np.matmul(d_scores, made.phi, out=queries)
        np.matmul(d_scores.swapaxes(-1, -2), made.queries, out=phi)
        _from_side_by_side(dR, made.queries, coefficients[..., :nb], queries, bars[..., :nb])


def _from_side_by_side(bar: Array, x: Array, factors: Array, out: Array, bars: Array) -> None:
    """Add what [c x | -f x] hands to x and to the factors."""
    d = x.shape[-1]
    with scratch.frame():
        part = scratch.empty(x.shape, bar)
        out += np.multiply(bar[..., :d], factors[..., 0, None], out=part)
        bars[..., 0] += row_dots(bar[..., :d], x)
        if factors.shape[-1] == 2:
            out -= np.multiply(bar[..., d : 2 * d], factors[..., 1, None], out=part)
            bars[..., 1] -= row_dots(bar[..., d : 2 * d], x)


def _through_chunks(layout: Layout, made: Stacked, bars: Bars, pulled: _Pulled) -> tuple[Array, Array]:
    """Chunks in reverse: cotangents of F, of the state after each chunk, of the first state and its reference."""
    d, height, keep = made.phi.shape[-1], made.height, Keep.of(made)
    dZ, d_reference = _at_the_end(made, bars, pulled)
    with scratch.frame():
        more, change = scratch.empty(pulled.both[:, 0, height:].shape, dZ), scratch.empty(dZ.shape, dZ)
        W_T = made.W.swapaxes(-1, -2)
        for k in range(len(layout.refresh) - 1, -1, -1):
            after = pulled.ends[:, k]
            after[...] = dZ
            dF, dZ = pulled.both[:, k, height:], pulled.both[:, k, :height]
            dF += np.matmul(made.P[:, k], after, out=more)
            dZ -= np.matmul(W_T[:, k], dF, out=change)
            keep.backward(k, *(halves(x, d) for x in (after, dZ, change)))
            if pulled.references is not None:
                d_reference = d_reference + pulled.references[:, k]
            if layout.keeps_reference and layout.refresh[k]:
                dZ[:, :d] += d_reference
                d_reference = np.zeros_like(d_reference)
    return dZ, d_reference


def _at_the_end(made: Stacked, bars: Bars, pulled: _Pulled) -> tuple[Array, Array]:
    """Cotangents of the state after the last chunk, and of the reference there."""
    d = made.phi.shape[-1]
    given = [bars.M, bars.S][: made.rows.gates.bases]
    parts = [np.zeros_like(pulled.ends[:, 0, :d]) if x is None else x.swapaxes(-1, -2) for x in given]
    dZ: Array = np.concatenate(parts, axis=-2)
    return dZ, np.zeros_like(dZ[:, :d]) if bars.reference is None else bars.reference.swapaxes(-1, -2)


def _through_spans(layout: Layout, given: Arrays, made: Stacked, bars: Bars, pulled: _Pulled, into: Into) -> tuple[Array, Array, Array]:
    """Chunks in reverse under a reference that is known: one product a span for what its tokens have beyond it (CHUNK-16)."""
    C, h, d, height, keep = layout.chunk, layout.window - 1, made.phi.shape[-1], made.height, Keep.of(made)
    dZ, d_reference = _at_the_end(made, bars, pulled)
    arrivals: Array = None
    if layout.carry:
        arrivals = np.zeros_like(made.arrivals)
        if bars.residuals is not None:
            arrivals[:, -layout.window :] -= bars.residuals
    for first, last in reversed(runs(layout.refresh)):
        tokens, chunks = slice(first * C, last * C + h), slice(first, last)
        with scratch.frame():
            room = scratch.empty(dZ.shape, dZ)
            for k in range(last - 1, first - 1, -1):
                after = pulled.ends[:, k]
                after[...] = dZ
                dZ = pulled.both[:, k, :height]
                keep.backward(k, *(halves(x, d) for x in (after, dZ, room)))
            dF = pulled.both[:, chunks, height:]
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


def _through_ends(made: Stacked, pulled: _Pulled, summed: RowBars) -> None:
    """From the state after each chunk, Z' = keep Z + P^T F, to columns and coefficients."""
    nb, d, height = made.rows.gates.bases, made.phi.shape[-1], made.height
    states, ends, last = made.states()[:, :-1], pulled.ends, summed.D[-1, ..., 0, :]
    with scratch.frame():
        bars = scratch.zeros((*made.phi.shape[:-1], nb), ends)
        dP = scratch.product(made.beyond(), scratch.turned(ends))
        _from_side_by_side(dP, made.phi, left_rows(made.rows), pulled.phi, bars)
        last[..., nb:] += bars[..., 0]
        last[..., 0] += _dots(ends[..., :d, :], states[..., :d, :])
        if nb == 2:
            X_last = summed.X_last[..., 0, :]
            X_last[..., nb:] += bars[..., 1]
            last[..., 1] -= _dots(ends[..., :d, :], states[..., d:height, :])
            X_last[..., 1] += _dots(ends[..., d:, :], states[..., d:height, :])


def _dots(a: Array, b: Array) -> Array:
    return np.einsum("...do,...do->...", a, b)


def _through_system(layout: Layout, made: Stacked, pulled: _Pulled, summed: RowBars, into: Into) -> None:
    """From F = L^{-1} (V - [c' Phi | f' Phi] Z) to columns, values, coefficient rows, retain."""
    nb, rows, height = made.rows.gates.bases, made.rows, made.height
    before = before_rows(layout, rows.gates, rows.D)[:, :, 0]  # (B, g, K, bases + K)
    with scratch.frame():
        dV = scratch.product(made.inverse.swapaxes(-1, -2), pulled.both[..., height:, :])
        gathered(layout, dV, into.values)
        bar = scratch.product(np.negative(dV, out=dV), pulled.turned)
        d_before = scratch.empty(before.shape, bar)
        d_before[..., :nb] = 0.0
        _from_side_by_side(bar, made.phi, before[..., :nb], pulled.phi, d_before[..., :nb])
        dN = bar[..., height:]
        np.multiply(dN, made.keyed, out=d_before[..., nb:])
        d_keyed = np.multiply(dN, before[..., nb:], out=dN)
        pulled.phi[...] += scratch.product(d_keyed + d_keyed.swapaxes(-1, -2), made.phi)
        through_before(layout, rows, d_before[:, :, None], summed)
