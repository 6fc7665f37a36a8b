"""A group of chunks under the running reference, one gate for all columns: everything known of a chunk folded into four matrices.

    F  = L^{-1} V - W Z,      W = L^{-1} [diag(c') Phi | diag(f') Phi]
    Z' = keep Z + P^T F,      P = [diag(D_C) Phi | -diag(X_C) Phi]
    Y  = R [Z; F],            R = [diag(c) Psi | diag(f) Psi | A]

with F = -E, what values have beyond their predictions, and Z = [M^T; S^T] on top of each other. W, P and R need no state: they
are made for all chunks of the group at once, in threads, and so are the reads; from chunk to chunk there remain two products.
The same as `dual` up to rounding, which has gates per output dimension too.
Specified in specs/exact.md (EXACT-20) and specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from atlas_ref import cuda
from atlas_ref.backend import on_host
from atlas_ref.parallel.coefficients import Rows
from atlas_ref.parallel.dual import before_rows, read_rows, spread, spread_transposed
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.scratch import scratch
from atlas_ref.parallel.triangular import inverse_unit_lower
from atlas_ref.threads import in_threads
from atlas_ref.types import Array


class Stacked(NamedTuple):
    """What the forward pass of a group computes.

    Attributes:
        rows: gates and coefficient rows.
        phi (B, g, K, d), queries (B, g, C, d): views, or copies where windows do not share columns.
        keyed, scores (B, g, K or C, K): Phi Phi^T and Psi Phi^T; inverse (B, g, K, K): L^{-1}.
        W, P (B, g, K, bases d).
        R (B, g, C, bases d + K). scores and R are None where nothing is read, or reads meet the reference.
        both (B, g + 1, bases d + K, o): state before each chunk, and below it F of the chunk.
        own (B, g, bases), across (B, g, 1): c_C and n_C, -f_C; None without momentum.
        references (B, g, d, o): None where nothing refers to one. last_reference (B, d, o).
    """

    rows: Rows
    phi: Array
    queries: Array
    keyed: Array
    scores: Array
    inverse: Array
    W: Array
    P: Array
    R: Array
    both: Array
    own: Array
    across: Array
    references: Array = None
    last_reference: Array = None

    def of(self, memories: slice) -> Stacked:
        """The part of some memories, as views."""
        return Stacked(self.rows.of(memories), *(None if x is None else x[memories] for x in self[1:]))

    @property
    def height(self) -> int:
        """Rows of the state: bases d."""
        return int(self.W.shape[-1])

    def states(self) -> Array:
        """(B, g + 1, bases d, o)."""
        return self.both[..., : self.height, :]

    def beyond(self) -> Array:
        """F (B, g, K, o): minus the residuals."""
        return self.both[:, :-1, self.height :]


def takes(layout: Layout, rows: Rows) -> bool:
    """Whether a group is one of these: solved, with one gate for all columns of the memory, on the host.

    Where kernels can take it, `dual` walks over all chunks in one launch.
    """
    return layout.solved and rows.D.shape[-2] == 1 and on_host(rows.D) and not cuda.available_for(rows.D)


def forward(layout: Layout, given: Arrays, rows: Rows, shares: Sequence[slice], y: Array) -> Stacked:
    """Run a group; its reads go into y (B, n, o) (EXACT-20).

    Args:
        shares: memories that one thread takes.
    """
    made = _room(layout, given, rows)
    parts = [partial(_fold, layout, given, made), partial(_fold_reads, layout, given, made)]
    if len(shares) > 1:
        in_threads(parts)
    else:
        for part in parts:
            part()
    made = _walked(layout, given, made)
    if y is not None:
        _each(shares, lambda memories: _read(layout, made.of(memories), y[memories]))
    return made


def end(layout: Layout, made: Stacked) -> End:
    """The end of a group, in arrays of their own."""
    d = made.phi.shape[-1]
    M, S = (made.both[:, -1, base * d : base * d + d].swapaxes(-1, -2).copy() if base * d < made.height else None for base in range(2))
    reference = made.last_reference.swapaxes(-1, -2).copy() if layout.keeps_reference else None
    return End(M=M, S=S, reference=reference)


def _each(shares: Sequence[slice], work: Callable[[slice], None]) -> None:
    in_threads([partial(work, memories) for memories in shares])


def _room(layout: Layout, given: Arrays, rows: Rows) -> Stacked:
    """Arrays to fill, and the state at the start."""
    B, n, d = given.queries.shape
    C, K, nb, o = layout.chunk, layout.columns, rows.gates.bases, given.values.shape[-1]
    g = n // C
    lead, reads = (B, g), layout.read in ("after", "before")
    both = scratch.empty((B, g + 1, nb * d + K, o), rows.D)
    both[:, 0, :d] = given.M.swapaxes(-1, -2)
    if nb == 2:
        both[:, 0, d : 2 * d] = given.S.swapaxes(-1, -2)
    return Stacked(
        rows=rows,
        phi=spread(layout, given.keys),
        queries=given.queries.reshape(*lead, C, d),
        keyed=scratch.empty((*lead, K, K), both),
        scores=scratch.empty((*lead, C, K), both) if reads else None,
        inverse=scratch.empty((*lead, K, K), both),
        W=scratch.empty((*lead, K, nb * d), both),
        P=scratch.empty((*lead, K, nb * d), both),
        R=scratch.empty((*lead, C, nb * d + K), both) if reads else None,
        both=both,
        own=rows.D[-1, ..., 0] if nb == 1 else np.concatenate([rows.D[-1, ..., 0], rows.X[-1, ..., 1]], axis=-1),
        across=None if nb == 1 else -rows.D[-1, ..., 1],
        references=scratch.empty((*lead, d, o), both) if layout.keeps_reference else None,
    )


def side_by_side(x: Array, factors: Array, out: Array) -> None:
    """[c x | -f x] from rows x (..., rows, d) and factors (..., rows, bases) of M_0 and of -S_0."""
    d = x.shape[-1]
    np.multiply(x, factors[..., 0, None], out=out[..., :d])
    if factors.shape[-1] == 2:
        np.multiply(x, -factors[..., 1, None], out=out[..., d : 2 * d])


def left_rows(rows: Rows) -> Array:
    """(B, g, K, bases): D_C and X_C, the factors that make P of Phi."""
    nb = rows.gates.bases
    return np.stack([x[-1, ..., 0, nb:] for x in (rows.D, rows.X) if x is not None], axis=-1)


def _fold(layout: Layout, given: Arrays, made: Stacked) -> None:
    """The inverse, W, L^{-1} V where F will stand, and P."""
    nb, rows, d = made.rows.gates.bases, made.rows, made.phi.shape[-1]
    with scratch.frame():
        np.matmul(made.phi, spread_transposed(layout, given.keys), out=made.keyed)
        before = before_rows(layout, rows.gates, rows.D)[:, :, 0]  # (B, g, K, bases + K)
        made.inverse[...] = inverse_unit_lower(scratch.times(before[..., nb:], made.keyed))
        for base in range(nb):  # columns of the inverse are fewer than those of the keys
            taken = scratch.times(made.inverse, before[..., None, :, base] if base == 0 else -before[..., None, :, base])
            np.matmul(taken, made.phi, out=made.W[..., base * d : base * d + d])
        np.matmul(made.inverse, spread(layout, given.values), out=made.beyond())


def _fold_reads(layout: Layout, given: Arrays, made: Stacked) -> None:
    """P and R."""
    nb, rows = made.rows.gates.bases, made.rows
    side_by_side(made.phi, left_rows(rows), made.P)
    if made.R is None:
        return
    reading = read_rows(layout, rows.D)[:, :, 0]
    side_by_side(made.queries, reading[..., :nb], made.R)
    with scratch.frame():
        np.matmul(made.queries, spread_transposed(layout, given.keys), out=made.scores)
    np.multiply(reading[..., nb:], made.scores, out=made.R[..., made.height :])


def _walked(layout: Layout, given: Arrays, made: Stacked) -> Stacked:
    """From chunk to chunk: residuals, and the state after them (EXACT-20)."""
    _, g, _, d = made.phi.shape
    states, beyond = made.states(), made.beyond()
    reference = None if given.reference is None else given.reference.swapaxes(-1, -2)
    with scratch.frame():
        predicted, change = scratch.empty(beyond[:, 0].shape, beyond), scratch.empty(states[:, 0].shape, states)
        for k in range(g):
            before, after = states[:, k], states[:, k + 1]
            if layout.keeps_reference:
                reference = before[:, :d].copy() if layout.refresh[k] else reference
                made.references[:, k] = reference
            np.matmul(made.W[:, k], before, out=predicted)
            np.subtract(beyond[:, k], predicted, out=beyond[:, k])
            np.matmul(made.P[:, k].swapaxes(-1, -2), beyond[:, k], out=change)
            for base in range(made.own.shape[-1]):
                part = slice(base * d, base * d + d)
                np.multiply(before[:, part], made.own[:, k, base, None, None], out=after[:, part])
            after += change
            if made.across is not None:
                after[:, :d] += np.multiply(before[:, d:], made.across[:, k, :, None], out=change[:, d:])
    return made._replace(last_reference=reference)


def _read(layout: Layout, made: Stacked, y: Array) -> None:
    """Write y (B, n, o) of every token."""
    y = y.reshape(*made.queries.shape[:-1], -1)  # a view
    if layout.read == "reference":
        np.matmul(made.queries, made.references, out=y)
    else:
        np.matmul(made.R, made.both[:, :-1], out=y)
