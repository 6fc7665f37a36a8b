"""A deep memory over a sequence: chunks, spans, documents and reads.

Specified in specs/deep_memory.md (DEEP-6, DEEP-14 to DEEP-17). Its special cases, guarantees and
backward: DEEP-22, DEEP-23, DEEP-25.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.parts import gates, memory_functions, window
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.rules import sequence
from atlas_ref.rules.deep_memory import deep_momentum
from atlas_ref.rules.deep_memory import tokens as by_tokens
from atlas_ref.rules.deep_memory.checks import check_call
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.outer import carried, readable
from atlas_ref.rules.deep_memory.state import State, Tensors, call, document
from atlas_ref.rules.deep_memory.write import Rates, Rows, mapped, update
from atlas_ref.types import Array
from tape import ops


class Memory(NamedTuple):
    """Fast tensors between two writes."""

    weights: Tensors
    momentum: Tensors
    reference: Tensors


class Sequence(NamedTuple):
    """A document's tokens, with those before it that a write still sees.

    Attributes:
        keys (..., n + T, d_in), values (..., n + T, d_out), queries (..., T, d_in): after norms.
        token_gates (..., n + T): None where tokens bring none.
        thresholds (..., n + T): of bias huber, None where tokens bring none.
        lags (..., T, c): weights by lag, or None for those of the settings.
        rates: gates (..., T) by name, momentum of several orders (..., m, T).
        active (T,): plain booleans.
        before: n.
        position: of the first of the T tokens.
    """

    keys: Array
    values: Array
    queries: Array
    token_gates: Any
    thresholds: Any
    lags: Any
    rates: Mapping[str, Any]
    active: Any
    before: int
    position: int


def run(
    rule: Any,
    config: Config,
    tokens: sequence.Tokens,
    state: State,
    *,
    phi: Mapping[str, Array] | None = None,
) -> tuple[State, Array]:
    """Drive a deep memory over a sequence (DEEP-14).

    Args:
        state: from `start`, or from an earlier call, which this one then continues.
        phi: tensors of the memory by name: the first weights W_0, and those that no write moves,
            each with leading axes that broadcast against the tokens', or none.

    Returns:
        state after the last token, y (..., T, d_out).

    Raises:
        ValueError: a configuration, tokens, a state or tensors that contradict each other.
    """
    sequence.check_tokens(tokens)
    phi = {} if phi is None else phi
    check_call(rule, config, tokens, state, phi)
    T = tokens.k.shape[-2]
    keys, queries = sequence.features(config, tokens, {})
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    origin, state, reads = state, call(config, state), []
    for first, last in itertools.pairwise([0, *np.nonzero(reset[1:])[0] + 1, T]):
        if reset[first]:
            state = document(config, origin, state)
        part = _part(config, tokens, keys, queries, state, active, slice(first, last))
        memory, y = _document(config, phi, part, state)
        state = _after(config, part, state, memory)
        reads.append(y)
    joined = reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)
    return _read_only(state), joined


def _part(
    config: Config,
    tokens: sequence.Tokens,
    keys: Array,
    queries: Array,
    state: State,
    active: Any,
    of: slice,
) -> Sequence:
    """The tokens of a document within a call, behind those that wait in the state."""

    def own(value: Any, axis: int) -> Any:
        return None if value is None else value[(..., of, *(slice(None),) * axis)]

    gate, before = own(tokens.window_gate, 0), state.keys.shape[-2]
    if gate is not None:
        held = state.token_gates
        if held is None:
            held = ops.ones_like(gate, shape=(*gate.shape[:-1], before))
        gate = ops.concatenate([held, gate], axis=-1)
    retain = tokens.retain
    if retain is not None:
        retain = gates.multiplier(retain, config.convention.gate)
    momentum = tokens.momentum
    if momentum is not None and config.momentum_order > 1:
        momentum = ops.swapaxes(momentum, -1, -2)  # (..., m, T)
    rates = {
        "retain": retain,
        "momentum": momentum,
        "step_size": tokens.step_size,
        "step_size_memory": tokens.step_size_memory,
    }
    return Sequence(
        keys=ops.concatenate([state.keys, own(keys, 1)], axis=-2),
        values=ops.concatenate([state.values, own(tokens.v, 1)], axis=-2),
        queries=own(queries, 1),
        token_gates=gate,
        thresholds=_thresholds(config, state, own(tokens.threshold, 0), keys[..., of, 0]),
        lags=own(tokens.window_weights, 1),
        rates={name: own(value, 0) for name, value in rates.items()},
        active=active[of],
        before=before,
        position=state.position,
    )


def _thresholds(config: Config, state: State, own: Any, like: Array) -> Any:
    """Thresholds of the tokens that wait and of those of a document; the setting where a token
    brings none (DEEP-36).
    """
    held = state.thresholds
    if own is None and held is None:
        return None
    number = config.bias.threshold
    if own is None:
        own = number * ops.ones_like(like)
    if held is None:
        held = number * ops.ones_like(like, shape=state.keys.shape[:-1])
    return ops.concatenate([held, own], axis=-1)


def _document(config: Config, phi: Tensors, part: Sequence, state: State) -> tuple[Memory, Array]:
    """Chunk by chunk: refresh the reference, write at the chunk's end, read (DEEP-14, DEEP-15)."""
    fast, T = config.fast_shapes, part.queries.shape[-2]
    C, place = config.chunked(part.position, T)
    slow = {n: each for n, each in phi.items() if n not in fast and not n.startswith(PREFIX)}
    first = state.weights or _initial(config, phi, part.keys)
    memory = Memory(first, _initial_momentum(config, phi, part.keys, state), state.reference)
    if by_tokens.fits(config, part, slow, first, state.momentum):
        weights = _of_tokens(config, part)
        W, S, y = by_tokens.run(config, slow, first, state.momentum, part, weights)
        return Memory(W, S, state.reference), y
    reads = _Reads(config, slow, first, part.queries)
    read = config.convention.read
    bounds = [0, *range(C - place, T, C), T]
    for start, stop in itertools.pairwise(bounds):
        memory = _refreshed(config, memory, part.position + start)
        due = (place + stop) % C == 0
        flushed = config.unfinished == "flush" and stop == T
        before = memory
        if config.writes and part.active[stop - 1] and (due or flushed):
            memory = _written(config, slow, part, memory, stop - 1)
        if read == "after":
            reads.add(before.weights, stop - 1 if due else stop)
            reads.add(memory.weights if due else before.weights, stop)
        elif read == "before":
            reads.add(before.weights, stop)
        elif read == "chunk_start":
            reads.add(before.reference, stop)
    if read == "call_end":
        reads.add(memory.weights, T)
    return Memory(*carried(config, first, *memory)), reads.all()


def _initial(config: Config, phi: Tensors, like: Array) -> Tensors:
    """W_0 of the memory's tensors for each row, or for all that share it (DEEP-2, DEEP-6)."""
    leading = _of_memories(config, like)
    return {
        name: ops.broadcast_to(phi[name], (*leading, *shape))
        for name, shape in config.fast_shapes.items()
    }


def _initial_momentum(config: Config, phi: Tensors, like: Array, state: State) -> Tensors:
    """S of the state; before the first write of a deep momentum its V_0 (DEEP-37)."""
    if config.deep_momentum is None or state.momentum:
        return state.momentum
    return deep_momentum.first(config, phi, _of_memories(config, like))


def _of_memories(config: Config, like: Array) -> tuple[int, ...]:
    """Leading axes of a memory: those of the tokens, 1 in place of rows that share it."""
    leading = like.shape[:-2]
    return (1, *leading[1:]) if config.coupling == "batch_shared" and leading else leading


def _refreshed(config: Config, memory: Memory, position: int) -> Memory:
    """The memory with its reference taken anew where a span starts (DEEP-8)."""
    c = config.convention
    spans = c.reference == "chunk_start" or c.read == "chunk_start"
    if not spans and c.reference != "call_start":
        return memory
    starts = spans and c.reference != "call_start" and position % (config.span or 1) == 0
    if memory.reference and not starts:
        return memory
    return memory._replace(reference=memory.weights)


def _written(config: Config, slow: Tensors, part: Sequence, memory: Memory, end: int) -> Memory:
    """The memory after the write at a token, of the window that ends there (DEEP-7, DEEP-15)."""
    last = part.before + end + 1
    place = slice(max(0, last - config.window), last)
    rows = Rows(
        keys=part.keys[..., place, :],
        values=part.values[..., place, :],
        weights=_weights(config, part, end, place),
        slow=slow,
        thresholds=None if part.thresholds is None else part.thresholds[..., place],
    )
    rates = {
        name: None if value is None else _of_memory(config, value[..., end])
        for name, value in part.rates.items()
    }
    reference = memory.reference if config.convention.frozen_reference else memory.weights
    begins = config.first_of_span(part.position + end)
    after = update(
        config, memory.weights, memory.momentum, reference, rows, Rates(**rates), first=begins
    )
    memory = memory._replace(weights=after.weights, momentum=after.momentum)
    lagged = begins and config.retention.lag  # behind it gradients are taken at its weights
    return memory._replace(reference=memory.weights) if lagged else memory


def _of_memory(config: Config, gate: Array) -> Array:
    """A gate (...,) of a memory that rows share: the mean of theirs (DEEP-13)."""
    if config.coupling == "per_sample" or not gate.shape:
        return gate
    return ops.sum(gate, axis=0, keepdims=True) / gate.shape[0]


def _weights(config: Config, part: Sequence, end: int, place: slice) -> Array:
    """Weights (..., n) of the tokens of a write, oldest first (DEEP-7)."""
    n, c, gated = place.stop - place.start, config.window, part.token_gates is not None
    lags = _static(config, part.keys, n) if part.lags is None else part.lags[..., end, :]
    if config.convention.window_edge == "renormalise" and n < c and not gated:
        exists = np.arange(c)[None] < n
        lags = window.renormalised(ops.expand_dims(lags, -2), exists)[..., 0, :]
    weights = ops.flip(lags[..., :n], -1)
    return weights * part.token_gates[..., place] if gated else weights


def _of_tokens(config: Config, part: Sequence) -> Array:
    """Weights (..., T) of tokens that are a window of their own (DEEP-7)."""
    lags = _static(config, part.keys, 1) if part.lags is None else part.lags
    if part.token_gates is not None:
        return lags[..., 0] * part.token_gates
    return ops.broadcast_to(lags[..., 0], part.keys.shape[:-1])


def _static(config: Config, like: Array, n: int) -> Array:
    """Weights by lag of a kind without parameters, 1 where tokens alone bring them.

    Of the n lags that have a token, or of all c where the edge needs their sum.
    """
    kind, c = config.window_weights, config.window
    first = c if config.convention.window_edge == "renormalise" else min(n, c)
    row = window.by_lag(kind, {}, window=c, heads=1, like=like, first=first)
    return ops.ones_like(like, shape=(first,)) if row is None else row[0, 0, 0]


class _Reads:
    """Reads in the order of tokens; queries of the same weights read them at once."""

    def __init__(self, config: Config, slow: Tensors, first: Tensors, queries: Array) -> None:
        self.config, self.slow, self.first, self.queries = config, slow, first, queries
        self.weights: Tensors | None = None
        self.begun = self.done = 0
        self.pieces: list[Array] = []

    def add(self, weights: Tensors, stop: int) -> None:
        """Read `weights` with the queries up to `stop`."""
        if stop == self.done:
            return
        if self.weights is not None and weights is not self.weights:
            self._read()
        self.weights, self.done = weights, stop

    def _read(self) -> None:
        if self.weights is None or self.begun == self.done:
            return
        seen = mapped(self.config, readable(self.config, self.first, self.weights))
        queries = self.queries[..., self.begun : self.done, :]
        self.pieces.append(
            memory_functions.apply(self.config.memory, {**self.slow, **seen}, queries)
        )
        self.begun = self.done

    def all(self) -> Array:
        """Every read (..., T, d_out)."""
        self._read()
        return self.pieces[0] if len(self.pieces) == 1 else ops.concatenate(self.pieces, axis=-2)


def _after(config: Config, part: Sequence, state: State, memory: Memory) -> State:
    """The state behind a document's tokens: its last c - 1, and the unfinished chunk (DEEP-5)."""
    T = part.queries.shape[-2]
    C, place = config.chunked(part.position, T)
    waiting = 0 if config.unfinished == "flush" else (place + T) % C
    position = part.position + T + (-(place + T) % C if config.unfinished == "flush" else 0)
    have = part.keys.shape[-2]
    held = slice(max(0, have - (config.window - 1 + waiting)), have)
    return state.replaced(
        keys=part.keys[..., held, :],
        values=part.values[..., held, :],
        token_gates=None if part.token_gates is None else part.token_gates[..., held],
        thresholds=None if part.thresholds is None else part.thresholds[..., held],
        position=position,
        weights=dict(memory.weights),
        momentum=dict(memory.momentum),
        reference=dict(memory.reference),
    )


def _read_only(state: State) -> State:
    """The state with its arrays read-only, as at every boundary, without a copy."""
    for value in state.__dict__.values():
        for array in value.values() if isinstance(value, dict) else (value,):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
    return state
