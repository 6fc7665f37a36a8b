"""The loop over the rows of a memory of diagonal plus low rank, compiled; plain twin:
`atlas_ref.forms.dplr.scan`.

    u_r = -M_{r-1} a_r,      M_r = M_{r-1} diag(w_r) + u_r b_r^T + v_r k_r^T,      y = s M q

w_r a_r stands in place of a_r where the erase reads the memory after the decay. The state is
transposed, a row for an entry of the key, and one pass over it writes, reads, and finds what the
next row erases. Specified in specs/dplr.md (DPLR-17).
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from atlas_ref.backend.compiled.lanes import compiled, load, on_disk, store, zeros
from atlas_ref.engine.compiled.arguments import LowRankHow as How
from atlas_ref.engine.compiled.arguments import LowRankRoom as Room
from atlas_ref.engine.compiled.arguments import LowRankRows as Rows
from atlas_ref.engine.compiled.columns import copy, product
from atlas_ref.types import Array


def compiled_for(kind: Any) -> Any:
    """The loop for a dtype."""
    number = numba.from_dtype(kind)
    rows, how, states = types_of(kind)
    own, kept = types.Array(number, 2, "C"), types.Array(number, 4, "C")
    return on_disk(forward, (rows, how, states, own, own, kept, room_of(kind)))


def types_of(kind: Any, *, readonly: bool = True) -> tuple[Any, Any, Any]:
    """Numba's types of rows, settings and kept states."""
    number = numba.from_dtype(kind)
    each = types.Array(number, 2, "C", readonly=readonly)
    # which Numba, a library without types, has no annotations for
    rows = types.NamedUniTuple(each, len(Rows._fields), Rows)  # type: ignore[no-untyped-call]  # Numba has no types
    settings = (*[types.intp] * 3, types.boolean, types.boolean, number)
    how = types.NamedTuple(settings, How)  # type: ignore[no-untyped-call]  # Numba has no types
    return rows, how, types.Array(number, 3, "C")


def room_of(kind: Any) -> Any:
    """Numba's type of the work space."""
    number = numba.from_dtype(kind)
    fixed, own = (types.Array(number, 1, "C", readonly=readonly) for readonly in (True, False))
    rows, states = types.Array(number, 2, "C"), types.Array(number, 3, "C")
    # which Numba, a library without types, has no annotations for
    return types.NamedTuple((rows, states, fixed, fixed, own, own), Room)  # type: ignore[no-untyped-call]  # Numba has no types


@compiled
def reader_of(r: int, how: How, T: int) -> int:
    """The token whose query reads the memory after row r, -1 before the first; -1 for none."""
    if how.steps == 0:
        return r + 1 if r + 1 < T else -1
    return r // how.steps if r >= 0 and (r + 1) % how.steps == 0 else -1


@compiled
def set_reads(rows: Rows, how: How, r: int, out: Array) -> None:
    """What the erase of row r reads of the memory before it, zeros for none, into out."""
    if r >= len(rows.erase_reads):
        for i in range(len(out)):
            out[i] = 0
    elif how.before_error:
        for i in range(len(out)):
            out[i] = rows.retain[r, i] * rows.erase_reads[r, i]
    else:
        for i in range(len(out)):
            out[i] = rows.erase_reads[r, i]


@compiled
def write(
    M: Array, w: Array, b: Array, u: Any, k: Array, v: Any, q: Array, a: Array
) -> tuple[Any, Any]:
    """M <- M diag(w) + u b^T + v k^T, then M q and - M a."""
    y, found = zeros(M), zeros(M)
    for i in range(M.shape[0]):
        after = w[i] * load(M, i) + b[i] * u + k[i] * v
        store(M, i, after)
        y = y + q[i] * after
        found = found - a[i] * after
    return y, found


@compiled
def segment_of(
    rows: Rows, how: How, block: int, first: int, M: Array, y: Array, found: Array, room: Room
) -> None:
    """The rows of a segment, of one block of columns."""
    R, T, s = len(rows.keys), len(rows.queries), how.query_scale
    set_reads(rows, how, first, room.reads)
    if first == 0:
        u = zeros(M) - product(M, room.reads)
        if how.steps == 0:
            store(y, block, s * product(M, rows.queries[0]))
    else:
        u = load(room.between, block)
    for r in range(first, min(first + how.segment, R)):
        place = how.blocks * r + block
        if len(found):
            store(found, place, u)
        reader = reader_of(r, how, T)
        q = rows.queries[reader] if reader >= 0 else room.no_key
        b = rows.erase_writes[r] if len(rows.erase_writes) else room.no_key
        set_reads(rows, how, r + 1, room.reads)
        v = load(rows.values, place)
        read, u = write(M, rows.retain[r], b, u, rows.keys[r], v, q, room.reads)
        if reader >= 0:
            store(y, how.blocks * reader + block, s * read)
    store(room.between, block, u)


def forward(
    rows: Rows, how: How, M: Array, y: Array, found: Array, memories: Array, room: Room
) -> None:
    """Run a memory over all rows, segment by segment, so that its rows stay in the cache (DPLR-17).

    Args:
        M (blocks, d, lanes): transposed; overwritten by that at the end.
        y (T blocks, lanes): the reads.
        found (R blocks, lanes), memories (blocks, segments, d, lanes): u of each row, and the state
            before each segment, for a backward; else empty. Without an erase there is no u.
    """
    for first in range(0, len(rows.keys), how.segment):
        for block in range(how.blocks):
            if how.keeps:
                copy(M[block], memories[block, first // how.segment])
            segment_of(rows, how, block, first, M[block], y, found, room)
