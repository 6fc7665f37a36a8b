"""Queries of a local memory moved by P, token by token, from the definition (TNT-7 to TNT-9).

It shares no code with `atlas_ref.forms.tnt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.tnt.settings import Memory
from atlas_ref.types import Array
from tape import ops

#: Called with each moved query and its token; the value with which the program goes on.
Take = Callable[[int, Array], Array]


class Rounds(NamedTuple):
    """The arithmetic of sums and products, and the rounding of keys brought to length one."""

    way: Arithmetic
    touch: Callable[[Array], Array]


class Held(NamedTuple):
    """What P is made of: a matrix, the squared norms of its keys, or the last keys themselves."""

    P: Array = None
    P_size: Array = None
    P_keys: Array = None


def move_queries(
    m: Memory,
    k: Array,
    q: Array,
    held: Held,
    number: int,
    rounds: Rounds,
    take: Take = lambda t, x: x,
    W: Array = None,
) -> tuple[Array, Held]:
    """The queries P_t q_t of a document, and what the next token finds.

    Args:
        k, q (..., T, d): as the tokens bring them.
        number: of the first token in its document.
        W (..., d, d): the matrix of kind learned.
    """
    p, T = m.projection, k.shape[-2]
    if p.kind == "none":
        return q, held
    if p.kind == "learned":
        found = rounds.way.matmul(q, ops.swapaxes(W, -1, -2))
        return _stack([take(t, found[..., t, :]) for t in range(T)]), held
    if p.range == "window":
        return _of_window(m, k, q, held, rounds, take)
    reads = []
    for t in range(T):
        if _start(m, number + t) != _start(m, number + t - 1):
            held = _empty(held)
        before, held = held, _add_key(m, k[..., t, :], held, rounds)
        of = held if p.own == "inclusive" else before
        reads.append(take(t, _project(m, of, q[..., t, :], rounds.way)))
    return _stack(reads), held


def nothing(m: Memory, like: Array, lead: tuple[int, ...]) -> Held:
    """What P is made of before the first key (TNT-8)."""
    p, d = m.projection, like.shape[-1]
    if p.kind in ("none", "learned"):
        return Held()
    if p.range == "window":
        return Held(P_keys=ops.zeros_like(like, shape=(*lead, 0, d)))
    size = ops.zeros_like(like, shape=lead) if has_size(p) else None
    return Held(P=ops.zeros_like(like, shape=(*lead, d, d)), P_size=size)


def has_size(p: Any) -> bool:
    """Whether P is divided by the squared norms of its keys together (TNT-9)."""
    return bool(p.kind == "sum_outer" and p.norm == "sum_of_norms")


def names(p: Any) -> tuple[str, ...]:
    """Names of what a next call finds of P (TNT-11)."""
    if p.kind in ("none", "learned"):
        return ()
    if p.range == "window":
        return ("P_keys",)
    return ("P", "P_size") if has_size(p) else ("P",)


def reach(p: Any) -> int:
    """Keys of before that a token of range window meets."""
    return int(p.window) - (1 if p.own == "inclusive" else 0)


def _start(m: Memory, number: int) -> int:
    """Number of the first token whose key P of a token holds (TNT-8)."""
    back = {"sequence": number, "shard": m.in_shard(number), "chunk": m.place(number)}
    return int(number - back[m.projection.range])


def _empty(held: Held) -> Held:
    return Held(*(None if x is None else ops.zeros_like(x) for x in held))


def _add_key(m: Memory, key: Array, held: Held, rounds: Rounds) -> Held:
    """P and a further key (TNT-7, TNT-9)."""
    p = m.projection
    if p.kind == "orthogonal":
        return held._replace(P=_extend_projector(m, unit(key), held.P, rounds))
    row = rounds.touch(unit(key)) if p.norm == "per_key" else key
    total = held.P + ops.outer(row, row)
    if not has_size(p):
        return held._replace(P=total)
    return held._replace(P=total, P_size=held.P_size + ops.sum(key * key, axis=-1))


def _extend_projector(m: Memory, key: Array, P: Array, rounds: Rounds) -> Array:
    """The projector onto the keys and a further one, by Gram-Schmidt."""
    rest = key
    for _ in range(2):
        rest = rest - rounds.way.matmul(P, ops.expand_dims(rest, -1))[..., 0]
    length = np.real(ops.stop_gradient(ops.sum(rest * rest, axis=-1, keepdims=True)))
    free = length > m.projection.dependent**2
    row = ops.where(free, rounds.touch(unit(ops.where(free, rest, 1.0))), 0.0)
    return P + ops.outer(row, row)


def _project(m: Memory, held: Held, q: Array, way: Arithmetic) -> Array:
    found = way.matmul(held.P, ops.expand_dims(q, -1))[..., 0]
    return _over(found, ops.expand_dims(held.P_size, -1)) if has_size(m.projection) else found


def _over(x: Array, size: Array) -> Array:
    """x / size, and 0 where no key has a length."""
    some = np.real(ops.stop_gradient(size)) > 0
    return ops.where(some, x / ops.where(some, size, 1.0), 0.0)


def _of_window(
    m: Memory, k: Array, q: Array, held: Held, rounds: Rounds, take: Take
) -> tuple[Array, Held]:
    """The same over the last keys of the document (TNT-8)."""
    p, way = m.projection, rounds.way
    most = int(p.window or 1)
    rows = ops.concatenate([held.P_keys, k], axis=-2)
    n = held.P_keys.shape[-2]
    used = rounds.touch(unit(rows)) if p.norm == "per_key" else rows
    reads = []
    for t in range(k.shape[-2]):
        last = n + t + (1 if p.own == "inclusive" else 0)
        seen = (..., slice(max(0, last - most), last), slice(None))
        if last == 0:
            reads.append(take(t, ops.zeros_like(q[..., t, :])))
            continue
        K = used[seen]
        scores = way.matmul(K, ops.expand_dims(q[..., t, :], -1))
        found = way.matmul(ops.swapaxes(K, -1, -2), scores)[..., 0]
        if has_size(p):
            total = ops.sum(ops.sum(K * K, axis=-1), axis=-1, keepdims=True)
            found = _over(found, total)
        reads.append(take(t, found))
    kept = rows[..., max(0, rows.shape[-2] - reach(p)) :, :]
    return _stack(reads), Held(P_keys=kept)


def unit(k: Array) -> Array:
    """k / |k|, whatever its size, and 0 for a key of zeros (TNT-9)."""
    bare = np.abs(np.real(ops.stop_gradient(k)))
    top = np.max(bare, axis=-1, keepdims=True)
    some = top > 0
    least = np.finfo(bare.dtype).tiny  # the inverse of a smaller one is infinite
    power = np.exp2(np.floor(np.log2(np.maximum(np.where(some, top, 1.0), least))))
    scaled = k * (1.0 / power).astype(bare.dtype)
    squares = ops.sum(scaled * scaled, axis=-1, keepdims=True)
    return ops.where(some, scaled / ops.sqrt(ops.where(some, squares, 1.0)), 0.0)


def _stack(reads: list[Array]) -> Array:
    return ops.stack(reads, axis=-2)


def of_inputs(inputs: Mapping[str, Array], m: Memory, nothing: Held) -> Held:
    """What a call before has left; nothing where it left what another projection needs."""
    left = {each: inputs.get(f"in/state/{m.name}/{each}") for each in names(m.projection)}
    return nothing if None in [x if x is None else 0 for x in left.values()] else Held(**left)
