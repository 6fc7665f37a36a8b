"""The backward pass of a folded group of chunks, by hand: what does not pass from chunk to chunk is done for all at once.

Here is what known and solved residuals share: from reads to queries, scores and coefficients, and from the state after each
chunk, Z' = keep Z + P^T F, to columns and coefficients. The equations are CHUNK-16 and EXACT-8 to EXACT-10.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.parallel.dual import read_rows
from atlas_ref.parallel.dual_backward import row_dots
from atlas_ref.parallel.dual_bars import Bars, Into, RowBars
from atlas_ref.parallel.group import Layout
from atlas_ref.parallel.stacked import Stacked, left_rows
from atlas_ref.scratch import scratch
from atlas_ref.types import Array


class Pulled(NamedTuple):
    """Cotangents while they are being added up.

    Attributes:
        phi (B, g, K, d).
        ends (B, g, bases d, o): of the state after each chunk.
        turned (B, g, o, bases d + K): [Z; F] itself, transposed: a product by the transpose of a matrix is half as fast.
        references (B, g, d, o): of the references that are read; None where none is.
    """

    phi: Array
    ends: Array
    turned: Array
    references: Array

    @classmethod
    def of(cls, made: Stacked, ends: Array) -> Pulled:
        """With room for what the columns get, and no references."""
        both = made.both[:, :-1]
        return cls(scratch.empty(made.phi.shape, ends), ends, scratch.turned(both), None)


def through_references(made: Stacked, y: Array, pulled: Pulled, into: Into) -> Pulled:
    """Where reads have no part in the chunk: from Y = Psi M_ref^T, or from nothing, to the queries and the references."""
    queries = into.queries.reshape(made.queries.shape)
    pulled.phi[...], queries[...] = 0.0, 0.0
    if y is None:
        return pulled
    g = y.reshape(*queries.shape[:-1], -1)
    np.matmul(g, scratch.turned(made.references), out=queries)
    return pulled._replace(references=scratch.product(made.queries.swapaxes(-1, -2), g))


def through_reads(layout: Layout, made: Stacked, dR: Array, pulled: Pulled, summed: RowBars, into: Into) -> None:
    """From R = [diag(c) Psi | diag(f) Psi | A] to the queries, scores and coefficient rows."""
    nb, queries = made.rows.gates.bases, into.queries.reshape(made.queries.shape)
    coefficients, bars = read_rows(layout, made.rows.D)[:, :, 0], read_rows(layout, summed.D)[:, :, 0]
    with scratch.frame():
        dA = dR[..., made.height :]
        np.multiply(dA, made.scores, out=bars[..., nb:])
        d_scores = scratch.times(dA, coefficients[..., nb:])
        np.matmul(d_scores, made.phi, out=queries)
        np.matmul(d_scores.swapaxes(-1, -2), made.queries, out=pulled.phi)
        from_side_by_side(dR, made.queries, coefficients[..., :nb], queries, bars[..., :nb])


def from_side_by_side(bar: Array, x: Array, factors: Array, out: Array, bars: Array) -> None:
    """Add what [c x | -f x] hands to x and to the factors."""
    d = x.shape[-1]
    with scratch.frame():
        part = scratch.empty(x.shape, bar)
        out += np.multiply(bar[..., :d], factors[..., 0, None], out=part)
        bars[..., 0] += row_dots(bar[..., :d], x)
        if factors.shape[-1] == 2:
            out -= np.multiply(bar[..., d : 2 * d], factors[..., 1, None], out=part)
            bars[..., 1] -= row_dots(bar[..., d : 2 * d], x)


def at_the_end(made: Stacked, bars: Bars) -> tuple[Array, Array]:
    """Cotangents of the state after the last chunk, and of the reference there."""
    first = made.both[:, 0, : made.phi.shape[-1]]
    given = [bars.M, bars.S][: made.rows.gates.bases]
    parts = [np.zeros_like(first) if x is None else x.swapaxes(-1, -2) for x in given]
    reference = np.zeros_like(first) if bars.reference is None else bars.reference.swapaxes(-1, -2)
    return np.concatenate(parts, axis=-2), reference


def through_ends(made: Stacked, pulled: Pulled, summed: RowBars) -> None:
    """From the state after each chunk, Z' = keep Z + P^T F, to columns and coefficients."""
    nb, d, height = made.rows.gates.bases, made.phi.shape[-1], made.height
    states, ends, last = made.states()[:, :-1], pulled.ends, summed.D[-1, ..., 0, :]
    with scratch.frame():
        bars = scratch.zeros((*made.phi.shape[:-1], nb), ends)
        dP = scratch.product(made.beyond(), scratch.turned(ends))
        from_side_by_side(dP, made.phi, left_rows(made.rows), pulled.phi, bars)
        last[..., nb:] += bars[..., 0]
        last[..., 0] += _dots(ends[..., :d, :], states[..., :d, :])
        if nb == 2:
            X_last = summed.X_last[..., 0, :]
            X_last[..., nb:] += bars[..., 1]
            last[..., 1] -= _dots(ends[..., :d, :], states[..., d:height, :])
            X_last[..., 1] += _dots(ends[..., d:, :], states[..., d:height, :])


def _dots(a: Array, b: Array) -> Array:
    return np.einsum("...do,...do->...", a, b)
