"""The intra-chunk backward, for all chunks at once; plain twin: the gradient of
`atlas_ref.forms.chunked_plain`.

For frozen and running references alike: from reads to queries, scores and coefficients, and from
the state after each chunk, Z' = keep Z + P^T F, to columns and coefficients. The equations are
CHUNK-16 and EXACT-8 to EXACT-10.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.folded.layout import Folded, left_rows
from atlas_ref.engine.group.cotangents import Cotangents, Into, RowCotangents
from atlas_ref.engine.group.layout import Layout
from atlas_ref.engine.masked.rows import read_rows, row_dots
from atlas_ref.types import Array


class CotangentSums(NamedTuple):
    """Sums of cotangents inside a group.

    Attributes:
        phi (B, g, K, d).
        ends (B, g, bases d, o): of the state after each chunk.
        transposed (B, g, o, bases d + K): [Z; F] itself, transposed: a product by the transpose of
        a matrix is half as fast.
        references (B, g, d, o): of the references that are read; None where none is.
    """

    phi: Array
    ends: Array
    transposed: Array
    references: Array

    @classmethod
    def of(cls, folded: Folded, ends: Array) -> CotangentSums:
        """Sums with room for the columns, and no references."""
        both = folded.both[:, :-1]
        return cls(scratch.empty(folded.phi.shape, ends), ends, scratch.transposed(both), None)


def through_references(folded: Folded, y: Array, sums: CotangentSums, into: Into) -> CotangentSums:
    """From reads of the reference, Y = Psi M_ref^T, or from no reads, to queries and references."""
    queries = into.queries.reshape(folded.queries.shape)
    sums.phi[...], queries[...] = 0.0, 0.0
    if y is None:
        return sums
    g = y.reshape(*queries.shape[:-1], -1)
    np.matmul(g, scratch.transposed(folded.references), out=queries)
    return sums._replace(references=scratch.product(folded.queries.swapaxes(-1, -2), g))


def through_reads(
    layout: Layout,
    folded: Folded,
    dR: Array,
    sums: CotangentSums,
    d_rows: RowCotangents,
    into: Into,
) -> None:
    """From R = [diag(c) Psi | diag(f) Psi | A] to the queries, scores and coefficient rows."""
    nb, queries = folded.rows.gates.bases, into.queries.reshape(folded.queries.shape)
    coefficients, d_coefficients = (
        read_rows(layout, folded.rows.D)[:, :, 0],
        read_rows(layout, d_rows.D)[:, :, 0],
    )
    with scratch.frame():
        dA = dR[..., folded.height :]
        np.multiply(dA, folded.scores, out=d_coefficients[..., nb:])
        d_scores = scratch.times(dA, coefficients[..., nb:])
        np.matmul(d_scores, folded.phi, out=queries)
        np.matmul(d_scores.swapaxes(-1, -2), folded.queries, out=sums.phi)
        from_side_by_side(
            dR, folded.queries, coefficients[..., :nb], queries, d_coefficients[..., :nb]
        )


def from_side_by_side(
    cotangent: Array, x: Array, factors: Array, out: Array, d_factors: Array
) -> None:
    """Add the cotangents of x and of the factors in [c x | -f x]."""
    d = x.shape[-1]
    with scratch.frame():
        part = scratch.empty(x.shape, cotangent)
        out += np.multiply(cotangent[..., :d], factors[..., 0, None], out=part)
        d_factors[..., 0] += row_dots(cotangent[..., :d], x)
        if factors.shape[-1] == 2:
            out -= np.multiply(cotangent[..., d : 2 * d], factors[..., 1, None], out=part)
            d_factors[..., 1] -= row_dots(cotangent[..., d : 2 * d], x)


def at_the_end(folded: Folded, cotangents: Cotangents) -> tuple[Array, Array]:
    """Cotangents of the state after the last chunk, and of the reference there."""
    first = folded.both[:, 0, : folded.phi.shape[-1]]
    of_states = [cotangents.M, cotangents.S][: folded.rows.gates.bases]
    parts = [np.zeros_like(first) if x is None else x.swapaxes(-1, -2) for x in of_states]
    reference = (
        np.zeros_like(first)
        if cotangents.reference is None
        else cotangents.reference.swapaxes(-1, -2)
    )
    return np.concatenate(parts, axis=-2), reference


def through_ends(folded: Folded, sums: CotangentSums, d_rows: RowCotangents) -> None:
    """From the state after each chunk, Z' = keep Z + P^T F, to columns and coefficients."""
    nb, d, height = folded.rows.gates.bases, folded.phi.shape[-1], folded.height
    states, ends, last = folded.states()[:, :-1], sums.ends, d_rows.D[-1, ..., 0, :]
    with scratch.frame():
        d_factors = scratch.zeros((*folded.phi.shape[:-1], nb), ends)
        dP = scratch.product(folded.beyond(), scratch.transposed(ends))
        from_side_by_side(dP, folded.phi, left_rows(folded.rows), sums.phi, d_factors)
        last[..., nb:] += d_factors[..., 0]
        last[..., 0] += _dots(ends[..., :d, :], states[..., :d, :])
        if nb == 2:
            X_last = d_rows.X_last[..., 0, :]
            X_last[..., nb:] += d_factors[..., 1]
            last[..., 1] -= _dots(ends[..., :d, :], states[..., d:height, :])
            X_last[..., 1] += _dots(ends[..., d:, :], states[..., d:height, :])


def _dots(a: Array, b: Array) -> Array:
    return np.einsum("...do,...do->...", a, b)
