"""The loop over the tokens of a block of columns, compiled; plain twin:
`atlas_ref.forms.chunked_plain`.

    e_j = R phi_{t-j} - v_{t-j},   S <- m S + a sum_j w_j e_j phi_{t-j}^T,   M <- r M - b S,   y = M psi

The state is transposed: a row belongs to an entry of the key, and its numbers, one an output
dimension, fill one vector. With one key a token, a pass over the state writes, reads, and predicts
the next token's value. Specified in specs/exact.md (EXACT-21).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.backend.compiled.lanes import compiled, load, on_disk, store, zeros
from atlas_ref.engine.compiled.arguments import Gates, How, Kept, Room, Tokens
from atlas_ref.engine.compiled.columns import add_outer, copy, entry, gates_at, product, products
from atlas_ref.engine.compiled.signatures import types_of
from atlas_ref.types import Array


def compiled_for(kind: Any, momentum: bool, rows: bool) -> Any:
    """The loop for a dtype, with or without a momentum and rows of gates."""
    return on_disk(forward, types_of("forward", kind, momentum=momentum, rows=rows))


@compiled
def write(
    M: Array, S: Any, k: Array, x: Any, r: Any, m: Any, b: Any, q: Array, n: Array
) -> tuple[Any, Any]:
    """Write a token, and read M q and M n.

    S <- m S + k x^T,   M <- r M - b S;   without momentum M <- r M + k x^T
    """
    y, p = zeros(M), zeros(M)
    for i in range(len(k)):
        if S is None:
            after = r * load(M, i) + k[i] * x
        else:
            s = m * load(S, i) + k[i] * x
            store(S, i, s)
            after = r * load(M, i) - b * s
        store(M, i, after)
        y = y + q[i] * after
        p = p + n[i] * after
    return y, p


@compiled
def decay_and_read(M: Array, S: Array, r: Any, b: Any, q: Array) -> Any:
    """M <- r M - b S, then M q."""
    y = zeros(M)
    for i in range(M.shape[0]):
        after = r * load(M, i) - b * load(S, i)
        store(M, i, after)
        y = y + q[i] * after
    return y


@compiled
def entries(
    M: Array, S: Any, tokens: Tokens, gates: Gates, how: How, t: int, ps: Array, xs: Array, n: int
) -> None:
    """Predictions and what enters, of all keys that a token looks at, into rows from n c on."""
    c = gates.weights.shape[1]
    last = t + c - 1
    r, _, b, a = gates_at(gates, how, t)
    if how.running:
        products(M, tokens.keys, last, c, ps, n * c)
    for j in range(c):
        v = load(tokens.values, how.blocks * (last - j) + how.block)
        x = entry(S, load(ps, n * c + j), v, gates.weights[t, j], r, b, a, how.before_error)
        store(xs, n * c + j, x)


@compiled
def keep(M: Array, S: Any, p: Any, how: How, t: int, kept: Kept) -> None:
    """Keep the prediction of a token, and the state before each segment."""
    if how.segment == 0:
        return
    if len(kept.predictions):
        store(kept.predictions, how.blocks * t + how.block, p)
    if t % how.segment == 0:
        copy(M, kept.memories[t // how.segment])
        if S is not None:
            copy(S, kept.momenta[t // how.segment])


def forward(
    tokens: Tokens, gates: Gates, how: How, M: Array, S: Any, y: Array, kept: Kept, room: Room
) -> None:
    """Run a block of columns over all tokens (EXACT-21).

    Args:
        M, S (d, lanes): transposed; overwritten by those at the end. S is None without momentum.
        y (T blocks, lanes): the reads; empty where nothing is read.
        kept: for the backward; empty where there is none.
    """
    T, c, none = len(tokens.queries), gates.weights.shape[1], room.no_key[0]
    p = zeros(M)
    if how.running and c == 1:
        p = product(M, tokens.keys[0])
    if how.ahead == 1:
        store(y, how.block, product(M, tokens.queries[0]))
    for t in range(T):
        keep(M, S, p, how, t, kept)
        r, m, b, a = gates_at(gates, how, t)
        reader = t + how.ahead
        reads = how.ahead >= 0 and reader < T
        q = tokens.queries[reader] if reads else none
        if c == 1:
            v = load(tokens.values, how.blocks * t + how.block)
            x = entry(S, p, v, gates.weights[t, 0], r, b, a, how.before_error)
            n = tokens.keys[t + 1] if how.running and t + 1 < T else none
            read, p = write(M, S, tokens.keys[t], x, r, m, b, q, n)
        else:
            entries(M, S, tokens, gates, how, t, room.predictions, room.entries, 0)
            if S is None:
                add_outer(M, r, tokens.keys, t + c - 1, c, room.entries, 0, M)
                read = product(M, q)
            else:
                add_outer(S, m, tokens.keys, t + c - 1, c, room.entries, 0, S)
                read = decay_and_read(M, S, r, b, q)
        if reads:
            store(y, how.blocks * reader + how.block, read)
