"""Choice of the engine for a group of chunks, forward and backward; plain twin:
`atlas_ref.forms.chunked_plain`.

Work space is free again after a group, so a group is recomputed for its backward; a group that is
kept for backward holds its results in an arena of its own. Memories never meet, so threads
partition them. Specified in specs/chunkwise.md (CHUNK-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.backend.buffers import short_buffers
from atlas_ref.backend.scratch import Arena, scratch
from atlas_ref.backend.threads import in_threads, processors, slices
from atlas_ref.engine.compiled import group as compiled_group
from atlas_ref.engine.group.coefficients import Rows
from atlas_ref.engine.group.cotangents import Cotangents, Into
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.engine.masked import backward as masked_backward
from atlas_ref.engine.masked import forward as masked_forward
from atlas_ref.engine.masked.gates_backward import gates_backward
from atlas_ref.types import Array

#: Multiply-adds of scores below which a second thread costs more than it saves: under a running
#: reference, and elsewhere.
PARTITION_WORK = {True: 2**23, False: 2**24}


class KeptResults(NamedTuple):
    """What a group keeps for backward: coefficient rows, other results by part, and arenas."""

    rows: Rows
    parts: list[Any]
    arenas: list[Arena]


def run(layout: Layout, inputs: Arrays, y: Array, *, keeps: bool) -> tuple[End, KeptResults | None]:
    """Run a group; its reads go into y. Return its results if they are kept for backward, else
    None.

    It takes work space of the caller's frame, or if it is kept, of the caller's arena.
    """

    def masked(memories: slice) -> tuple[End, Any, Any]:
        with short_buffers(), scratch.arena() if keeps else scratch.frame() as arena:
            group = masked_forward.forward(layout, inputs.of(memories), rows.of(memories))
            if y is not None:
                masked_forward.reads(layout, group, y[memories])
            return masked_forward.end(layout, group), group if keeps else None, arena

    partition = thread_partition(layout, inputs)
    if not keeps and compiled_group.takes(layout, inputs):
        end = compiled_group.run(layout, inputs, partition, y)
        if end is not None:
            return end, None
    rows = masked_forward.rows_of(layout, inputs)
    ends, parts, arenas = zip(
        *in_threads([partial(masked, memories) for memories in partition]), strict=True
    )
    return _rejoined(ends), KeptResults(rows, list(parts), list(arenas)) if keeps else None


def backward(
    layout: Layout,
    inputs: Arrays,
    kept: KeptResults | None,
    cotangents: Cotangents,
    token_cotangents: Arrays,
) -> End:
    """Cotangents of the start of a group; those of its tokens go into `token_cotangents` (CHUNK-15,
    CHUNK-16).

    A group that was not kept is recomputed.
    """
    into, partition = (
        Into(token_cotangents.keys, token_cotangents.values, token_cotangents.queries),
        thread_partition(layout, inputs),
    )
    rows = masked_forward.rows_of(layout, inputs) if kept is None else kept.rows
    d_rows = masked_backward.row_cotangents(layout, rows)
    groups = [None] * len(partition) if kept is None else kept.parts

    def of_thread(memories: slice, group: Any) -> End:
        with short_buffers(), scratch.frame():
            arrays, of_outputs, of_rows, some_into = (
                inputs.of(memories),
                cotangents.of(memories),
                d_rows.of(memories),
                into.of(memories),
            )
            if group is None:
                group = masked_forward.forward(layout, arrays, rows.of(memories))
            return masked_backward.backward(layout, arrays, group, of_outputs, of_rows, some_into)

    ends = in_threads(
        [
            partial(of_thread, memories, group)
            for memories, group in zip(partition, groups, strict=True)
        ]
    )
    for name, value in gates_backward(layout, inputs, rows, d_rows).items():
        getattr(token_cotangents, name)[...] = value
    return _rejoined(ends)


# -- the partition of memories over threads --------------------------------------------------------


def thread_partition(layout: Layout, inputs: Arrays) -> list[slice]:
    """Memories of each thread; one part for a small group."""
    B, n, d = inputs.queries.shape
    work = B * n * layout.columns * (d + inputs.values.shape[-1])
    count = (
        1
        if work < PARTITION_WORK[layout.running] or not on_host(inputs.queries)
        else min(processors(), B)
    )
    return slices(B, count)


def _rejoined(ends: Sequence[End]) -> End:
    return (
        ends[0]
        if len(ends) == 1
        else End(
            *(None if each[0] is None else np.concatenate(each) for each in zip(*ends, strict=True))
        )
    )
