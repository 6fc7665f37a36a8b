"""A memory of diagonal plus low rank over its rows by the compiled loop; plain twin:
`atlas_ref.forms.dplr.scan`.

Each thread runs its memories, forward and back, block of columns after block. For the backward are
kept what each row erases and a state each `SEGMENT` rows. Specified in specs/dplr.md (DPLR-17).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled import SUM_BYTES
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


class Kept(NamedTuple):
    """What the backward needs: the arguments, u of each row, and states by memory and block."""

    arrays: tuple[Array, ...]
    found: Array
    memories: Array


def takes(*arrays: Array, work: int) -> bool:
    """Whether arrays or tape variables are of a kind that the loop takes, and `work` is enough."""
    return fits(*arrays, work=work)


def block(steps: int, plain: Plain) -> Plain:
    """A sequence as one function with a backward of its own (DPLR-17).

    Args:
        steps: rows of a token, after whose last it reads; 0 where it reads before its one row.
        plain: the plain twin, also for second derivatives, and where a result is not finite.

    Returns:
        gates, keys, erase_reads, erase_writes (L, R, d), values (L, R, o), queries (L, T, d) and
        M (L, o, d) -> y (L, T, o), M. L are any leading axes, at least one.
    """

    def value(*arrays: Array) -> tuple[Array, Array]:
        result = _run(steps, _flat(arrays), keeps=False)
        return plain(*arrays) if result is None else _shaped(result[0], arrays)

    def forward(*arrays: Array) -> tuple[tuple[Array, Array], Any]:
        result = _run(steps, _flat(arrays), keeps=True)
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
            own = _backward(steps, how, *_flat(tuple(bars)))
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
    steps: int, arrays: tuple[Array, ...], *, keeps: bool
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
    found = np.empty((B, R * blocks * keeps, lanes), M.dtype)
    memories = np.empty((B, blocks, -(-R // SEGMENT) * keeps, *M.shape[2:]), M.dtype)
    no_key = read_only(np.zeros(M.shape[2], M.dtype))

    def of_memory(b: int) -> None:
        for block in range(blocks):
            how = LowRankHow(block, blocks, steps, SEGMENT if keeps else 0)
            own = M[b, block], y[b], found[b], memories[b, block]
            loop(LowRankRows(*(x[b] for x in rows)), how, *own, no_key)

    _each_memory([partial(of_memory, b) for b in range(B)], R * B * d * o)
    if not (np.isfinite(M).all() and np.isfinite(y).all()):
        return None
    outputs = rows_back(y, T, o), states_back(M, d, o)
    return outputs, Kept(arrays, found, memories) if keeps else None


def _backward(steps: int, kept: Kept, dy: Array, dM: Array) -> list[Array] | None:
    """Cotangents of the arguments from those of the results (DPLR-17); None as in `_run`."""
    rows, of_M = _packed(kept.arrays), states_of_blocks(dM)
    loop = compiled.loop("atlas_ref.engine.compiled.low_rank_loop_backward", of_M.dtype)
    if loop is None:
        return None
    (B, R, d), o = kept.arrays[1].shape, dy.shape[-1]
    blocks, dy = of_M.shape[1], read_only(rows_of_blocks(dy))
    of_rows = LowRankRows(*map(np.zeros_like, rows))

    def of_memory(b: int) -> None:
        room = LowRankRoom.of(SEGMENT, of_M[b, 0])
        for block in range(blocks):
            how = LowRankHow(block, blocks, steps, SEGMENT)
            own = kept.found[b], kept.memories[b, block], dy[b], of_M[b, block]
            into = LowRankRows(*(x[b] for x in of_rows))
            loop(LowRankRows(*(x[b] for x in rows)), how, *own, into, room)

    _each_memory([partial(of_memory, b) for b in range(B)], R * B * d * o)
    if not all(np.isfinite(x).all() for x in (*of_rows, of_M)):
        return None
    keyed = {name: np.ascontiguousarray(getattr(of_rows, name)[..., :d]) for name in KEYED}
    return [
        *of_rows._replace(**keyed, values=rows_back(of_rows.values, R, o)),
        states_back(of_M, d, o),
    ]


def _each_memory(work: list[Callable[[], None]], size: int) -> None:
    """Run the work of each memory, on several threads where that pays."""

    def share(part: slice) -> None:
        for each in work[part]:
            each()

    count = min(processors(), len(work)) if size >= THREAD_WORK else 1
    in_threads([partial(share, part) for part in slices(len(work), count)])


def _packed(arrays: tuple[Array, ...]) -> LowRankRows:
    """Rows of all memories, as the loop takes those of one."""
    rows = LowRankRows(*arrays[:-1])
    multiple = SUM_BYTES // rows.keys.itemsize
    keyed = {name: read_only(padded(getattr(rows, name), multiple)) for name in KEYED}
    return rows._replace(**keyed, values=read_only(rows_of_blocks(rows.values)))


def _flat(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """The arguments in their common dtype, with one leading axis."""
    kind = np.result_type(*arrays)
    flat = (x.reshape(-1, *x.shape[-2:]) for x in arrays)
    return tuple(x if x.dtype == kind else x.astype(kind) for x in flat)
