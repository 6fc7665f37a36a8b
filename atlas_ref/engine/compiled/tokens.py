"""A sequence of tokens under the running or the zero reference by the compiled loop; plain twin:
`atlas_ref.forms.chunked_plain`.

Each thread runs its memories, forward and back, block of columns after block. For the backward are
kept the arguments, with one key a token the prediction of each, and a state each `SEGMENT` tokens.
Specified in specs/exact.md (EXACT-21).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled import SUM_BYTES
from atlas_ref.backend.threads import in_threads, processors, slices
from atlas_ref.engine.compiled.arguments import Gates, How, Kept, Room, Tokens
from atlas_ref.engine.compiled.blocks import (
    padded,
    read_only,
    rows_back,
    rows_of_blocks,
    states_back,
    states_of_blocks,
)
from atlas_ref.engine.group.cotangents import Cotangents
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.types import Array
from tape import plain

#: Multiply-adds of one product of the state with all keys, from which on it is worth loading
#: compiled code, which takes a second once a process.
WORK = 2**21
#: The same, from which on a second thread saves more than it costs.
THREAD_WORK = 2**20
#: Numbers of a state beyond which, with a backward but neither momentum nor a window, products of
#: chunks are faster than the loop: 1.2 times at 256 x 256.
LARGE = 128 * 128
#: Tokens between two states that are kept; those between are recomputed near the processor.
SEGMENT = 32

AHEAD = {"after": 0, "before": 1, "none": -1}
GATES = ("retain", "momentum", "rate_in", "rate_out")


class KeptTokens(NamedTuple):
    """What the backward of a sequence needs, and the last memory; by memory, and states also by
    block.
    """

    predictions: Array
    memories: Array
    momenta: Array
    last: Array


def takes(layout: Layout, inputs: Arrays, *, keeps: bool) -> bool:
    """Whether a sequence fits: the running or no memory in the residuals, reads of the running
    memory, arrays of NumPy, enough work, and no state so large that chunks are faster.

    Args:
        keeps: whether a backward follows.
    """
    if layout.reference == "frozen" or layout.read not in AHEAD:
        return False
    size = inputs.queries.shape[-1] * inputs.values.shape[-1]
    if keeps and inputs.S is None and layout.window == 1 and size > LARGE:
        return False
    return fits(*inputs, work=inputs.queries.size * inputs.values.shape[-1] * layout.window)


def fits(*arrays: Array, work: int) -> bool:
    """Whether arrays or tape variables, or None, are of a kind that the loop takes, and `work` is
    enough.
    """
    return work >= WORK and compiled.available_for(*(plain(x) for x in arrays if x is not None))


def run(
    layout: Layout, inputs: Arrays, *, keeps: bool
) -> tuple[Array, End, KeptTokens | None] | None:
    """Run all tokens of a sequence (EXACT-21).

    Args:
        keeps: whether a backward follows.

    Returns:
        y (B, n, o), or None where nothing is read; the end; what the backward needs. None for all
        of it where a result is not finite or Numba cannot be used.
    """
    loop = _loop("token_loop", inputs)
    if loop is None:
        return None
    packed = _packed(inputs)
    M, S = states_of_blocks(inputs.M), states_of_blocks(inputs.S)
    (B, n, d), (blocks, lanes) = inputs.queries.shape, (M.shape[1], M.shape[-1])
    count = -(-n // SEGMENT) if keeps else 0
    sizes = (n * blocks if layout.read != "none" else 0, n * blocks * keeps * (layout.window == 1))
    y, predictions = (np.empty((B, size, lanes), M.dtype) for size in sizes)
    memories = np.empty((B, blocks, count, *M.shape[2:]), M.dtype)
    momenta = memories if S is None else np.empty_like(memories)

    def of_memory(b: int, room: Room) -> None:
        for block in range(blocks):
            loop(
                *packed.of(b),
                _how(layout, block, blocks, SEGMENT if keeps else 0),
                *(M[b, block], None if S is None else S[b, block], y[b]),
                Kept(predictions[b], memories[b, block], momenta[b, block]),
                room,
            )

    _each_memory(of_memory, inputs, partial(Room.of, 0, layout.window, M[0, 0]))
    if not all(np.isfinite(x).all() for x in (M, S, y) if x is not None):
        return None
    o = inputs.values.shape[-1]
    end = End(states_back(M, d, o), None if S is None else states_back(S, d, o))
    kept = KeptTokens(predictions, memories, momenta, M) if keeps else None
    return None if layout.read == "none" else rows_back(y, n, o), end, kept


def backward(
    layout: Layout, inputs: Arrays, kept: KeptTokens, cotangents: Cotangents
) -> Arrays | None:
    """Cotangents of the arguments from those of the results (EXACT-21).

    Returns:
        Arrays that nothing else holds; None for all of it as in `run`.
    """
    loop = _loop("token_loop_backward", inputs)
    if loop is None:
        return None
    packed, M = _packed(inputs), kept.last
    B, blocks = M.shape[:2]
    dM = np.zeros_like(M) if cotangents.M is None else states_of_blocks(cotangents.M)
    dS = None if inputs.S is None else np.zeros_like(M)
    if dS is not None and cotangents.S is not None:
        dS = states_of_blocks(cotangents.S)
    dy = np.zeros_like(inputs.values[:, :0]) if cotangents.y is None else cotangents.y
    dy = read_only(rows_of_blocks(dy))
    of_tokens = Tokens._make(map(np.zeros_like, packed.tokens))
    of_gates = Gates._make(
        np.zeros((B, *x.shape[1:]), x.dtype) for x in packed.gates
    )  # also of weights that all memories share

    def of_memory(b: int, room: Room) -> None:
        for block in range(blocks):
            loop(
                *packed.of(b),
                _how(layout, block, blocks, SEGMENT),
                Kept(kept.predictions[b], kept.memories[b, block], kept.momenta[b, block]),
                *(M[b, block], dy[b], dM[b, block], None if dS is None else dS[b, block]),
                Tokens(*(x[b] for x in of_tokens)),
                Gates(*(x[b] for x in of_gates)),
                room,
            )

    _each_memory(of_memory, inputs, partial(Room.of, SEGMENT, layout.window, M[0, 0]))
    results = (dM, dS, *of_tokens, *of_gates)
    if not all(np.isfinite(x).all() for x in results if x is not None):
        return None
    return _unpacked(inputs, of_tokens, of_gates, dM, dS)


def _loop(name: str, inputs: Arrays) -> Callable[..., None] | None:
    return compiled.loop(
        f"atlas_ref.engine.compiled.{name}",
        *(inputs.queries.dtype, inputs.S is not None, _has_rows(inputs)),
    )


def _has_rows(inputs: Arrays) -> bool:
    """Whether a gate has one number an output dimension."""
    gates = (getattr(inputs, name) for name in GATES)
    return any(gate is not None and gate.shape[-1] > 1 for gate in gates)


def _how(layout: Layout, block: int, blocks: int, segment: int) -> How:
    ahead = AHEAD[layout.read]
    return How(block, blocks, layout.running, layout.before_error, ahead, segment)


def _each_memory(work: Any, inputs: Arrays, room_of: Callable[[], Room]) -> None:
    """Run `work` for each memory, on several threads where that pays; each has room of its own."""
    B = len(inputs.queries)
    pays = inputs.queries.size * inputs.values.shape[-1] >= THREAD_WORK

    def share(memories: slice) -> None:
        room = room_of()
        for b in range(memories.start, memories.stop):
            work(b, room)

    in_threads([partial(share, part) for part in slices(B, min(processors(), B) if pays else 1)])


# -- arrays as the loop takes them -----------------------------------------------------------------


class _Packed(NamedTuple):
    """Tokens and gates of all memories, as the loop takes those of one."""

    tokens: Tokens
    gates: Gates

    def of(self, b: int) -> tuple[Tokens, Gates]:
        gates = (x[b if len(x) > 1 else 0] for x in self.gates)
        return Tokens(*(x[b] for x in self.tokens)), Gates(*gates)


def _packed(inputs: Arrays) -> _Packed:
    keys, values = inputs.keys, inputs.values
    if inputs.earlier_keys is not None:
        keys = np.concatenate([inputs.earlier_keys, keys], axis=1)
        values = np.concatenate([inputs.earlier_values, values], axis=1)
    rows = SUM_BYTES // keys.itemsize
    tokens = (padded(keys, rows), rows_of_blocks(values), padded(inputs.queries, rows))
    gates = (getattr(inputs, name) for name in GATES)
    gates = (inputs.retain if gate is None else gate for gate in gates)
    if _has_rows(inputs):
        shape = (*inputs.queries.shape[:2], values.shape[-1])
        gates = (rows_of_blocks(np.broadcast_to(gate, shape)) for gate in gates)
    else:
        gates = (gate[..., 0] for gate in gates)
    return _Packed(
        Tokens(*map(read_only, tokens)), Gates._make(map(read_only, (*gates, inputs.weights)))
    )


def _unpacked(inputs: Arrays, tokens: Tokens, gates: Gates, dM: Array, dS: Array) -> Arrays:
    """Cotangents in the shapes of the arguments."""
    (_, n, d), o = inputs.queries.shape, inputs.values.shape[-1]
    keys, queries = (np.ascontiguousarray(x[..., :d]) for x in (tokens.keys, tokens.queries))
    values = rows_back(tokens.values, keys.shape[1], o)
    apart = {}
    if inputs.earlier_keys is not None:
        h = inputs.earlier_keys.shape[1]
        apart = {"earlier_keys": keys[:, :h].copy(), "earlier_values": values[:, :h].copy()}
        keys, values = keys[:, h:], values[:, h:]
    of_gates: dict[str, Array] = {}
    for name in GATES:
        gate = getattr(inputs, name)
        if gate is None:
            of_gates[name] = None
        elif _has_rows(inputs):
            each = rows_back(getattr(gates, name), n, o)
            of_gates[name] = each if gate.shape[-1] == o else each.sum(axis=-1, keepdims=True)
        else:
            of_gates[name] = getattr(gates, name)[..., None]
    weights = gates.weights
    return Arrays(
        keys=keys,
        values=values,
        queries=queries,
        **of_gates,
        weights=weights if len(inputs.weights) > 1 else weights.sum(axis=0, keepdims=True),
        M=states_back(dM, d, o),
        S=None if dS is None else states_back(dS, d, o),
        reference=None,
        residuals=None,
        **apart,
    )
