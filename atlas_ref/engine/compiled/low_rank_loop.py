"""The loop over the rows of a memory of diagonal plus low rank, compiled; plain twin:
`atlas_ref.forms.dplr.scan`.

    u_r = -M_{r-1} a_r,      M_r = M_{r-1} diag(w_r) + u_r b_r^T + v_r k_r^T,      y = M q

The state is transposed, a row for an entry of the key, and one pass over it writes, reads, and finds
what the next row erases. Specified in specs/dplr.md (DPLR-17).
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from atlas_ref.backend.compiled.lanes import compiled, load, on_disk, store, zeros
from atlas_ref.engine.compiled.arguments import LowRankHow as How
from atlas_ref.engine.compiled.arguments import LowRankRows as Rows
from atlas_ref.engine.compiled.columns import copy, product
from atlas_ref.types import Array


def compiled_for(kind: Any) -> Any:
    """The loop for a dtype."""
    number = numba.from_dtype(kind)
    rows, how, states = types_of(kind)
    own = types.Array(number, 2, "C")
    no_key = types.Array(number, 1, "C", readonly=True)
    return on_disk(forward, (rows, how, own, own, own, states, no_key))


def types_of(kind: Any, *, readonly: bool = True) -> tuple[Any, Any, Any]:
    """Numba's types of rows, settings and kept states."""
    number = numba.from_dtype(kind)
    each = types.Array(number, 2, "C", readonly=readonly)
    # which Numba, a library without types, has no annotations for
    rows = types.NamedUniTuple(each, len(Rows._fields), Rows)  # type: ignore[no-untyped-call]
    how = types.NamedUniTuple(types.intp, len(How._fields), How)  # type: ignore[no-untyped-call]
    return rows, how, types.Array(number, 3, "C")


@compiled
def reader_of(r: int, how: How, T: int) -> int:
    """The token whose query reads the memory after row r, -1 before the first; -1 for none."""
    if how.steps == 0:
        return r + 1 if r + 1 < T else -1
    return r // how.steps if r >= 0 and (r + 1) % how.steps == 0 else -1


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


def forward(
    rows: Rows, how: How, M: Array, y: Array, found: Array, memories: Array, no_key: Array
) -> None:
    """Run a block of columns over all rows (DPLR-17).

    Args:
        M (d, lanes): transposed; overwritten by that at the end.
        y (T blocks, lanes): the reads.
        found (R blocks, lanes), memories (segments, d, lanes): u of each row, and the state before
            each segment, for a backward; else empty.
        no_key (d,): zeros.
    """
    R, T = len(rows.keys), len(rows.queries)
    u = zeros(M) - product(M, rows.erase_reads[0])
    if how.steps == 0:
        store(y, how.block, product(M, rows.queries[0]))
    for r in range(R):
        place = how.blocks * r + how.block
        if how.segment > 0:
            store(found, place, u)
            if r % how.segment == 0:
                copy(M, memories[r // how.segment])
        reader = reader_of(r, how, T)
        q = rows.queries[reader] if reader >= 0 else no_key
        a = rows.erase_reads[r + 1] if r + 1 < R else no_key
        v = load(rows.values, place)
        read, u = write(M, rows.retain[r], rows.erase_writes[r], u, rows.keys[r], v, q, a)
        if reader >= 0:
            store(y, how.blocks * reader + how.block, read)
