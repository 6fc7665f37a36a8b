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
from atlas_ref.engine.compiled.low_rank_loop import reader_of, types_of
from atlas_ref.types import Array


def compiled_for(kind: Any) -> Any:
    """The backward for a dtype."""
    number = numba.from_dtype(kind)
    rows, how, states = types_of(kind)
    of_rows, _, _ = types_of(kind, readonly=False)
    own = types.Array(number, 2, "C")
    dy = types.Array(number, 2, "C", readonly=True)
    fixed, unused = (types.Array(number, 1, "C", readonly=yes) for yes in (True, False))
    # which Numba, a library without types, has no annotations for
    room = types.NamedTuple((states, fixed, fixed, unused), Room)  # type: ignore[no-untyped-call]
    return on_disk(backward, (rows, how, own, states, dy, own, of_rows, room))


@compiled
def recompute(
    rows: Rows, how: How, found: Array, memories: Array, first: int, last: int, room: Array
) -> None:
    """The states before and after each row of a segment."""
    copy(memories[first // how.segment], room[0])
    for r in range(first, last):
        place = how.blocks * r + how.block
        before, after = room[r - first], room[r - first + 1]
        w, b, k = rows.retain[r], rows.erase_writes[r], rows.keys[r]
        u, v = load(found, place), load(rows.values, place)
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
        dM (d, lanes): cotangent of the last memory; overwritten by that of the first.
        of_rows: zeros at first; added to, but for values.
    """
    R, T = len(rows.keys), len(rows.queries)
    z, nothing = zeros(dM), zeros(dM)
    w, a, da = room.ones, room.no_key, room.unused
    for r in range(R - 1, -2, -1):  # through what is asked of the memory after row r, then row r
        n = r % how.segment
        if r >= 0 and (n == how.segment - 1 or r == R - 1):
            recompute(rows, how, found, memories, r - n, r + 1, room.memories)
        now = room.memories[n + 1] if r >= 0 else memories[0]
        q, g, dq = room.no_key, nothing, room.unused
        reader = reader_of(r, how, T)
        if reader >= 0:
            q, g = rows.queries[reader], load(dy, how.blocks * reader + how.block)
            dq = of_rows.queries[reader]
        add_two_sums(now, z, da, g, dq)
        if r < 0:
            step_back(dM, w, a, z, q, g, room.no_key, room.no_key)
        else:
            place = how.blocks * r + how.block
            dv, dz = step_back(dM, w, a, z, q, g, rows.keys[r], rows.erase_writes[r])
            store(of_rows.values, place, dv)
            u, v = load(found, place), load(rows.values, place)
            dk, db, dw = of_rows.keys[r], of_rows.erase_writes[r], of_rows.retain[r]
            add_products(dM, v, dk, u, db, room.memories[n], dw)
            w, a, da, z = rows.retain[r], rows.erase_reads[r], of_rows.erase_reads[r], dz
