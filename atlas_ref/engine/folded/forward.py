"""A folded group of chunks, memories partitioned over threads; plain twin:
`atlas_ref.forms.chunked_plain`.

Each thread folds its memories, then runs the inter-chunk loop over them.
Specified in specs/chunkwise.md (CHUNK-15, CHUNK-30) and specs/exact.md (EXACT-20).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from atlas_ref.backend.scratch import scratch
from atlas_ref.backend.threads import in_threads
from atlas_ref.engine.folded import frozen, running
from atlas_ref.engine.folded.layout import Folded
from atlas_ref.engine.group.coefficients import Rows
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.engine.masked.rows import spread
from atlas_ref.types import Array


def forward(
    layout: Layout, inputs: Arrays, rows: Rows, partition: Sequence[slice], y: Array, *, keeps: bool
) -> Folded:
    """Run a group; its reads go into y (B, n, o), unless it is None (CHUNK-30, EXACT-20).

    Args:
        partition: memories of each thread.
        keeps: whether all states are kept for backward.
    """
    folded = _room(layout, inputs, rows, keeps or not layout.running)

    def of_thread(memories: slice) -> None:
        part, arrays, reads = (
            folded.of(memories),
            inputs.of(memories),
            None if y is None else y[memories],
        )
        if layout.running:
            running.intra_chunk(layout, arrays, part)
            running.inter_chunk(layout, arrays, part, reads)
            return
        frozen.intra_chunk(layout, arrays, part)
        frozen.inter_chunk(layout, arrays, part)
        if reads is not None:
            frozen.read(layout, part, reads)

    in_threads([partial(of_thread, memories) for memories in partition])
    return folded


def _room(layout: Layout, inputs: Arrays, rows: Rows, keeps: bool) -> Folded:
    """The empty arrays of a group, with its first state."""
    B, n, d = inputs.queries.shape
    C, K, nb, o = layout.chunk, layout.columns, rows.gates.bases, inputs.values.shape[-1]
    lead, is_running = (B, n // C), layout.running
    both = scratch.empty((B, n // C + 1 if keeps else 2, nb * d + K, o), inputs.keys)

    def room(wanted: bool, *shape: int) -> Array:
        return scratch.empty(shape, both) if wanted else None

    reads = C if layout.read in ("after", "before") else 0
    height = nb * d
    # [G | L^{-1}] above [ask of the reads | A]
    sides = room(is_running, *lead, K + reads, height + K)
    ask, inverse, R = (
        (sides[..., :height], sides[:, :, :K, height:], sides[:, :, K:])
        if is_running
        else (None, None, None)
    )
    last = room(layout.keeps_reference, B, d, o)
    one = layout.keeps_reference and not any(layout.refresh[1:])
    both[:, 0, :d] = inputs.M.swapaxes(-1, -2)
    if nb == 2:
        both[:, 0, d : 2 * d] = inputs.S.swapaxes(-1, -2)
    return Folded(
        rows=rows,
        phi=spread(layout, inputs.keys),
        queries=inputs.queries.reshape(*lead, C, d),
        scores=room(reads > 0, *lead, C, K),
        both=both,
        P=room(True, *lead, K, height),
        R=(R if is_running else room(True, *lead, C, height + K)) if reads else None,
        keyed=room(is_running, *lead, K, K),
        inverse=inverse,
        ask=ask,
        references=_one_for_all(last, lead[1])
        if one
        else room(layout.keeps_reference, *lead, d, o),
        last_reference=last,
        arrivals=room(layout.carry, *inputs.values.shape),
    )


def _one_for_all(reference: Array, chunks: int) -> Array:
    """The reference of every chunk where no span starts inside of a group: a view."""
    return np.broadcast_to(reference[:, None], (len(reference), chunks, *reference.shape[1:]))
