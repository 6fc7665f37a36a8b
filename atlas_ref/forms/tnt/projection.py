"""Queries of a memory moved onto the keys of their range, without a matrix for each token.

    q'_t = sum_tau k_tau (k_tau . q_t) / |k_tau|^2          tau in the range of t, tau <= t

Linear attention whose values are the keys: scores inside a block of tokens, one matrix from block
to block. Specified in specs/tnt.md (TNT-7 to TNT-10).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import tape
from atlas_ref import backend
from atlas_ref.engine.associative_scan import scan
from atlas_ref.forms.tnt.config import Global, Local, Projection
from atlas_ref.forms.tnt.state import Initial, Keys
from atlas_ref.types import Array
from tape import ops

#: Tokens of a block: fewer waste fewer scores, more mean fewer matrices.
BLOCK = 64
#: Tokens whose queries are moved at once: their scores and blocks are held while they are.
PIECE = 2048
#: Sums of squares up to this, and down to its inverse, lose nothing in float32 either.
MODERATE = 2.0**40


def projected(
    memory: Global | Local, initial: Initial, k: Array, q: Array, keys: Keys, position: int
) -> tuple[Keys, Array]:
    """The queries P_t q_t of a call, and what the next call needs of its keys (TNT-7).

    Args:
        k, q (..., T, d): raw keys and queries, before norms and feature map.
        keys: of earlier calls.
        position: of the first token in its document.

    Returns:
        keys after the last token, queries (..., T, d).
    """
    projection = memory.projection
    if projection.kind == "none":
        return keys, q
    if projection.kind == "learned":
        return keys, q @ ops.swapaxes(initial.W_QK, -1, -2)
    if projection.range == "window":
        return _windowed(projection, k, q, keys)
    ranges = range_starts(memory, position - 1 + np.arange(k.shape[-2] + 1))
    if projection.kind == "orthogonal":
        k = _orthogonal(projection, k, keys.total, ranges)
    return _in_pieces(projection, k, q, keys, ranges)


def gated(memory: Global | Local, q: Array, moved: Array, gate: Array) -> Array:
    """(1 - g) q + g P q, or P q where the settings have no gate (TNT-24).

    Args:
        q, moved (..., T, d): raw queries, and P q.
        gate (..., T): g of each token; None without one.
    """
    if memory.projection.gate == "none":
        return moved
    gate = ops.expand_dims(gate, -1)
    return (1.0 - gate) * q + gate * moved


def recalled(memory: Global | Local, initial: Initial, q: Array, keys: Keys) -> Array:
    """Queries P q of tokens that bring no key, P of the keys that are held (TNT-23).

    Args:
        q (..., T, d): raw queries.
    """
    projection = memory.projection
    if projection.kind == "none":
        return q
    if projection.kind == "learned":
        return q @ ops.swapaxes(initial.W_QK, -1, -2)
    summed, size = keys.total, keys.size
    if projection.range == "window":
        rows = unit(keys.rows) if projection.norm == "per_key" else keys.rows
        summed = ops.swapaxes(rows, -1, -2) @ rows
        size = ops.sum(ops.sum(rows * rows, axis=-1), axis=-1)
    moved = q @ ops.swapaxes(summed, -1, -2)
    if not _divides_sum(projection):
        return moved
    return _divided(moved, ops.expand_dims(ops.expand_dims(size, -1), -1))


def _keys(*, total: Array = None, size: Array = None, rows: Array = None) -> Keys:
    """What the next call needs, as arrays that were checked."""
    return Keys.trusted(total=total, size=size, rows=rows)


def range_starts(memory: Global | Local, positions: Any) -> Any:
    """Number of the first token of each token's range: tokens of one range share it (TNT-8,
    TNT-26).
    """
    if memory.projection.range == "sequence":
        return np.zeros_like(positions)
    if isinstance(memory, Global):
        return positions - positions % memory.span
    in_shard = positions % memory.shard
    if memory.projection.range == "shard":
        return positions - in_shard
    from_start = in_shard if memory.chunk_origin == "shard" else positions
    return positions - from_start % memory.span


def unit(k: Array) -> Array:
    """k / |k|, and 0 for a zero key, which contributes nothing (TNT-9).

    Where squares are large or small a key is first divided by a power of two near its largest
    entry, as far as the format has its inverse; the quotient does not depend on it.
    """
    with np.errstate(over="ignore", under="ignore"):  # of squares that are then not used
        squares = ops.sum(k * k, axis=-1, keepdims=True)
    size = np.real(ops.stop_gradient(squares))
    if backend.truth(((size > 1 / MODERATE) & (size < MODERATE)).all()):
        return k / ops.sqrt(squares)
    bare = np.abs(np.real(ops.stop_gradient(k)))
    top = np.max(bare, axis=-1, keepdims=True)
    present = top > 0
    most = np.finfo(bare.dtype).maxexp - 2
    power = np.minimum(-np.frexp(np.where(present, top, 1.0))[1], most)  # of subnormal keys too
    scale = np.ldexp(np.ones_like(top), power)
    k = k * scale.astype(bare.dtype)
    squares = ops.sum(k * k, axis=-1, keepdims=True)
    return ops.where(present, k / ops.sqrt(ops.where(present, squares, 1.0)), 0.0)


def _divided(moved: Array, size: Array) -> Array:
    """Queries over the sum of squared norms; 0 where no key has one (TNT-9)."""
    present = np.real(ops.stop_gradient(size)) > 0
    return ops.where(present, moved / ops.where(present, size, 1.0), 0.0)


def _real(x: Array) -> Any:
    """The dtype of the real parts of an array."""
    return np.real(np.empty(0, x.dtype)).dtype


# -- sums over a range -----------------------------------------------------------------------------


class _Blocks:
    """A grid of blocks over the tokens of a call, whatever their ranges.

    Attributes:
        inside (n, B, B): whether a query meets a key of its own block.
        meets (n, B, 1): whether a query meets what its block entered with.
        adds (n, B, 1): whether a key belongs to what its block leaves with.
        keeps (n, 1, 1): 1 where what a block leaves with holds what it entered with, else 0.
        crossed: whether any query meets what its block entered with.
    """

    def __init__(self, projection: Projection, ranges: Any, like: Array) -> None:
        self.T = len(ranges) - 1
        self.B = min(BLOCK, self.T)
        self.n = -(-self.T // self.B)
        padded = np.concatenate([ranges, np.full(self.n * self.B - self.T, ranges[-1])])
        own = padded[1:].reshape(self.n, self.B)
        entered, left = padded[: -1 : self.B, None], own[:, -1:]
        order = np.tri(self.B, k=0 if projection.own == "inclusive" else -1, dtype=bool)
        self.crossed = bool((own == entered).any())
        place, kind = backend.of(like).from_host, _real(like)
        self.inside = place((own[:, :, None] == own[:, None, :]) & order)
        self.meets = place((own == entered)[..., None])
        self.adds = place((own == left)[..., None])
        self.keeps = place((left == entered).astype(kind)[..., None])

    def cut(self, x: Array) -> Array:
        """(..., T, d) as blocks (..., n, B, d), zeros at the end."""
        missing = self.n * self.B - self.T
        if missing:
            zeros = ops.zeros_like(x, shape=(*x.shape[:-2], missing, x.shape[-1]))
            x = ops.concatenate([x, zeros], axis=-2)
        return ops.reshape(x, (*x.shape[:-2], self.n, self.B, x.shape[-1]))

    def joined(self, x: Array) -> Array:
        """Blocks (..., n, B, d) as (..., T, d)."""
        *leading, n, B, d = x.shape
        return ops.reshape(x, (*leading, n * B, d))[..., : self.T, :]

    def entered(self, added: Array, first: Array) -> Array:
        """The sum with which each block begins.

        Args:
            added (..., n, a, b): of each block. first (..., a, b): before the first.
        """
        after = scan(self.keeps, added, axis=-3, initial=first)
        return ops.concatenate([ops.expand_dims(first, -3), after[..., :-1, :, :]], axis=-3)


def _in_pieces(
    projection: Projection, k: Array, q: Array, keys: Keys, ranges: Any
) -> tuple[Keys, Array]:
    """Queries moved piece by piece, each recomputed where it is differentiated (TNT-10).

    Args:
        ranges (T + 1,): number of the first token of each range, that before the call in front.

    Returns:
        sums of the range of the last token, P q (..., T, d).
    """
    pieces = []
    for low in range(0, k.shape[-2], PIECE):
        of = slice(low, low + PIECE)
        own = ranges[low : low + PIECE + 1]
        move = tape.checkpoint(functools.partial(_moved, projection, own))
        arrays = {"k": k[..., of, :], "q": q[..., of, :], "total": keys.total, "size": keys.size}
        arrays = {name: each for name, each in arrays.items() if each is not None}
        pieces.append(move(arrays))
        keys = _held(projection, own, arrays["k"], keys)
    return keys, pieces[0] if len(pieces) == 1 else ops.concatenate(pieces, axis=-2)


def _moved(projection: Projection, ranges: Any, arrays: dict[str, Array]) -> Array:
    """sum k (k . q) over each query's range, over its norms where they are asked for (TNT-9).

    A key that a query does not meet is left out before its product, whatever its size.
    """
    k = _divisible(projection, arrays["k"])
    blocks = _Blocks(projection, ranges, k)
    K, Q = blocks.cut(k), blocks.cut(arrays["q"])
    moved = ops.where(blocks.inside, Q @ ops.swapaxes(K, -1, -2), 0.0) @ K
    if blocks.crossed:
        kept = ops.where(blocks.adds, K, 0.0)
        before = blocks.entered(ops.swapaxes(kept, -1, -2) @ kept, arrays["total"])
        # P q and not q P: the same numbers, since P is symmetric, but the derivative by P is P q's
        moved = moved + ops.where(blocks.meets, Q, 0.0) @ ops.swapaxes(before, -1, -2)
    moved = blocks.joined(moved)
    if not _divides_sum(projection):
        return moved
    squares = blocks.cut(ops.sum(k * k, axis=-1, keepdims=True))
    inside = ops.where(blocks.inside, ops.swapaxes(squares, -1, -2), 0.0)
    size = ops.sum(inside, axis=-1, keepdims=True)
    if blocks.crossed:
        added = ops.sum(ops.where(blocks.adds, squares, 0.0), axis=-2, keepdims=True)
        first = ops.expand_dims(ops.expand_dims(arrays["size"], -1), -1)
        size = size + ops.where(blocks.meets, blocks.entered(added, first), 0.0)
    return _divided(moved, blocks.joined(size))


def _held(projection: Projection, ranges: Any, k: Array, keys: Keys) -> Keys:
    """Sums over the range of the last token, which may have begun before these keys (TNT-11)."""
    first = int(np.argmax(ranges[1:] == ranges[-1]))
    k = _divisible(projection, k[..., first:, :])
    total = ops.swapaxes(k, -1, -2) @ k
    size = ops.sum(ops.sum(k * k, axis=-1), axis=-1) if _divides_sum(projection) else None
    if ranges[0] != ranges[-1]:
        return _keys(total=total, size=size)
    return _keys(total=keys.total + total, size=None if size is None else keys.size + size)


def _divides_sum(projection: Projection) -> bool:
    return projection.kind == "sum_outer" and projection.norm == "sum_of_norms"


def _divisible(projection: Projection, k: Array) -> Array:
    """Keys of length one, where each outer product is divided by its key's squared norm (TNT-9)."""
    each = projection.kind == "sum_outer" and projection.norm == "per_key"
    return unit(k) if each else k


def _windowed(projection: Projection, k: Array, q: Array, keys: Keys) -> tuple[Keys, Array]:
    """Queries over the last keys of the document, block by block (TNT-8)."""
    newest = 0 if projection.own == "inclusive" else 1
    reach = int(projection.window or 1) - 1 + newest
    rows = ops.concatenate([keys.rows, k], axis=-2)
    n, T = rows.shape[-2] - k.shape[-2], k.shape[-2]
    used = unit(rows) if projection.norm == "per_key" else rows
    pieces = []
    for low in range(0, T, BLOCK):
        high = min(low + BLOCK, T)
        place = slice(max(0, n + low - reach), n + high)
        lag = np.arange(n + low, n + high)[:, None] - np.arange(place.start, place.stop)
        seen = backend.of(k).from_host((lag >= newest) & (lag <= reach))
        K = used[..., place, :]
        scores = ops.where(seen, q[..., low:high, :] @ ops.swapaxes(K, -1, -2), 0.0)
        moved = scores @ K
        if projection.norm == "sum_of_norms":
            squares = ops.expand_dims(ops.sum(K * K, axis=-1), -2)
            size = ops.sum(ops.where(seen, squares, 0.0), axis=-1, keepdims=True)
            moved = _divided(moved, size)
        pieces.append(moved)
    held = slice(max(0, n + T - reach), n + T)
    y = pieces[0] if len(pieces) == 1 else ops.concatenate(pieces, axis=-2)
    return _keys(rows=ops.concatenate([rows[..., held, :]], axis=-2)), y


def _orthogonal(projection: Projection, k: Array, first: Array, ranges: Any) -> Array:
    """The unit rest (..., T, d) of each key, 0 for a dependent one.

    Gram-Schmidt token by token, each key freed twice of what the keys before it span (TNT-7).
    """
    total, rows = first, []
    for t in range(k.shape[-2]):
        if ranges[t + 1] != ranges[t]:
            total = ops.zeros_like(total)
        key = unit(k[..., t, :])
        rest = key - _times(total, key)
        rest = rest - _times(total, rest)
        length = np.real(ops.stop_gradient(ops.sum(rest * rest, axis=-1, keepdims=True)))
        free = length > projection.dependent**2
        row = ops.where(free, unit(ops.where(free, rest, 1.0)), 0.0)
        total = total + ops.outer(row, row)
        rows.append(row)
    return ops.stack(rows, axis=-2)


def _times(matrix: Array, x: Array) -> Array:
    return (matrix @ ops.expand_dims(x, -1))[..., 0]
