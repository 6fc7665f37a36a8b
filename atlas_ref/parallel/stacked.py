"""A group of chunks with one gate for all columns: everything known of a chunk folded into matrices.

    Z' = keep Z + P^T F,      P = [diag(D_C) Phi | -diag(X_C) Phi]
    Y  = R [Z; F],            R = [diag(c) Psi | diag(f) Psi | A]

with F = -E, what values have beyond their predictions, and Z = [M^T; S^T] on top of each other. Under a reference that is
known, F = V - Phi M_ref^T for all chunks of a span at once; under the running one

    F  = L^{-1} V - W Z,      W = L^{-1} [diag(c') Phi | diag(f') Phi]

W, P and R need no state: they are made for all chunks of the group at once, and so are the reads; from chunk to chunk there
remain two products, or none. A thread does all of it for its memories. The same as `dual` up to rounding,
which has gates per output dimension too.
Specified in specs/exact.md (EXACT-20) and specs/chunkwise.md (CHUNK-15, CHUNK-30).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from atlas_ref import cuda
from atlas_ref.backend import on_host
from atlas_ref.parallel.coefficients import Rows
from atlas_ref.parallel.dual import before_rows, read_rows, runs, spread, spread_transposed
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
        scores (B, g, C, K): Psi Phi^T. P (B, g, K, bases d).
        keyed, inverse (B, g, K, K): Phi Phi^T and L^{-1}; W (B, g, K, bases d). None where nothing is solved.
        R (B, g, C, bases d + K). scores and R are None where nothing is read, or reads meet the reference.
        both (B, g + 1, bases d + K, o): state before each chunk, and below it F of the chunk.
        references (B, g, d, o): None where nothing refers to one. last_reference (B, d, o).
        arrivals (B, h + n, o): under carry, F of each token when it came.
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
    references: Array = None
    last_reference: Array = None
    arrivals: Array = None

    def of(self, memories: slice) -> Stacked:
        """The part of some memories, as views."""
        return Stacked(self.rows.of(memories), *(None if x is None else x[memories] for x in self[1:]))

    @property
    def height(self) -> int:
        """Rows of the state: bases d."""
        return int(self.P.shape[-1])

    def states(self) -> Array:
        """(B, g + 1, bases d, o)."""
        return self.both[..., : self.height, :]

    def beyond(self) -> Array:
        """F (B, g, K, o): minus the residuals."""
        return self.both[:, :-1, self.height :]


def takes(layout: Layout, rows: Rows) -> bool:
    """Whether a group is one of these: one gate for all columns of the memory, on the host.

    Where kernels can take it, `dual` walks over all chunks in one launch.
    """
    return rows.D.shape[-2] == 1 and on_host(rows.D) and not cuda.available_for(rows.D)


def forward(layout: Layout, given: Arrays, rows: Rows, shares: Sequence[slice], y: Array) -> Stacked:
    """Run a group; its reads go into y (B, n, o) (CHUNK-30, EXACT-20).

    Args:
        shares: memories that one thread takes.
    """
    made = _room(layout, given, rows)

    def some(memories: slice) -> None:
        part, of_given = made.of(memories), given.of(memories)
        _fold(layout, of_given, part)
        (_walk if layout.solved else _span_by_span)(layout, of_given, part)
        if y is not None:
            _read(layout, part, y[memories])

    in_threads([partial(some, memories) for memories in shares])
    return made


def end(layout: Layout, made: Stacked) -> End:
    """The end of a group, in arrays of their own."""
    d = made.phi.shape[-1]
    M, S = (made.both[:, -1, base * d : base * d + d].swapaxes(-1, -2).copy() if base * d < made.height else None for base in range(2))
    reference = made.last_reference.swapaxes(-1, -2).copy() if layout.keeps_reference else None
    residuals = -made.arrivals[:, -layout.window :] if layout.carry else None
    return End(M=M, S=S, reference=reference, residuals=residuals)


def _room(layout: Layout, given: Arrays, rows: Rows) -> Stacked:
    """Arrays to fill, and the state at the start."""
    B, n, d = given.queries.shape
    C, K, nb, o = layout.chunk, layout.columns, rows.gates.bases, given.values.shape[-1]
    lead, reads = (B, n // C), layout.read in ("after", "before")
    both = scratch.empty((B, n // C + 1, nb * d + K, o), given.keys)

    def room(wanted: bool, *shape: int) -> Array:
        return scratch.empty(shape, both) if wanted else None

    last = room(layout.keeps_reference, B, d, o)
    one = layout.keeps_reference and not any(layout.refresh[1:])
    both[:, 0, :d] = given.M.swapaxes(-1, -2)
    if nb == 2:
        both[:, 0, d : 2 * d] = given.S.swapaxes(-1, -2)
    return Stacked(
        rows=rows,
        phi=spread(layout, given.keys),
        queries=given.queries.reshape(*lead, C, d),
        keyed=room(layout.solved, *lead, K, K),
        scores=room(reads, *lead, C, K),
        inverse=room(layout.solved, *lead, K, K),
        W=room(layout.solved, *lead, K, nb * d),
        P=room(True, *lead, K, nb * d),
        R=room(reads, *lead, C, nb * d + K),
        both=both,
        references=_one_for_all(last, lead[1]) if one else room(layout.keeps_reference, *lead, d, o),
        last_reference=last,
        arrivals=room(layout.carry, *given.values.shape),
    )


def halves(states: Array, d: int) -> Array:
    """(..., bases d, o) as (..., bases, d, o), memory and momentum apart: a view, since an axis is only split."""
    return states.reshape(*states.shape[:-2], -1, d, states.shape[-1])


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


def _one_for_all(reference: Array, chunks: int) -> Array:
    """The reference of every chunk where no span starts inside of a group: a view."""
    return np.broadcast_to(reference[:, None], (len(reference), chunks, *reference.shape[1:]))


def _fold(layout: Layout, given: Arrays, made: Stacked) -> None:
    """P and R; where residuals are solved, the inverse, W, and L^{-1} V where F will stand."""
    nb, rows, d = made.rows.gates.bases, made.rows, made.phi.shape[-1]
    with scratch.frame():
        phi_T = spread_transposed(layout, given.keys)
        if made.R is not None:
            np.matmul(made.queries, phi_T, out=made.scores)
        if layout.solved:
            np.matmul(made.phi, phi_T, out=made.keyed)
    side_by_side(made.phi, left_rows(rows), made.P)
    if made.R is not None:
        reading = read_rows(layout, rows.D)[:, :, 0]
        side_by_side(made.queries, reading[..., :nb], made.R)
        np.multiply(reading[..., nb:], made.scores, out=made.R[..., made.height :])
    if not layout.solved:
        return
    with scratch.frame():
        before = before_rows(layout, rows.gates, rows.D)[:, :, 0]  # (B, g, K, bases + K)
        made.inverse[...] = inverse_unit_lower(scratch.times(before[..., nb:], made.keyed))
        for base in range(nb):  # columns of the inverse are fewer than those of the keys
            taken = scratch.times(made.inverse, before[..., None, :, base] if base == 0 else -before[..., None, :, base])
            np.matmul(taken, made.phi, out=made.W[..., base * d : base * d + d])
        np.matmul(made.inverse, spread(layout, given.values), out=made.beyond())


def _walk(layout: Layout, given: Arrays, made: Stacked) -> None:
    """From chunk to chunk: residuals, and the state after them (EXACT-20)."""
    states, beyond, keep = halves(made.states(), made.phi.shape[-1]), made.beyond(), Keep.of(made)
    reference = _first_reference(layout, given, made)
    with scratch.frame():
        predicted, change = scratch.empty(beyond[:, 0].shape, beyond), scratch.empty(states[:, 0].shape, states)
        room = change.reshape(len(change), made.height, -1)
        P_T = made.P.swapaxes(-1, -2)
        for k, refresh in enumerate(layout.refresh):
            F, before = beyond[:, k], states[:, k]
            if layout.keeps_reference:
                if refresh:
                    reference[...] = before[:, 0]
                if made.references.flags.writeable:
                    made.references[:, k] = reference
            np.matmul(made.W[:, k], made.both[:, k, : made.height], out=predicted)
            np.subtract(F, predicted, out=F)
            np.matmul(P_T[:, k], F, out=room)
            keep.forward(k, before, change, states[:, k + 1])


def _first_reference(layout: Layout, given: Arrays, made: Stacked) -> Array:
    """Where the reference stands that holds now: at first that which was given."""
    if layout.keeps_reference:
        made.last_reference[...] = given.reference.swapaxes(-1, -2)
    return made.last_reference


class Keep(NamedTuple):
    """What a state keeps over each chunk, [c_C M + f_C S; n_C S], as factors.

    Attributes:
        own (B, g, bases, 1, 1): c_C and n_C. across (B, g, 1, 1): -f_C; None without momentum.
    """

    own: Array
    across: Array

    @classmethod
    def of(cls, made: Stacked) -> Keep:
        """The factors of a group, out of its last coefficient rows."""
        D, X = made.rows.D[-1, :, :, 0], None if made.rows.X is None else made.rows.X[-1, :, :, 0]
        if X is None:
            return cls(D[..., :1, None, None], None)
        return cls(np.stack([D[..., 0], X[..., 1]], axis=-1)[..., None, None], D[..., 1, None, None])

    def forward(self, k: int, before: Array, change: Array, after: Array) -> None:
        """The state after chunk k (B, bases, d, o) from that before it and what the chunk adds, which is overwritten."""
        np.multiply(before, self.own[:, k], out=after)
        after += change
        if self.across is not None:
            after[:, 0] -= np.multiply(before[:, 1], self.across[:, k], out=change[:, 1])

    def backward(self, k: int, after: Array, before: Array, room: Array) -> None:
        """Add to the cotangent of the state before chunk k what that after it asks; `room` is overwritten."""
        before += np.multiply(after, self.own[:, k], out=room)
        if self.across is not None:
            before[:, 1] -= np.multiply(after[:, 0], self.across[:, k], out=room[:, 0])


def older(layout: Layout, first: int) -> int:
    """How many tokens of the window before a run of chunks under one reference belong to older spans (WINDOW-13)."""
    h = layout.window - 1
    return h - min(h, layout.position if first == 0 else 0)


def _span_by_span(layout: Layout, given: Arrays, made: Stacked) -> None:
    """Under a reference that is known: F of all tokens of a span at once, then the states (CHUNK-6, CHUNK-8, CHUNK-9, CHUNK-30)."""
    C, h = layout.chunk, layout.window - 1
    states, beyond, arrivals, keep = halves(made.states(), made.phi.shape[-1]), made.beyond(), made.arrivals, Keep.of(made)
    reference = _first_reference(layout, given, made)
    if layout.carry:
        np.negative(given.residuals, out=arrivals[:, :h])
    for first, last in runs(layout.refresh):
        tokens, chunks = slice(first * C, last * C + h), slice(first, last)
        if layout.keeps_reference:
            if layout.refresh[first]:
                reference[...] = states[:, first, 0]
            if made.references.flags.writeable:
                made.references[:, chunks] = reference[:, None]
        with scratch.frame():
            rows = given.values[:, tokens]
            if layout.reference == "frozen":
                predicted = scratch.product(given.keys[:, tokens], reference)
                rows = np.subtract(rows, predicted, out=predicted)
            if layout.carry:
                count = older(layout, first)
                rows[:, :count] = arrivals[:, first * C : first * C + count]
                arrivals[:, tokens.start + h : tokens.stop] = rows[:, h:]
            beyond[:, chunks] = spread(layout, rows)
            change = scratch.product(made.P[:, chunks].swapaxes(-1, -2), beyond[:, chunks])
            change = halves(change, made.phi.shape[-1])
            for k in range(first, last):
                keep.forward(k, states[:, k], change[:, k - first], states[:, k + 1])


def _read(layout: Layout, made: Stacked, y: Array) -> None:
    """Write y (B, n, o) of every token."""
    y = y.reshape(*made.queries.shape[:-1], -1)  # a view
    if layout.read == "reference":
        np.matmul(made.queries, made.references, out=y)
    else:
        np.matmul(made.R, made.both[:, :-1], out=y)
