"""The backward of the compiled loop over tokens; plain twin: `atlas_ref.forms.chunked_plain`.

States are recomputed from one that is kept each segment. With one key a token, a pass over the
state takes the cotangents through the reads before a token and through the token before it.
Specified in specs/exact.md (EXACT-21).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.backend.compiled.lanes import compiled, load, on_disk, store, total, zeros
from atlas_ref.engine.compiled.arguments import Gates, How, Kept, Room, Tokens
from atlas_ref.engine.compiled.columns import (
    add_gate,
    add_outer,
    add_sums,
    add_two_sums,
    copy,
    entry,
    gates_at,
    products,
    scale,
    unit,
)
from atlas_ref.engine.compiled.signatures import types_of
from atlas_ref.engine.compiled.token_loop import entries
from atlas_ref.types import Array


def compiled_for(kind: Any, momentum: bool, rows: bool) -> Any:
    """The backward for a dtype, with or without a momentum and rows of gates."""
    return on_disk(backward, types_of("backward", kind, momentum=momentum, rows=rows))


@compiled
def recompute(
    tokens: Tokens, gates: Gates, how: How, kept: Kept, S: Any, first: int, last: int, room: Room
) -> None:
    """The states before and after each token of a segment, predictions, and what enters."""
    c = gates.weights.shape[1]
    copy(kept.memories[first // how.segment], room.memories[0])
    if S is not None:
        copy(kept.momenta[first // how.segment], room.momenta[0])
    for t in range(first, last):
        n = t - first
        r, m, b, a = gates_at(gates, how, t)
        x = zeros(room.entries)
        if c == 1:
            row = how.blocks * t + how.block
            v, p = load(tokens.values, row), load(kept.predictions, row)
            store(room.predictions, n, p)
            x = entry(S, p, v, gates.weights[t, 0], r, b, a, how.before_error)
            store(room.entries, n, x)
        else:
            entries(
                *(room.memories[n], S, tokens, gates, how, t, room.predictions, room.entries, n)
            )
        before, after = room.memories[n], room.memories[n + 1]
        if c == 1:
            advance(before, S, room, n, tokens.keys[t], x, r, m, b)
        elif S is None:
            add_outer(before, r, tokens.keys, t + c - 1, c, room.entries, n * c, after)
        else:
            now = room.momenta[n + 1]
            add_outer(room.momenta[n], m, tokens.keys, t + c - 1, c, room.entries, n * c, now)
            for i in range(before.shape[0]):
                store(after, i, r * load(before, i) - b * load(now, i))


@compiled
def advance(
    before: Array, S: Any, room: Room, n: int, k: Array, x: Any, r: Any, m: Any, b: Any
) -> None:
    """`write` from one place of the room into the next."""
    after, momentum, now = room.memories[n + 1], room.momenta[n], room.momenta[n + 1]
    for i in range(len(k)):
        if S is None:
            store(after, i, r * load(before, i) + k[i] * x)
        else:
            s = m * load(momentum, i) + k[i] * x
            store(now, i, s)
            store(after, i, r * load(before, i) - b * s)


@compiled
def add_products(
    dM: Array, f: Any, keys: Array, last: int, c: int, zs: Array, q: Array, g: Any
) -> None:
    """dM <- f dM + sum_j k_{last-j} z_j^T + q g^T."""
    for i in range(0, dM.shape[0], 2):
        d0, d1 = f * load(dM, i) + q[i] * g, f * load(dM, i + 1) + q[i + 1] * g
        for j in range(c):
            k, z = keys[last - j], load(zs, j)
            d0 = d0 + k[i] * z
            d1 = d1 + k[i + 1] * z
        store(dM, i, d0)
        store(dM, i + 1, d1)


@compiled
def through_memory(
    dM: Array, dS: Any, f: Any, before: Array, S: Array, S_before: Array, b: Any
) -> tuple[Any, Any, Any]:
    """Cotangents from M' = r M - b S', S' = m S + ... to r, b and m; dS <- f dS - b dM."""
    dr, db, dm = zeros(dM), zeros(dM), zeros(dM)
    for i in range(dM.shape[0]):
        g = load(dM, i)
        dr = dr + g * load(before, i)
        if dS is not None:
            db = db - g * load(S, i)
            h = f * load(dS, i) - b * g
            dm = dm + h * load(S_before, i)
            store(dS, i, h)
    return dr, db, dm


@compiled
def step_back(
    dM: Array,
    dS: Any,
    f: Any,
    fS: Any,
    k: Array,
    z: Any,
    q: Array,
    g: Any,
    before: Array,
    S: Array,
    S_before: Array,
    b: Any,
    k_before: Array,
) -> tuple[Any, Any, Any, Any]:
    """`add_products`, `through_memory` and `product` of a token with one key, in one pass."""
    dr, db, dm, u = zeros(dM), zeros(dM), zeros(dM), zeros(dM)
    for i in range(dM.shape[0]):
        d = f * load(dM, i) + k[i] * z + q[i] * g
        store(dM, i, d)
        dr = dr + d * load(before, i)
        if dS is None:
            u = u + k_before[i] * d
        else:
            db = db - d * load(S, i)
            h = fS * load(dS, i) - b * d
            dm = dm + h * load(S_before, i)
            u = u + k_before[i] * h
            store(dS, i, h)
    return dr, db, dm, u


@compiled
def through_entries(
    tokens: Tokens,
    gates: Gates,
    how: How,
    t: int,
    S: Any,
    room: Room,
    d_tokens: Tokens,
    d_gates: Gates,
) -> tuple[Any, Any, Any]:
    """Cotangents from what enters at a token to values, weights, r, b and a.

    Rows of `room.cotangents` become those of the predictions.
    """
    c, n = gates.weights.shape[1], t % how.segment
    r, _, b, a = gates_at(gates, how, t)
    dr = da = db = zeros(room.entries)
    for j in range(c):
        row = how.blocks * (t + c - 1 - j) + how.block
        w, u = gates.weights[t, j], load(room.cotangents, j)
        p = load(room.predictions, n * c + j)
        e = (r * p if how.before_error else p) - load(tokens.values, row)
        if S is None:
            db = db - (a * w) * (e * u)
            u = (b * -1) * u
        da = da + w * (e * u)
        d_gates.weights[t, j] += total(a * (e * u))
        de = (a * w) * u
        store(d_tokens.values, row, load(d_tokens.values, row) - de)
        if how.before_error:
            dr = dr + de * p
            de = r * de
        store(room.cotangents, j, de)
    return dr, db, da


def backward(
    tokens: Tokens,
    gates: Gates,
    how: How,
    kept: Kept,
    M: Array,
    dy: Array,
    dM: Array,
    dS: Any,
    d_tokens: Tokens,
    d_gates: Gates,
    room: Room,
) -> None:
    """Cotangents of everything that `forward` takes, from those of its results (EXACT-21).

    Args:
        M (d, lanes): the last memory, transposed.
        dM, dS (d, lanes): cotangents of the last state; overwritten by those of the first.
        d_tokens, d_gates: zeros at first; those of gates of one number, of weights and of tokens
            are added to.
    """
    T, c, none = len(tokens.queries), gates.weights.shape[1], room.no_key[0]
    nothing, zs = zeros(M), room.cotangents
    f = fS = unit(gates.retain, M)
    for t in range(T, -1, -1):  # through what is asked of the memory before token t, then t - 1
        n, last, now = (t - 1) % how.segment, t + c - 1, M
        if t > 0 and (n == how.segment - 1 or t == T):
            recompute(tokens, gates, how, kept, dS, t - 1 - n, t, room)
        if t < T:
            f, fS, _, _ = gates_at(gates, how, t)
            now = room.memories[n + 1] if t > 0 else kept.memories[0]
        q, g, asked = none, nothing, c if how.running and t < T else 0
        reader = t - 1 + how.ahead
        reads = how.ahead >= 0 and 0 <= reader < T
        if reads:
            q, g = tokens.queries[reader], load(dy, how.blocks * reader + how.block)
        if reads and asked == 1:
            add_two_sums(now, load(zs, 0), d_tokens.keys[last], g, d_tokens.queries[reader])
        else:
            if reads:
                add_sums(now, g, d_tokens.queries[reader])
            for j in range(asked):
                add_sums(now, load(zs, j), d_tokens.keys[last - j])
        if t == 0:
            add_products(dM, f, tokens.keys, last, asked, zs, q, g)
            if dS is not None:
                scale(dS, fS)
        else:
            through_token(
                *(tokens, gates, how, t - 1, asked, f, fS, q, g, dM, dS, d_tokens, d_gates, room)
            )


@compiled
def through_token(
    tokens: Tokens,
    gates: Gates,
    how: How,
    t: int,
    asked: int,
    f: Any,
    fS: Any,
    q: Array,
    g: Any,
    dM: Array,
    dS: Any,
    d_tokens: Tokens,
    d_gates: Gates,
    room: Room,
) -> None:
    """Cotangents from the state after a token, and what is asked of it, to those of the token.

    The factors f and fS of the next token still belong to the cotangents of the state.
    """
    n, c, row = t % how.segment, gates.weights.shape[1], how.blocks * t + how.block
    last = t + c - 1
    _, _, b, _ = gates_at(gates, how, t)
    before, S_before, S = room.memories[n], room.momenta[n], room.momenta[n + 1]
    zs, keys = room.cotangents, tokens.keys
    if c == 1:
        k = keys[t + asked]  # times zero, where nothing is asked
        z = load(zs, 0) if asked else zeros(dM)
        dr, db, dm, u = step_back(dM, dS, f, fS, k, z, q, g, before, S, S_before, b, keys[t])
        store(zs, 0, u)
    else:
        add_products(dM, f, keys, last + 1, asked, zs, q, g)
        dr, db, dm = through_memory(dM, dS, fS, before, S, S_before, b)
    if dS is None:
        carried = dM
    else:
        carried = dS
        add_gate(d_gates.momentum, t, row, dm)
    if c > 1:
        products(carried, keys, last, c, zs, 0)
    for j in range(c):
        add_sums(carried, load(room.entries, n * c + j), d_tokens.keys[last - j])
    dr_of_error, db_of_entry, da = through_entries(
        *(tokens, gates, how, t, dS, room, d_tokens, d_gates)
    )
    add_gate(d_gates.retain, t, row, dr + dr_of_error)
    add_gate(d_gates.rate_out, t, row, db + db_of_entry)
    add_gate(d_gates.rate_in, t, row, da)
