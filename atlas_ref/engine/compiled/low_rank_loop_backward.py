"""The backward of the loop over rows of diagonal plus low rank, compiled; plain twin:
`atlas_ref.forms.dplr.scan`.

States are recomputed from one that is kept each segment. Specified in specs/dplr.md (DPLR-17).
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from atlas_ref.backend.compiled.lanes import (
    add_sums_and_products,
    compiled,
    load,
    on_disk,
    rows_at_once,
    store,
    zeros,
)
from atlas_ref.engine.compiled.arguments import LowRankHow as How
from atlas_ref.engine.compiled.arguments import LowRankRoom as Room
from atlas_ref.engine.compiled.arguments import LowRankRows as Rows
from atlas_ref.engine.compiled.columns import add_two_sums, copy
from atlas_ref.engine.compiled.low_rank_loop import reader_of, room_of, set_reads, types_of
from atlas_ref.types import Array


def compiled_for(kind: Any) -> Any:
    """The backward for a dtype."""
    number = numba.from_dtype(kind)
    rows, how, states = types_of(kind)
    of_rows, _, _ = types_of(kind, readonly=False)
    own, kept = types.Array(number, 2, "C"), types.Array(number, 4, "C")
    dy = types.Array(number, 2, "C", readonly=True)
    return on_disk(backward, (rows, how, own, kept, dy, states, of_rows, room_of(kind)))


@compiled
def found_at(found: Array, place: int) -> Any:
    """u of a row, 0 without an erase."""
    return load(found, place) if len(found) else zeros(found)


@compiled
def recompute(
    rows: Rows,
    how: How,
    block: int,
    found: Array,
    memory: Array,
    first: int,
    last: int,
    room: Room,
) -> None:
    """The states before and after each of the rows `first` to `last`."""
    copy(memory, room.memories[0])
    for r in range(first, last + 1):
        place = how.blocks * r + block
        before, after = room.memories[r - first], room.memories[r - first + 1]
        w, k = rows.retain[r], rows.keys[r]
        b = rows.erase_writes[r] if len(rows.erase_writes) else room.no_key
        u, v = found_at(found, place), load(rows.values, place)
        for i in range(before.shape[0]):
            store(after, i, w[i] * load(before, i) + b[i] * u + k[i] * v)


@compiled
def step_back(
    dM: Array, w: Array, a: Array, z: Any, q: Array, g: Any, k: Array, b: Array
) -> tuple[Any, Any]:
    """dM <- dM diag(w) + z a^T + g q^T, then dM k and - dM b."""
    dv, dz = zeros(dM), zeros(dM)
    for i in range(dM.shape[0]):
        d = w[i] * load(dM, i) + a[i] * z + q[i] * g
        store(dM, i, d)
        dv = dv + k[i] * d
        dz = dz - b[i] * d
    return dv, dz


@compiled
def add_products(dM: Array, v: Any, dk: Array, u: Any, db: Array, before: Array, dw: Array) -> None:
    """Add dM^T v, dM^T u, and the sums of dM with the memory before, along each row."""
    for i in range(0, dM.shape[0], rows_at_once(dM)):
        add_sums_and_products(dM, i, v, dk, u, db, before, dw)


@compiled
def through_decay(rows: Rows, r: int, of_rows: Rows) -> None:
    """Cotangents of w and a from that of w a, which stands in the place of that of a."""
    w, a, dw, da = rows.retain[r], rows.erase_reads[r], of_rows.retain[r], of_rows.erase_reads[r]
    for i in range(len(w)):
        dw[i] += a[i] * da[i]
        da[i] *= w[i]


@compiled
def segment_back(
    rows: Rows,
    how: How,
    block: int,
    first: int,
    last: int,
    found: Array,
    dy: Array,
    dM: Array,
    of_rows: Rows,
    room: Room,
) -> None:
    """Cotangents through rows `first` to `last` of one block, and what is asked after each."""
    R, T, s = len(rows.keys), len(rows.queries), how.query_scale
    erases = len(rows.erase_reads) > 0
    decays = erases and how.before_error and block == how.blocks - 1  # that of w a is whole
    z, nothing, a = load(room.between, block), zeros(dM), room.reads
    for r in range(last, first - 1, -1):  # through what is asked of the memory after row r, then it
        now = room.memories[r - first + 1]
        q, g, dq = room.no_key, nothing, room.unused
        reader = reader_of(r, how, T)
        if reader >= 0:
            q, g = rows.queries[reader], s * load(dy, how.blocks * reader + block)
            dq = of_rows.queries[reader]
        w = rows.retain[r + 1] if r + 1 < R else room.ones
        da = of_rows.erase_reads[r + 1] if erases and r + 1 < R else room.unused
        set_reads(rows, how, r + 1, a)
        add_two_sums(now, z, da, g, dq)
        if decays and r + 1 < R:
            through_decay(rows, r + 1, of_rows)
        place = how.blocks * r + block
        b = rows.erase_writes[r] if erases else room.no_key
        dv, z = step_back(dM, w, a, z, q, g, rows.keys[r], b)
        store(of_rows.values, place, dv)
        u, v = found_at(found, place), load(rows.values, place)
        dk, dw = of_rows.keys[r], of_rows.retain[r]
        db = of_rows.erase_writes[r] if erases else room.unused
        add_products(dM, v, dk, u, db, room.memories[r - first], dw)
    store(room.between, block, z)


@compiled
def through_first(
    rows: Rows,
    how: How,
    block: int,
    M: Array,
    dy: Array,
    dM: Array,
    of_rows: Rows,
    room: Room,
) -> None:
    """Cotangents through what is asked of the memory before the first row, to that memory."""
    z, g, q, dq = load(room.between, block), zeros(dM), room.no_key, room.unused
    if how.steps == 0:
        q, g, dq = rows.queries[0], how.query_scale * load(dy, block), of_rows.queries[0]
    erases = len(rows.erase_reads) > 0
    add_two_sums(M, z, of_rows.erase_reads[0] if erases else room.unused, g, dq)
    if erases and how.before_error and block == how.blocks - 1:
        through_decay(rows, 0, of_rows)
    set_reads(rows, how, 0, room.reads)
    step_back(dM, rows.retain[0], room.reads, z, q, g, room.no_key, room.no_key)


def backward(
    rows: Rows,
    how: How,
    found: Array,
    memories: Array,
    dy: Array,
    dM: Array,
    of_rows: Rows,
    room: Room,
) -> None:
    """Cotangents of everything that `forward` takes, from those of its results (DPLR-17).

    Args:
        found, memories: as `forward` kept them.
        dy (T blocks, lanes): cotangents of the reads.
        dM (blocks, d, lanes): cotangent of the last memory; overwritten by that of the first.
        of_rows: zeros at first; added to, but for values.
    """
    for block in range(how.blocks):
        store(room.between, block, zeros(room.between))
    R = len(rows.keys)
    for segment in range((R - 1) // how.segment, -1, -1):
        first, last = segment * how.segment, min((segment + 1) * how.segment, R) - 1
        for block in range(how.blocks):
            recompute(rows, how, block, found, memories[block, segment], first, last, room)
            segment_back(rows, how, block, first, last, found, dy, dM[block], of_rows, room)
    for block in range(how.blocks):
        through_first(rows, how, block, memories[block, 0], dy, dM[block], of_rows, room)
