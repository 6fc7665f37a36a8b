"""Blocks of attention, memory layer and feed-forward on one sequence, token by token.

MAG, MAL, LMM, MAC as public code runs it, and MAC whose segments read the memory before them. The
same numbers as in memory_layer_loops: float64 or complex128, never a conjugate, parameters by the
names of public code, nothing shared with the package under test.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tests.truth import layer_loops
from tests.truth import memory_layer_loops as layer
from tests.truth.layer_loops import norm, rotary
from tests.truth.memory_layer_loops import sigmoid

Array = np.ndarray
Parameters = dict[str, Array]


class Block(NamedTuple):
    """Settings of a block; the defaults are those of public code.

    Attributes:
        kind: mag | mal | lmm | mac | mac_segments.
        mix: gate_mix | attention_times_gate | product | sum.
        gate_input: x | norm, the input of the gate of gate_mix and sum.
        order: of MAL, memory_ff_attention_ff | memory_attention_ff.
        window: earlier rows that a query sees, under counts_self itself among them.
        mode: last_keys | causal.
        visible: persistent rows are right_aligned | always.
        position: under a cache, restart | absolute.
        extra: equal rows of MAC in front of the keys.
        commit_every: tokens after which the hidden state of MAC is renewed.
        segment: tokens of a segment of mac_segments.
    """

    kind: str
    memory: layer.Reading
    mix: str = "gate_mix"
    gate_input: str = "x"
    order: str = "memory_ff_attention_ff"
    window: int = 64
    counts_self: bool = True
    mode: str = "last_keys"
    visible: str = "right_aligned"
    position: str = "restart"
    pairs: str = "interleaved"
    eps: float = float(np.finfo(np.float64).eps)
    gate_half: str = "second"
    activation: str = "silu"
    extra: int = 0
    commit_every: int = 16
    segment: int = 0


class Cache(NamedTuple):
    """Turned keys and values (H, n, d) of earlier tokens of the document, and its tokens so far."""

    keys: Array
    values: Array
    at: int = 0


class Segment(NamedTuple):
    """An open segment: the memory at its start, and its rows so far."""

    S: Array
    reads: tuple[Array, ...] = ()
    tokens: tuple[Array, ...] = ()


class State(NamedTuple):
    """Of a block on one sequence.

    Attributes:
        memory: of the memory layer; of mac, as the last call returned it.
        cache: of the attention, or None.
        committed: of mac, the memory that every call starts from, or None.
        at: tokens that the block saw.
        segment, tail: of mac_segments, the open segment and earlier inputs of the reads.
    """

    memory: layer.State
    cache: Cache | None = None
    committed: layer.State | None = None
    at: int = 0
    segment: Segment | None = None
    tail: Any = None


def below(p: Parameters, start: str) -> Parameters:
    return {name.removeprefix(start): a for name, a in p.items() if name.startswith(start)}


def start(b: Block, p: Parameters) -> State:
    d = len(p["memory.to_q.weight"]) // b.memory.heads
    return State(layer.start(b.memory.heads, d))


def feed_forward(x: Array, p: Parameters, b: Block) -> Array:
    rows = []
    act = layer_loops.silu if b.activation == "silu" else layer_loops.gelu
    for row in x:
        h = p["1.weight"] @ norm(row, "rms", b.eps, "add", p["0.weight"]) + p["1.bias"]
        n = len(h) // 2
        value, gate = (h[:n], h[n:]) if b.gate_half == "second" else (h[n:], h[:n])
        rows.append(p["3.weight"] @ (value * act(gate)) + p["3.bias"])
    return np.array(rows)


def weighed(q: Array, keys: list[Array], values: list[Array]) -> Array:
    """Values by the softmax of their keys' scores with a query."""
    scores = np.array(keys) @ q / math.sqrt(len(q))
    e = np.exp(scores - np.max(np.real(scores)))
    return e @ np.array(values) / np.sum(e)


def projected(row: Array, p: Parameters, H: int) -> Array:
    """Query, key and value of a row, per head (3, H, d)."""
    return (p["to_qkv.weight"] @ row).reshape(3, H, -1)


def attention(
    x: Array, p: Parameters, b: Block, cache: Any = None, extra: Any = None, reset: Any = None
) -> tuple[Array, Cache]:
    """Of x (T, D), and the cache after it.

    Args:
        extra: keys and values (H, N, d) of rows in front of the persistent ones.
    """
    T, H = len(x), b.memory.heads
    rows = [projected(norm(row, "rms", b.eps, "add", p["norm.weight"]), p, H) for row in x]
    n = 0 if cache is None else cache.keys.shape[1]
    first = 0 if cache is None or b.position == "restart" else cache.at
    at, of = layer_loops.positions(T, first, reset), layer_loops.documents(T, n, reset)
    d = rows[0].shape[2]
    persistent = p.get("persist_mem", np.zeros((H, 0, d)))
    freqs = p["rotary_emb.freqs"]
    heads, keys, values = [], [], []
    for h in range(H):
        K = [] if cache is None else list(cache.keys[h])
        V = [] if cache is None else list(cache.values[h])
        K += [rotary(rows[t][1, h], at[t], freqs, b.pairs) for t in range(T)]
        V += [rows[t][2, h] for t in range(T)]
        front = [] if extra is None else list(zip(extra[0][h], extra[1][h], strict=True))
        front += [(row, row) for row in persistent[h]]
        queries = [rotary(rows[t][0, h], at[t], freqs, b.pairs) for t in range(T)]
        heads.append(
            [
                attended(t, n, queries[t], front, list(zip(K, V, strict=True)), of, b)
                for t in range(T)
            ]
        )
        last = [s for s in range(n + T) if of[s - n] == of[T - 1]][-b.window :]
        keys.append(np.array([K[s] for s in last]))
        values.append(np.array([V[s] for s in last]))
    merged = [np.concatenate([heads[h][t] for h in range(H)]) for t in range(T)]
    y = np.array([p["to_out.weight"] @ row for row in merged])
    seen = (0 if cache is None else cache.at) + T
    return y, Cache(np.array(keys), np.array(values), at[-1] + 1 if reset is not None else seen)


def attended(t: int, n: int, q: Array, front: Any, rows: Any, of: Any, b: Block) -> Array:
    """The read of query t of the call, n rows before the call.

    Args:
        front, rows: pairs of key and value: before the sequence, and of it up to the call's end.
    """
    T = len(rows) - n
    if b.mode == "causal":
        low = max(0, n + t - b.window + int(b.counts_self))
        seen = front + [rows[s] for s in range(low, n + t + 1) if of[s - n] == of[t]]
    else:
        held = rows[-b.window :]
        if b.visible == "always":
            seen = front + held[: max(0, t + len(held) - T + 1)]
        else:
            seen = (front + held)[: max(0, t + len(front) + len(held) - T + 1)]
        if not seen:
            return sum(value for _, value in front + held) / len(front + held)
    return weighed(q, [key for key, _ in seen], [value for _, value in seen])


def mixed(x: Array, a: Array, m: Array, p: Parameters, b: Block) -> Array:
    """The stream after attention a and memory m, row by row."""
    rows = []
    for t in range(len(x)):
        if b.mix == "attention_times_gate":
            rows.append(x[t] + a[t] * sigmoid(m[t]))
        elif b.mix == "product":
            left = norm(a[t], "rms", b.eps, "add", p["attention_norm.weight"])
            rows.append(x[t] + left * norm(m[t], "rms", b.eps, "add", p["memory_norm.weight"]))
        else:
            z = x[t]
            if b.gate_input == "norm":
                z = norm(z, "rms", b.eps, "add", p["gate_norm.weight"])
            g = sigmoid(p["gate.0.weight"] @ z + p["gate.0.bias"])
            rows.append(
                x[t] + (g * a[t] + (1.0 - g) * m[t] if b.mix == "gate_mix" else a[t] + g * m[t])
            )
    return np.array(rows)


def block(
    x: Array, p: Parameters, b: Block, state: State, reset: Any = None
) -> tuple[Array, State]:
    """One call of a block on x (T, D)."""
    return {"mag": mag, "mal": mal, "lmm": lmm, "mac": mac, "mac_segments": mac_segments}[b.kind](
        x, p, b, state, reset
    )


def mag(x: Array, p: Parameters, b: Block, state: State, reset: Any) -> tuple[Array, State]:
    a, cache = attention(x, below(p, "attention."), b, state.cache, reset=reset)
    m, memory = layer.memory(x, below(p, "memory."), b.memory, state.memory, reset)
    x = mixed(x, a, m, p, b)
    return x + feed_forward(x, below(p, "ff."), b), state._replace(memory=memory, cache=cache)


def mal(x: Array, p: Parameters, b: Block, state: State, reset: Any) -> tuple[Array, State]:
    m, memory = layer.memory(x, below(p, "memory."), b.memory, state.memory, reset)
    x = x + m
    between = b.order == "memory_ff_attention_ff"
    if between:
        x = x + feed_forward(x, below(p, "ff_pre."), b)
    a, cache = attention(x, below(p, "attention."), b, state.cache, reset=reset)
    x = x + a
    x = x + feed_forward(x, below(p, "ff_post." if between else "ff."), b)
    return x, state._replace(memory=memory, cache=cache)


def lmm(x: Array, p: Parameters, b: Block, state: State, reset: Any) -> tuple[Array, State]:
    m, memory = layer.memory(x, below(p, "memory."), b.memory, state.memory, reset)
    x = x + m
    return x + feed_forward(x, below(p, "ff."), b), state._replace(memory=memory)


def mac(x: Array, p: Parameters, b: Block, state: State, reset: Any) -> tuple[Array, State]:
    """As public code runs it: the mean over the call in front of the keys, a state that lags."""
    if reset is not None:
        raise ValueError("a mean over the call knows no documents")
    T, N, H = len(x), b.extra, b.memory.heads
    before = state.memory if state.committed is None else state.committed
    m, after = layer.memory(x, below(p, "memory."), b.memory, before)
    pooled = norm(sum(m) / T, "rms", b.eps, "add", p["mem_pool_norm.weight"])
    own = below(p, "attention.")
    _, key, value = projected(p["to_mem_tokens.weight"] @ pooled, own, H)
    extra = [np.stack([each] * N, axis=1) for each in (key, value)]
    a, cache = attention(x, own, b, state.cache, extra)
    x = x + a
    at = state.at + T
    committed = after if at % b.commit_every == 0 else state.committed
    returned = layer.start(H, key.shape[1]) if committed is None else committed
    state = state._replace(memory=returned, cache=cache, committed=committed, at=at)
    return x + feed_forward(x, below(p, "ff."), b), state


def mac_segments(
    x: Array, p: Parameters, b: Block, state: State, reset: Any
) -> tuple[Array, State]:
    """A segment's tokens attend to reads of the memory before the segment.

    Token i of a segment of C reads h_i out of the memory at the segment's start, by its own
    convolution over x. Its attention sees the persistent rows, h_0 .. h_i at positions 0 .. i and
    x_0 .. x_i at C .. C + i. The result y_i is written to the memory, which then answers m_i.
    """
    r = b.memory
    rows = []
    for t in range(len(x)):
        if reset is not None and reset[t]:
            state = start(b, p)
        if state.at % b.segment == 0:
            state = state._replace(segment=Segment(state.memory.S))
        h, tail = frozen(x[t], below(p, "memory."), r, state.segment.S, state.tail)
        segment = state.segment._replace(
            reads=(*state.segment.reads, h), tokens=(*state.segment.tokens, x[t])
        )
        y = in_segment(segment, below(p, "attention."), b)
        m, memory = answered(y, below(p, "memory."), r, state.memory, segment.S)
        rows.append(mixed(x[t][None], y[None], m[None], p, b)[0])
        state = state._replace(memory=memory, at=state.at + 1, segment=segment, tail=tail)
    out = np.array(rows)
    return out + feed_forward(out, below(p, "ff."), b), state


def frozen(row: Array, p: Parameters, r: layer.Reading, S: Array, tail: Any) -> tuple[Array, Any]:
    """The read of a row from a memory without writes, and the next tail of the convolution."""
    (token,), tail = layer.of_tokens(row[None], p, r, tail)
    return layer.read(S, token.q, p), tail


def answered(
    y: Array, p: Parameters, r: layer.Reading, state: layer.State, before: Array
) -> tuple[Array, layer.State]:
    """The answer after the write of y, whose error refers to the running memory or to `before`."""
    (token,), tails = layer.of_tokens(y[None], p, r, state.tails)
    reference = state.S if r.reference == "running" else before
    after = layer.written(state, reference, token, r)
    return layer.read(after.S, token.q, p), after._replace(tails=tails)


def in_segment(segment: Segment, p: Parameters, b: Block) -> Array:
    """The attention of a segment's last token, over persistent rows, reads and tokens (D,)."""
    H, C, i = b.memory.heads, b.segment, len(segment.tokens) - 1
    freqs = p["rotary_emb.freqs"]
    rows = [
        projected(norm(row, "rms", b.eps, "add", p["norm.weight"]), p, H)
        for row in (*segment.reads, *segment.tokens)
    ]
    at = [*range(i + 1), *range(C, C + i + 1)]
    heads = []
    for h in range(H):
        front = list(p["persist_mem"][h]) if "persist_mem" in p else []
        keys = [rotary(row[1, h], s, freqs, b.pairs) for row, s in zip(rows, at, strict=True)]
        q = rotary(rows[-1][0, h], C + i, freqs, b.pairs)
        heads.append(weighed(q, front + keys, front + [row[2, h] for row in rows]))
    return p["to_out.weight"] @ np.concatenate(heads)
