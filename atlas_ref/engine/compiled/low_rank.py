"""A memory of diagonal plus low rank over its rows by the compiled loop; plain twin:
`atlas_ref.forms.dplr.scan`.

Each thread runs its memories, forward and back, block of columns after block. For the backward are
kept what each row erases and a state each `SEGMENT` rows. Specified in specs/dplr.md (DPLR-17).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled import SUM_BYTES
from atlas_ref.backend.scratch import keep_pages_of
from atlas_ref.backend.threads import in_threads, processors, slices
from atlas_ref.engine.compiled.arguments import LowRankHow, LowRankRoom, LowRankRows
from atlas_ref.engine.compiled.blocks import (
    padded,
    read_only,
    rows_back,
    rows_of_blocks,
    states_back,
    states_of_blocks,
)
from atlas_ref.engine.compiled.tokens import SEGMENT, THREAD_WORK, fits
from atlas_ref.types import Array
from tape import opaque, vjp

#: Arrays of one sequence, in the order of `LowRankRows`, and the memory before it; reads, memory.
Plain = Callable[..., tuple[Array, Array]]
KEYED = ("retain", "keys", "erase_reads", "erase_writes", "queries")


class Settings(NamedTuple):
    """Settings of all rows of a sequence.

    Attributes:
        steps: rows of a token, after whose last it reads; 0 where it reads before its one row.
        before_error: whether an erase reads the memory after the decay of its row.
        query_scale: factor of the reads.
    """

    steps: int
    before_error: bool = False
    query_scale: float = 1.0


class Kept(NamedTuple):
    """What the backward needs: the arguments, u of each row, and states by memory and block."""

    arrays: tuple[Array, ...]
    found: Array
    memories: Array


def takes(*arrays: Array, work: int) -> bool:
    """Whether arrays or tape variables are of a kind that the loop takes, and `work` is enough."""
    return fits(*arrays, work=work)


def block(settings: Settings, plain: Plain) -> Plain:
    """A sequence as one function with a backward of its own (DPLR-17).

    Args:
        settings: of all rows.
        plain: the plain twin, also for second derivatives, and where a result is not finite.

    Returns:
        gates, keys, erase_reads, erase_writes (L, R, d), values (L, R, o), queries (L, T, d) and
        M (L, o, d) -> y (L, T, o), M. L are any leading axes. Vectors of erases have shape
        (L, 0, d) where nothing is erased.
    """

    def value(*arrays: Array) -> tuple[Array, Array]:
        result = _run(settings, _flat(arrays), keeps=False)
        return plain(*arrays) if result is None else _shaped(result[0], arrays)

    def forward(*arrays: Array) -> tuple[tuple[Array, Array], Any]:
        result = _run(settings, _flat(arrays), keeps=True)
        if result is None:
            (y, M), pullback = vjp(plain, *arrays)
            return (y, M), (pullback, y, M, arrays)
        outputs, kept = _shaped(result[0], arrays), result[1]
        return outputs, (kept, *outputs, arrays)

    def backward(kept: Any, of_outputs: tuple[Array, Array]) -> Sequence[Array]:
        how, *outputs, arrays = kept
        bars = [
            np.zeros_like(x) if bar is None else bar.astype(x.dtype, copy=False)
            for x, bar in zip(outputs, of_outputs, strict=True)
        ]
        if isinstance(how, Kept):
            own = _backward(settings, how, *_flat(tuple(bars)))
            if own is not None:
                return [x.reshape(like.shape) for x, like in zip(own, arrays, strict=True)]
            how = vjp(plain, *arrays)[1]
        return [x.copy() for x in how(tuple(bars))]

    run: Plain = opaque(plain, forward, backward, value=value, fresh=True)
    return run


def _shaped(outputs: tuple[Array, Array], arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Reads and memory with the leading axes of the arguments."""
    lead = arrays[-1].shape[:-2]
    y, M = (x.reshape(*lead, *x.shape[-2:]) for x in outputs)
    return y, M


def _run(
    settings: Settings, arrays: tuple[Array, ...], *, keeps: bool
) -> tuple[tuple[Array, Array], Kept | None] | None:
    """Reads and the last memory, and what the backward needs (DPLR-17).

    None for all of it where a result is not finite or Numba cannot be used.
    """
    rows, M = _packed(arrays), states_of_blocks(arrays[-1])
    loop = compiled.loop("atlas_ref.engine.compiled.low_rank_loop", M.dtype)
    if loop is None:
        return None
    (B, R, d), T, o = arrays[1].shape, arrays[5].shape[1], arrays[4].shape[-1]
    blocks, lanes = M.shape[1], M.shape[-1]
    y = np.empty((B, T * blocks, lanes), M.dtype)
    erases = keeps and arrays[2].shape[1] > 0
    found = np.empty((B, R * blocks * erases, lanes), M.dtype)
    memories = np.empty((B, blocks, -(-R // SEGMENT) * keeps, *M.shape[2:]), M.dtype)
    # gradients are as large as the rows
    keep_pages_of(sum(x.nbytes for x in (*rows, y, found, memories)))
    how = _how(settings, M, keeps=keeps)

    def of_memory(b: int, room: LowRankRoom) -> None:
        own = M[b], y[b], found[b], memories[b]
        loop(LowRankRows(*(x[b] for x in rows)), how, *own, room)

    _each_memory(of_memory, B, partial(LowRankRoom.of, 0, M[0]), R * B * d * o)
    if not (np.isfinite(M).all() and np.isfinite(y).all()):
        return None
    outputs = rows_back(y, T, o), states_back(M, d, o)
    return outputs, Kept(arrays, found, memories) if keeps else None


def _backward(settings: Settings, kept: Kept, dy: Array, dM: Array) -> list[Array] | None:
    """Cotangents of the arguments from those of the results (DPLR-17); None as in `_run`."""
    rows, of_M = _packed(kept.arrays), states_of_blocks(dM)
    loop = compiled.loop("atlas_ref.engine.compiled.low_rank_loop_backward", of_M.dtype)
    if loop is None:
        return None
    (B, R, d), o = kept.arrays[1].shape, dy.shape[-1]
    how, dy = _how(settings, of_M, keeps=True), read_only(rows_of_blocks(dy))
    of_rows = LowRankRows(*map(np.zeros_like, rows))

    def of_memory(b: int, room: LowRankRoom) -> None:
        own = kept.found[b], kept.memories[b], dy[b], of_M[b]
        into = LowRankRows(*(x[b] for x in of_rows))
        loop(LowRankRows(*(x[b] for x in rows)), how, *own, into, room)

    _each_memory(of_memory, B, partial(LowRankRoom.of, SEGMENT, of_M[0]), R * B * d * o)
    if not all(np.isfinite(x).all() for x in (*of_rows, of_M)):
        return None
    keyed = {name: np.ascontiguousarray(getattr(of_rows, name)[..., :d]) for name in KEYED}
    return [
        *of_rows._replace(**keyed, values=rows_back(of_rows.values, R, o)),
        states_back(of_M, d, o),
    ]


def _how(settings: Settings, states: Array, *, keeps: bool) -> LowRankHow:
    """Settings of the loop, for states (B, blocks, d, lanes)."""
    scale = states.dtype.type(settings.query_scale)
    return LowRankHow(states.shape[1], settings.steps, SEGMENT, keeps, settings.before_error, scale)


def _each_memory(
    work: Callable[[int, LowRankRoom], None],
    count: int,
    room_of: Callable[[], LowRankRoom],
    size: int,
) -> None:
    """Run the work of each memory, on several threads where that pays; each has room of its own."""

    def share(part: slice) -> None:
        room = room_of()
        for b in range(part.start, part.stop):
            work(b, room)

    threads = min(processors(), count) if size >= THREAD_WORK else 1
    in_threads([partial(share, part) for part in slices(count, threads)])


def _packed(arrays: tuple[Array, ...]) -> LowRankRows:
    """Rows of all memories, as the loop takes those of one."""
    rows = LowRankRows(*arrays[:-1])
    multiple = SUM_BYTES // rows.keys.itemsize
    keyed = {name: read_only(padded(getattr(rows, name), multiple)) for name in KEYED}
    return rows._replace(**keyed, values=read_only(rows_of_blocks(rows.values)))


def _flat(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """The arguments in their common dtype, with one leading axis."""
    kind, memories = np.result_type(*arrays), math.prod(arrays[-1].shape[:-2])
    flat = (x.reshape(memories, *x.shape[-2:]) for x in arrays)
    return tuple(x if x.dtype == kind else x.astype(kind) for x in flat)
