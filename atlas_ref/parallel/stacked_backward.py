"""The backward pass of `stacked`, by hand: again all but two products a chunk is done for all chunks at once.

    R^T y_bar              cotangents of Z and of F from the reads,       y_bar [Z; F]^T  that of R
    F_bar += P Z'_bar,     Z_bar += keep^T Z'_bar - W^T F_bar             from chunk to chunk, in reverse
    V_bar = L^{-T} F_bar,  -V_bar [Z; F]^T                                cotangents of [c' Phi | f' Phi] and of L

The equations are CHUNK-16 and EXACT-8 to EXACT-10.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from atlas_ref.parallel.dual import before_rows, gathered, read_rows
from atlas_ref.parallel.dual_backward import row_dots, through_before
from atlas_ref.parallel.dual_bars import Bars, Into, RowBars
from atlas_ref.parallel.group import End, Layout
from atlas_ref.parallel.scratch import scratch
from atlas_ref.parallel.stacked import Stacked, left_rows
from atlas_ref.threads import in_threads
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

    def of(self, memories: slice) -> _Pulled:
        """Those of some memories, as views."""
        return _Pulled(*(None if x is None else x[memories] for x in self))


def backward(layout: Layout, made: Stacked, bars: Bars, summed: RowBars, into: Into, shares: Sequence[slice]) -> End:
    """Cotangents of what a group began with; those of tokens and of coefficient rows go into `into` and `summed`.

    Args:
        shares: memories that one thread takes.
    """
    states = made.states()
    pulled = _Pulled(
        phi=scratch.empty(made.phi.shape, states),
        both=scratch.empty(made.both[:, 1:].shape, states),
        ends=scratch.empty(states[:, 1:].shape, states),
        turned=scratch.empty((*made.phi.shape[:2], *made.both.shape[:1:-1]), states),
        references=scratch.empty(made.references.shape, states) if layout.read == "reference" and bars.y is not None else None,
    )

    def reads(memories: slice) -> None:
        y = None if bars.y is None else bars.y[memories]
        _through_reads(layout, made.of(memories), y, pulled.of(memories), summed.of(memories), into.of(memories))

    def rest(memories: slice) -> None:
        part, of_part = made.of(memories), pulled.of(memories)
        _through_ends(part, of_part, summed.of(memories))
        _through_system(layout, part, of_part, summed.of(memories), into.of(memories))
        gathered(layout, of_part.phi, into.of(memories).keys)

    in_threads([partial(reads, memories) for memories in shares])
    first, reference = _through_chunks(layout, made, bars, pulled)
    in_threads([partial(rest, memories) for memories in shares])
    d = made.phi.shape[-1]
    M, S = (first[:, base * d : base * d + d].swapaxes(-1, -2).copy() if base * d < made.height else None for base in range(2))
    return End(M=M, S=S, reference=reference.swapaxes(-1, -2) if layout.keeps_reference else None)


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
    d, height = made.phi.shape[-1], made.height
    given = [bars.M, bars.S][: made.rows.gates.bases]
    parts = [np.zeros_like(pulled.ends[:, 0, :d]) if x is None else x.swapaxes(-1, -2) for x in given]
    dZ = np.concatenate(parts, axis=-2)
    d_reference = np.zeros_like(dZ[:, :d]) if bars.reference is None else bars.reference.swapaxes(-1, -2)
    with scratch.frame():
        more, change = scratch.empty(pulled.both[:, 0, height:].shape, dZ), scratch.empty(dZ.shape, dZ)
        for k in range(len(layout.refresh) - 1, -1, -1):
            after = pulled.ends[:, k]
            after[...] = dZ
            dF, dZ = pulled.both[:, k, height:], pulled.both[:, k, :height]
            dF += np.matmul(made.P[:, k], after, out=more)
            dZ -= np.matmul(made.W[:, k].swapaxes(-1, -2), dF, out=change)
            for base in range(made.own.shape[-1]):
                part = slice(base * d, base * d + d)
                dZ[:, part] += np.multiply(after[:, part], made.own[:, k, base, None, None], out=change[:, part])
            if made.across is not None:
                dZ[:, d:] += np.multiply(after[:, :d], made.across[:, k, :, None], out=change[:, d:])
            if pulled.references is not None:
                d_reference = d_reference + pulled.references[:, k]
            if layout.keeps_reference and layout.refresh[k]:
                dZ[:, :d] += d_reference
                d_reference = np.zeros_like(d_reference)
    return dZ, d_reference


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
