"""Run a folded group of chunks: room for it, then every thread folds its memories and walks over the chunks.

Where the products of a walk are short, threads that walk at the same time may spend it waiting for each other: each comes back to
Python after every one of them, and one thread at a time runs Python. There all threads fold, and then all or fewer walk, as is
faster on this machine.

Specified in specs/chunkwise.md (CHUNK-15, CHUNK-30) and specs/exact.md (EXACT-20).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from atlas_ref.fastest import Fastest
from atlas_ref.parallel import stacked_known, stacked_solved
from atlas_ref.parallel.coefficients import Rows
from atlas_ref.parallel.dual import spread
from atlas_ref.parallel.group import Arrays, Layout
from atlas_ref.parallel.joins import Joins
from atlas_ref.parallel.stacked import Stacked
from atlas_ref.scratch import scratch
from atlas_ref.threads import in_threads, one_each, slices
from atlas_ref.types import Array

#: Multiply-adds that the columns and the reads of a chunk take of a state, below which a second walk may cost more than it saves.
WALK_WORK = 2**21

_fastest = Fastest()


def forward(layout: Layout, given: Arrays, joins: Joins, rows: Rows, shares: Sequence[slice], y: Array, *, keeps: bool) -> Stacked:
    """Run a group; its reads go into y (B, n, o), unless it is None (CHUNK-30, EXACT-20).

    Args:
        joins: arrays of `given` that are still to be filled.
        shares: memories that one thread takes.
        keeps: whether every state stays, as the sweep back needs them.
    """
    task = (layout.chunk, given.queries.shape, given.values.shape, given.values.dtype, rows.gates.bases, keeps, y is None)
    with _fastest.of(_walkers(layout, given, rows, len(shares)), task) as walkers:
        return _forward(layout, given, joins, rows, shares, y, keeps=keeps, walkers=walkers)


def _forward(
    layout: Layout, given: Arrays, joins: Joins, rows: Rows, shares: Sequence[slice], y: Array, *, keeps: bool, walkers: int
) -> Stacked:
    """The same, with so many threads that walk."""
    views = layout.stride == 1  # of columns that tokens share; others are copied out of their windows
    if not views or walkers < len(shares):
        joins.fill(slice(None))
    made = _room(layout, given, rows, keeps or not layout.solved)
    if walkers < len(shares):
        _fold_then_walk(layout, given, made, y, len(shares), walkers)
        return made

    def some(memories: slice) -> None:
        if views:
            joins.fill(memories)
        part, of_given, reads = made.of(memories), given.of(memories), None if y is None else y[memories]
        if layout.solved:
            stacked_solved.fold(layout, of_given, part)
            stacked_solved.walk(layout, of_given, part, reads)
            return
        stacked_known.fold(layout, of_given, part)
        stacked_known.walk(layout, of_given, part)
        if reads is not None:
            stacked_known.read(layout, part, reads)

    in_threads([partial(some, memories) for memories in shares])
    return made


def _walkers(layout: Layout, given: Arrays, rows: Rows, threads: int) -> Sequence[int]:
    """How many threads may walk: all, and where products are short, as many as are sure to have enough to do."""
    if not layout.solved:
        return (threads,)
    B, _, d = given.queries.shape
    asked = B * (layout.columns + layout.chunk) * rows.gates.bases * d * given.values.shape[-1]
    sure = max(1, min(threads, int(asked) // WALK_WORK))
    return (sure, threads) if sure < threads else (threads,)


def _fold_then_walk(layout: Layout, given: Arrays, made: Stacked, y: Array, threads: int, walkers: int) -> None:
    """The parts of a fold on all threads, two for the same memories, then the walk on fewer threads."""

    def walk(memories: slice) -> None:
        stacked_solved.walk(layout, given.of(memories), made.of(memories), None if y is None else y[memories])

    B = len(given.queries)
    parts = [
        partial(stacked_solved.fold, layout, given.of(memories), made.of(memories), [part])
        for memories in slices(B, max(1, threads // len(stacked_solved.PARTS)))
        for part in stacked_solved.PARTS
    ]
    with one_each():
        in_threads(parts)
        in_threads([partial(walk, memories) for memories in slices(B, walkers)])


def _room(layout: Layout, given: Arrays, rows: Rows, keeps: bool) -> Stacked:
    """Arrays to fill, and the state at the start."""
    B, n, d = given.queries.shape
    C, K, nb, o = layout.chunk, layout.columns, rows.gates.bases, given.values.shape[-1]
    lead, solved = (B, n // C), layout.solved
    both = scratch.empty((B, n // C + 1 if keeps else 2, nb * d + K, o), given.keys)

    def room(wanted: bool, *shape: int) -> Array:
        return scratch.empty(shape, both) if wanted else None

    reads = C if layout.read in ("after", "before") else 0
    height = nb * d
    folded = room(solved, *lead, K + reads, height + K)  # [G | L^{-1}] above [what reads ask | A]
    ask, inverse, R = (folded[..., :height], folded[:, :, :K, height:], folded[:, :, K:]) if solved else (None, None, None)
    last = room(layout.keeps_reference, B, d, o)
    one = layout.keeps_reference and not any(layout.refresh[1:])
    both[:, 0, :d] = given.M.swapaxes(-1, -2)
    if nb == 2:
        both[:, 0, d : 2 * d] = given.S.swapaxes(-1, -2)
    return Stacked(
        rows=rows,
        phi=spread(layout, given.keys),
        queries=given.queries.reshape(*lead, C, d),
        scores=room(reads > 0, *lead, C, K),
        both=both,
        P=room(True, *lead, K, height),
        R=(R if solved else room(True, *lead, C, height + K)) if reads else None,
        keyed=room(solved, *lead, K, K),
        inverse=inverse,
        ask=ask,
        references=_one_for_all(last, lead[1]) if one else room(layout.keeps_reference, *lead, d, o),
        last_reference=last,
        arrivals=room(layout.carry, *given.values.shape),
    )


def _one_for_all(reference: Array, chunks: int) -> Array:
    """The reference of every chunk where no span starts inside of a group: a view."""
    return np.broadcast_to(reference[:, None], (len(reference), chunks, *reference.shape[1:]))
