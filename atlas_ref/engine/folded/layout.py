"""A group of chunks folded into matrices, with one gate for all columns; plain twin:
`atlas_ref.forms.chunked_plain`.

    Z = [M^T; S^T] on top of each other,      Z' = keep Z + P^T F,      P = [diag(D_C) Phi | -diag(X_C) Phi]

with F = -E, values less their predictions. None of the matrices needs a state: they are computed
for all chunks of the group at once. The inter-chunk loop depends on the reference: `folded.frozen`
or `folded.running`. The same as `masked.forward` up to rounding, which has gates per output
dimension too. Specified in specs/exact.md (EXACT-20) and specs/chunkwise.md (CHUNK-15, CHUNK-30).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.engine import cuda
from atlas_ref.engine.group.coefficients import Rows
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.types import Array


class Folded(NamedTuple):
    """The arrays of a folded group.

    Attributes:
        rows: gates and coefficient rows.
        phi (B, g, K, d), queries (B, g, C, d): views, or copies where windows do not share columns.
        scores (B, g, C, K): Psi Phi^T; None where nothing is read, or reads meet the reference.
        both (B, g + 1, bases d + K, o): state before each chunk, and below it F of the chunk. Where
        a group under the running
            reference is not kept for backward, chunks alternate between two places, (B, 2, ...).
        P (B, g, K, bases d). R (B, g, C, bases d + K): factors of `both` in the reads; None without
        scores. keyed, inverse (B, g, K, K), ask (B, g, K + C, bases d): Phi Phi^T, L^{-1}, and the
        factors of a state in the columns and the
            reads, under the running reference; without scores ask has no rows for reads.
        references (B, g, d, o): None where nothing refers to one. last_reference (B, d, o).
        arrivals (B, h + n, o): under carry, F of each token when it came.
    """

    rows: Rows
    phi: Array
    queries: Array
    scores: Array
    both: Array
    P: Array
    R: Array = None
    keyed: Array = None
    inverse: Array = None
    ask: Array = None
    references: Array = None
    last_reference: Array = None
    arrivals: Array = None

    def of(self, memories: slice) -> Folded:
        """The arrays of some memories, as views."""
        return Folded(
            self.rows.of(memories), *(None if x is None else x[memories] for x in self[1:])
        )

    @property
    def height(self) -> int:
        """Rows of the state: bases d."""
        return int(self.rows.gates.bases * self.phi.shape[-1])

    @property
    def A(self) -> Array:
        """Factors of F in the reads (B, g, C, K): a part of R."""
        return self.R[..., self.height :]

    @property
    def reads(self) -> int:
        """Number of rows of a chunk that read a state: its tokens, or none."""
        return 0 if self.scores is None else int(self.scores.shape[-2])

    def states(self) -> Array:
        """(B, g + 1, bases d, o)."""
        return self.both[..., : self.height, :]

    def beyond(self) -> Array:
        """F (B, g, K, o): minus the residuals."""
        return self.both[:, :-1, self.height :]

    def last(self) -> Array:
        """The state after the last chunk (B, bases d, o)."""
        return self.both[:, self.phi.shape[1] % self.both.shape[1], : self.height]


def takes(layout: Layout, rows: Rows) -> bool:
    """Whether a group can be folded: one gate for all columns of the memory, on the host.

    Where kernels can take it, `masked.forward` runs all chunks in one launch.
    """
    return rows.D.shape[-2] == 1 and on_host(rows.D) and not cuda.available_for(rows.D)


def end(layout: Layout, folded: Folded) -> End:
    """The end of a group, copied from its work space."""
    d, last = folded.phi.shape[-1], folded.last()
    M, S = (
        last[:, base * d : base * d + d].swapaxes(-1, -2).copy()
        if base * d < folded.height
        else None
        for base in range(2)
    )
    reference = folded.last_reference.swapaxes(-1, -2).copy() if layout.keeps_reference else None
    residuals = -folded.arrivals[:, -layout.window :] if layout.carry else None
    return End(M=M, S=S, reference=reference, residuals=residuals)


def by_chunk(first: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """Views of arrays (B, chunks, ...) by chunk, made before the inter-chunk loop; None stays None.

    Inter-chunk loops on several threads contend for the GIL, so as little Python as possible
    remains inside.
    """
    return zip(
        *(
            [None] * first.shape[1] if x is None else list(x.swapaxes(0, 1))
            for x in (first, *others)
        ),
        strict=True,
    )


class Halves(NamedTuple):
    """Views of states (..., bases d, o) with memory and momentum as one row each.

    Attributes:
        whole (..., bases, d o), memory (..., 1, d o), momentum (..., bases - 1, d o).
    """

    whole: Array
    memory: Array
    momentum: Array

    @classmethod
    def of(cls, states: Array, d: int) -> Halves:
        """The views of some states."""
        rows = states.reshape(*states.shape[:-2], -1, d * states.shape[-1])
        return cls(rows, rows[..., :1, :], rows[..., 1:, :])

    @classmethod
    def of_each(cls, states: Array, d: int) -> list[Halves]:
        """The views of states (B, chunks, bases d, o), chunk after chunk."""
        return [cls(*views) for views in by_chunk(*cls.of(states, d))]


def side_by_side(x: Array, factors: Array, out: Array) -> None:
    """[c x | -f x] into `out`, from rows x (..., rows, d) and factors (..., rows, bases)."""
    d = x.shape[-1]
    np.multiply(x, factors[..., 0, None], out=out[..., :d])
    if factors.shape[-1] == 2:
        np.multiply(x, -factors[..., 1, None], out=out[..., d : 2 * d])


def left_rows(rows: Rows) -> Array:
    """(B, g, K, bases): D_C and X_C, the factors that make P of Phi."""
    nb = rows.gates.bases
    return np.stack([x[-1, ..., 0, nb:] for x in (rows.D, rows.X) if x is not None], axis=-1)


def first_reference(layout: Layout, inputs: Arrays, folded: Folded) -> Array:
    """An array for the current reference, filled with that of the arguments."""
    if layout.keeps_reference:
        folded.last_reference[...] = inputs.reference.swapaxes(-1, -2)
    return folded.last_reference


def _nothing_forgotten(c: Array) -> bool:
    """Whether every memory keeps all of itself over every chunk: a factor of 1 is left out."""
    return bool(np.all(c == 1.0))


class Keep(NamedTuple):
    """The rest of a state after a chunk: c_C M + f_C S and n_C S, or c_C M alone.

    A product of two rows, [c_C f_C] [M; S], makes one pass over the state of three. No product has
    a factor that is 0 by definition: it would make of an M that has overflowed an S that is no
    number.

    Attributes:
        c, n (B, 1, 1), forth [c_C f_C], back [f_C n_C] (B, 1, 2); all but c None without momentum,
        and c too where nothing is
            forgotten.
    """

    c: Array = None
    n: Array = None
    forth: Array = None
    back: Array = None

    @classmethod
    def of_each(cls, folded: Folded) -> list[Keep]:
        """The factors of each chunk of a group, from its last coefficient rows."""
        D, X = (
            folded.rows.D[-1, :, :, 0],
            None if folded.rows.X is None else folded.rows.X[-1, :, :, 0],
        )
        c = D[..., :1, None]
        if X is None:
            return (
                [cls()] * len(c[0])
                if _nothing_forgotten(c)
                else [cls(*views) for views in by_chunk(c)]
            )
        c_C, f_C, n_C = D[..., 0], -D[..., 1], X[..., 1]
        forth, back = (np.stack(pair, axis=-1)[..., None, :] for pair in ((c_C, f_C), (f_C, n_C)))
        return [cls(*views) for views in by_chunk(c, n_C[..., None, None], forth, back)]

    def forward(self, before: Halves, change: Array, after: Halves) -> None:
        """The state after a chunk from that before it and its change (B, bases, d o)."""
        if self.c is None:
            np.add(before.whole, change, out=after.whole)
            return
        if self.n is None:
            np.multiply(before.whole, self.c, out=after.whole)
        else:
            np.matmul(self.forth, before.whole, out=after.memory)
            np.multiply(before.momentum, self.n, out=after.momentum)
        np.add(after.whole, change, out=after.whole)

    def backward(self, after: Halves, before: Array, room: Halves) -> None:
        """Add to the cotangent of the state before a chunk (B, bases, d o) from that after it,
        through `room`.
        """
        if self.c is None:
            np.add(before, after.whole, out=before)
            return
        np.multiply(after.memory, self.c, out=room.memory)
        if self.n is not None:
            np.matmul(self.back, after.whole, out=room.momentum)
        np.add(before, room.whole, out=before)
