"""One group of chunks, run and pulled back: which way, shared out over which threads, and what lasts in between.

Where work space is at rest after a group, the group is computed again to be pulled back; a group that lasts keeps what it
computed in work space that is lent to it. Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.parallel import compiled_chunks, dual, dual_backward, stacked, stacked_backward, stacked_forward
from atlas_ref.parallel.coefficients import Rows
from atlas_ref.parallel.dual_bars import Bars, Into
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.joins import Joins
from atlas_ref.scratch import Loan, scratch
from atlas_ref.threads import in_threads, processors, slices
from atlas_ref.types import Array

#: Multiply-adds of scores below which a second thread costs more than it saves: beside a solution, and elsewhere.
SHARED_WORK = {True: 2**23, False: 2**24}


class Worked(NamedTuple):
    """What a group that lasts computed: its coefficient rows and the rest, by share; and what lends it room."""

    rows: Rows
    made: list[Any]
    loans: list[Loan]


def run(layout: Layout, given: Arrays, joins: Joins, y: Array, *, lasting: bool) -> tuple[End, Worked | None]:
    """Run a group; its reads go into y. What it computed lasts, or is None.

    It takes work space of the caller's frame, or if it lasts, of the caller's loan.

    Args:
        joins: arrays of `given` that are still to be filled.
    """

    def some(memories: slice) -> tuple[End, Any, Any]:
        joins.fill(memories)
        with scratch.lent() if lasting else scratch.frame() as loan:
            made = dual.forward(layout, given.of(memories), rows.of(memories))
            if y is not None:
                dual.reads(layout, made, y[memories])
            return dual.end(layout, made), made if lasting else None, loan

    shares = shared(layout, given)
    if not lasting and compiled_chunks.takes(layout, given):
        end = compiled_chunks.run(layout, given, joins, shares, y)
        if end is not None:
            return end, None
    rows = dual.rows_of(layout, given)
    if stacked.takes(layout, rows):
        found = stacked_forward.forward(layout, given, joins, rows, shares, y, keeps=lasting)
        return stacked.end(layout, found), Worked(rows, [found], []) if lasting else None
    ends, made, loans = zip(*in_threads([partial(some, memories) for memories in shares]), strict=True)
    return _rejoined(ends), Worked(rows, list(made), list(loans)) if lasting else None


def pull_back(layout: Layout, given: Arrays, joins: Joins, worked: Worked | None, bars: Bars, found: Arrays) -> End:
    """Pull a group back, computed again unless it lasted; cotangents of tokens go into `found`. For `joins` see `run`."""
    into, shares = Into(found.keys, found.values, found.queries), shared(layout, given)
    rows = dual.rows_of(layout, given) if worked is None else worked.rows
    folds, summed = stacked.takes(layout, rows), dual_backward.row_bars(layout, rows)
    if folds:
        whole = stacked_forward.forward(layout, given, joins, rows, shares, None, keeps=True) if worked is None else worked.made[0]
    lasted = [None] * len(shares) if folds or worked is None else worked.made

    def share(memories: slice, made: Any) -> End:
        return _rejoined([some(part, made) for part in (_halves(memories) if folds and not layout.solved else [memories])])

    def some(memories: slice, made: Any) -> End:
        with scratch.frame():
            part, some_bars, of_rows, some_into = given.of(memories), bars.of(memories), summed.of(memories), into.of(memories)
            if folds:
                return stacked_backward.backward(layout, part, whole.of(memories), some_bars, of_rows, some_into)
            if made is None:
                joins.fill(memories)
                made = dual.forward(layout, part, rows.of(memories))
            return dual_backward.backward(layout, part, made, some_bars, of_rows, some_into)

    ends = in_threads([partial(share, memories, made) for memories, made in zip(shares, lasted, strict=True)])
    for name, value in dual_backward.gates_backward(layout, given, rows, summed).items():
        getattr(found, name)[...] = value
    return _rejoined(ends)


# -- shares of memories ---------------------------------------------------------------------------------


def shared(layout: Layout, given: Arrays) -> list[slice]:
    """Memories in shares for one thread each, where there is enough to do."""
    B, n, d = given.queries.shape
    work = B * n * layout.columns * (d + given.values.shape[-1])
    count = 1 if work < SHARED_WORK[layout.solved] or not on_host(given.queries) else min(processors(), B)
    return slices(B, count)


def _halves(memories: slice) -> list[slice]:
    """The first and the second half, one after the other in half the room: known residuals take few calls."""
    middle = (memories.start + memories.stop) // 2
    return [memories] if middle == memories.start else [slice(memories.start, middle), slice(middle, memories.stop)]


def _rejoined(ends: Sequence[End]) -> End:
    return ends[0] if len(ends) == 1 else End(*(None if each[0] is None else np.concatenate(each) for each in zip(*ends, strict=True)))
