"""Causal attention in a window, chunk by chunk; plain twin: `layers.attention.plain_attention`.

Target: time and memory linear in T, at most 1.3 times the time of the layer's useful products at
T = 1024, window 64; the plain twin takes T / window times as many. Measured by `benchmarks.layers`.

A chunk of C queries meets C + R - 1 keys, of which each query sees R. Column u is seen by query i
for u in i .. i + R - 1, so of columns u and u + R exactly one: folded onto each other they fill R
rows, and no exponential is wasted. Time is the last axis of all arrays, queries are the last axis
of scores, so that sums over keys run along the processor's vectors.

Specified in specs/attention.md (ATTENTION-11, ATTENTION-12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import as_strided, at_once, of, on_host
from atlas_ref.backend.scratch import scratch
from atlas_ref.types import Array
from tape import opaque

#: Queries of a chunk: fewer waste fewer products, more make them larger.
CHUNK = 32
#: Numbers of scores that are computed at once, which stay in the second cache.
NUMBERS = 2**17


class Layout(NamedTuple):
    """What the arrays of a call do not say.

    Attributes:
        reach: R, keys of its window that a query sees, itself one of them.
        interleaved: whether rotary pairs are neighbours, else halves apart; None without rotation.
        first (T,): for each query the first row that it may see, counted from the start of the
            call: that of its document, or of the rows before the call.
    """

    reach: int
    interleaved: bool | None
    first: Any


class Kept(NamedTuple):
    """What the forward keeps: padded arrays over (N, d, columns), N = batch times heads.

    Attributes:
        scores (N, chunks, P + R + C - 1, C): exp(score - top), 0 where not seen.
        total (N, chunks, 1, C): their sums.
        y (N, d, tokens).
    """

    queries: Array
    keys: Array
    values: Array
    persistent: Array
    scores: Array
    total: Array
    y: Array


def block(
    plain: Callable[..., Any], layout: Layout, cos: Array, sin: Array, scale: float
) -> Callable[..., Any]:
    """The attention of one call as one opaque block.

    Args:
        plain: the same function in tape ops.
        cos, sin (T, d/2): of the rotation.
        scale: of the scores.

    Returns:
        a function of qkv (B, 3, H, T, d), earlier keys and values (B, H, n, d) and persistent rows
        (H, P, d), to reads (B, H, T, d) and rotated keys (B, H, T, d).
    """

    def forward(*arrays: Array) -> tuple[Any, Any]:
        value, kept = _forward(layout, cos.T, sin.T, scale, *arrays)
        return value, (kept, arrays)

    def backward(residuals: Any, g: Any) -> tuple[Array, ...]:
        kept, arrays = residuals
        return _backward(layout, cos.T, sin.T, scale, kept, arrays, g)

    return opaque(plain, forward, backward)


# -- forward ---------------------------------------------------------------------------------------


def _forward(
    layout: Layout,
    cos: Array,
    sin: Array,
    scale: float,
    qkv: Array,
    earlier_keys: Array,
    earlier_values: Array,
    persistent: Array,
) -> tuple[tuple[Array, Array], Kept]:
    B, _, H, T, d = qkv.shape
    C, chunks, R = _sizes(layout, T)
    kind = np.result_type(qkv, earlier_keys, earlier_values, persistent)
    x = qkv.swapaxes(-1, -2)  # (B, 3, H, d, T)
    keys, values, queries, y = (
        _padded(qkv, kind, (B, H, d, R - 1, T, chunks * C - T)) for _ in range(4)
    )
    for padded, earlier in ((keys, earlier_keys), (values, earlier_values)):
        n = min(R - 1, earlier.shape[-2])
        padded[..., R - 1 - n : R - 1] = earlier[..., earlier.shape[-2] - n :, :].swapaxes(-1, -2)
    values[..., R - 1 : R - 1 + T] = x[:, 2]
    queries, y = (each[..., R - 1 :] for each in (queries, y))
    _rotate(layout, x[:, 0], cos * scale, sin * scale, queries[..., :T], scale)
    _rotate(layout, x[:, 1], cos, sin, keys[..., R - 1 : R - 1 + T])
    rows = persistent.shape[-2]
    scores = np.empty_like(qkv, kind, order="C", shape=(B * H, chunks, rows + R - 1 + C, C))
    total = np.empty_like(qkv, kind, order="C", shape=(B * H, chunks, 1, C))
    kept = Kept(
        queries=_joined(queries),
        keys=_joined(keys),
        values=_joined(values),
        persistent=_heads(persistent, B),
        scores=scores,
        total=total,
        y=_joined(y),
    )
    blocked = _blocked(layout, T)
    for part, some in _parts(scores):
        with scratch.frame():
            _attend(kept, layout, part, some, blocked)
    rotated = keys[..., R - 1 : R - 1 + T].swapaxes(-1, -2)
    return (y[..., :T].swapaxes(-1, -2), rotated), kept


def _sizes(layout: Layout, tokens: int) -> tuple[int, int, int]:
    """Queries of a chunk, chunks, and keys that a query sees."""
    C = min(CHUNK, layout.reach, tokens)
    return C, -(-tokens // C), layout.reach


def _padded(like: Array, kind: Any, sizes: tuple[int, ...]) -> Array:
    """Zeros before and after the columns of a call, (B, H, d, before + T + after)."""
    B, H, d, before, T, after = sizes
    room = np.empty_like(like, kind, order="C", shape=(B, H, d, before + T + after))
    room[..., :before] = 0.0
    room[..., before + T :] = 0.0
    return room


def _joined(x: Array) -> Array:
    """Batch and heads as one axis, without a copy."""
    return as_strided(x, (x.shape[0] * x.shape[1], *x.shape[2:]), x.strides[1:])


def _heads(persistent: Array, batch: int) -> Array:
    """Persistent rows of every sequence and head, (N, 1, P, d)."""
    H, rows, d = persistent.shape
    every = np.broadcast_to(persistent, (batch, H, rows, d))
    return every.reshape(batch * H, 1, rows, d)


def _rotate(
    layout: Layout, x: Array, cos: Array, sin: Array, out: Array, scale: float = 1.0
) -> None:
    """Turn the pairs of x (B, H, d, T) by angles of each time, into `out`, head by head."""
    if layout.interleaved is None:
        np.multiply(x, scale, out=out)
        return
    (a, b), (to_a, to_b) = _pairs(layout, x), _pairs(layout, out)
    heads = np.ndindex(x.shape[:2]) if on_host(x) else [()]
    for head in heads:
        with scratch.frame():
            other = scratch.empty(to_a[head].shape, to_a)
            np.multiply(a[head], cos, out=to_a[head])
            np.multiply(b[head], sin, out=other)
            np.subtract(to_a[head], other, out=to_a[head])
            np.multiply(b[head], cos, out=to_b[head])
            np.multiply(a[head], sin, out=other)
            np.add(to_b[head], other, out=to_b[head])


def _pairs(layout: Layout, x: Array) -> tuple[Array, Array]:
    """First and second entries of the pairs, (.., d/2, T)."""
    if layout.interleaved:
        return x[..., 0::2, :], x[..., 1::2, :]
    half = x.shape[-2] // 2
    return x[..., :half, :], x[..., half:, :]


def _blocked(layout: Layout, tokens: int) -> dict[int, Any]:
    """Chunk -> the folded entries (R, C) whose key lies before the first row that its query sees."""
    C, chunks, R = _sizes(layout, tokens)
    first = np.full(chunks * C, -R)
    first[:tokens] = layout.first
    at = np.arange(chunks * C)
    needed = np.unique(np.flatnonzero(first > at - (R - 1)) // C)
    u, i = np.arange(R)[:, None], np.arange(C)
    column = u + np.where(u < i, R, 0) - (R - 1)  # from the chunk's first token
    return {int(c): column + c * C < first[c * C : (c + 1) * C] for c in needed}


def _parts(scores: Array) -> Iterator[tuple[slice, slice]]:
    """Heads and chunks whose scores are computed together."""
    count, chunks, rows, C = scores.shape
    most = max(1, at_once(scores, NUMBERS) // (rows * C))
    along = min(chunks, most)
    together = max(1, most // along)
    for n in range(0, count, together):
        for c in range(0, chunks, along):
            yield slice(n, n + together), slice(c, min(c + along, chunks))


def _windows(x: Array, C: int, chunks: slice, width: int) -> Array:
    """Overlapping columns of x (n, d, columns) for each chunk, (n, chunks, d, width)."""
    count = chunks.stop - chunks.start
    x = x[..., chunks.start * C :]
    shape = (x.shape[0], count, x.shape[1], width)
    return as_strided(x, shape, (x.strides[0], C * x.strides[2], x.strides[1], x.strides[2]))


def _attend(kept: Kept, layout: Layout, part: slice, some: slice, blocked: dict[int, Any]) -> None:
    """Scores, their softmax and the reads of some heads and chunks, in place in what is kept."""
    A = kept.scores[part, some]
    C, R, rows = A.shape[-1], layout.reach, kept.persistent.shape[-2]
    Q = _windows(kept.queries[part], C, some, C)
    K = _windows(kept.keys[part], C, some, R - 1 + C)
    V = _windows(kept.values[part], C, some, R - 1 + C)
    Y = _windows(kept.y[part], C, some, C)
    np.matmul(K.swapaxes(-1, -2), Q, out=A[..., rows:, :])
    if rows:
        np.matmul(kept.persistent[part], Q, out=A[..., :rows, :])
    low, high = A[..., rows : rows + C - 1, :], A[..., rows + R :, :]
    after = _beside(np.arange(C - 1)[:, None] < np.arange(C), A)
    np.copyto(low, high, where=after)
    folded = A[..., : rows + R, :]
    for c in range(some.start, some.stop):
        if c in blocked:
            window = folded[:, c - some.start, rows:]
            np.copyto(window, -np.inf, where=_beside(blocked[c], A))
    np.subtract(folded, _top(folded), out=folded)
    np.exp(folded, out=folded)
    total = kept.total[part, some]
    total[..., 0, :] = np.einsum("ncui->nci", folded)
    np.multiply(low, after, out=high)
    np.multiply(low, ~after, out=low)
    reads = scratch.product(V, A[..., rows:, :])
    if rows:
        reads += scratch.product(kept.persistent[part].swapaxes(-1, -2), A[..., :rows, :])
    np.divide(reads, total, out=Y)


def _beside(mask: Any, x: Array) -> Array:
    """A mask of the host in the backend of x."""
    return of(x).from_host(mask)


def _top(scores: Array) -> Array:
    """The largest real part over the last axis but one, by halves: faster than a reduction."""
    top = scores.real
    while top.shape[-2] > 1:
        half = -(-top.shape[-2] // 2)
        room = scratch.empty((*top.shape[:-2], half, top.shape[-1]), top)
        top = np.maximum(top[..., :half, :], top[..., -half:, :], out=room)
    return top


# -- backward --------------------------------------------------------------------------------------


def _backward(
    layout: Layout,
    cos: Array,
    sin: Array,
    scale: float,
    kept: Kept,
    arrays: tuple[Array, ...],
    g: Any,
) -> tuple[Array, ...]:
    """Cotangents of qkv, earlier keys and values, and persistent rows.

    With Z the sums and A the exponentials, P = A / Z, dy' = dy / Z:
    dV = dy' A^T, dS = A (V^T dy' - <dy', y>), dQ = K dS, dK = Q dS^T
    """
    qkv, earlier_keys, _, persistent = arrays
    B, _, H, T, d = qkv.shape
    C, chunks, R = _sizes(layout, T)
    kind = np.result_type(kept.y, *(each for each in g if each is not None))
    like = kept.y
    dy = _joined(_padded(like, kind, (B, H, d, 0, T, chunks * C - T)))
    dy[..., :T] = 0.0 if g[0] is None else g[0].swapaxes(-1, -2).reshape(B * H, d, T)
    dQ = np.empty_like(like, kind, order="C", shape=dy.shape)
    dK, dV = (
        np.zeros_like(like, kind, order="C", shape=(B * H, d, R - 1 + chunks * C)) for _ in range(2)
    )
    d_rows = np.zeros_like(like, kind, order="C", shape=(B * H, *persistent.shape[1:]))
    for part, some in _parts(kept.scores):
        with scratch.frame():
            _attend_backward(kept, layout, part, some, (dy, dQ, dK, dV, d_rows))
    dx = np.empty_like(like, kind, order="C", shape=(B, 3, H, d, T))
    dQ, dK, dV = (each.reshape(B, H, d, each.shape[-1]) for each in (dQ, dK, dV))
    if g[1] is not None:
        dK[..., R - 1 : R - 1 + T] += g[1].swapaxes(-1, -2)
    # a rotation back is one by the negative angle
    _rotate(layout, dQ[..., :T], cos * scale, -sin * scale, dx[:, 0], scale)
    _rotate(layout, dK[..., R - 1 : R - 1 + T], cos, -sin, dx[:, 1])
    dx[:, 2] = dV[..., R - 1 : R - 1 + T]
    return (
        dx.swapaxes(-1, -2),
        _earlier(dK, R, earlier_keys.shape[-2]),
        _earlier(dV, R, earlier_keys.shape[-2]),
        np.sum(d_rows.reshape(B, *persistent.shape), axis=0),
    )


def _earlier(padded: Array, R: int, rows: int) -> Array:
    """Cotangents of rows before the call, (B, H, n, d): zero for those that no query sees."""
    n = min(R - 1, rows)
    B, H, d, _ = padded.shape
    result = np.zeros_like(padded, order="C", shape=(B, H, rows, d))
    result[..., rows - n :, :] = padded[..., R - 1 - n : R - 1].swapaxes(-1, -2)
    return result


def _attend_backward(
    kept: Kept, layout: Layout, part: slice, some: slice, cotangents: tuple[Array, ...]
) -> None:
    """Cotangents of some heads and chunks, from that of their reads, which is divided by Z."""
    A = kept.scores[part, some]
    C, R, rows = A.shape[-1], layout.reach, kept.persistent.shape[-2]
    dy, dQ, dK, dV, d_rows = (each[part] for each in cotangents)
    Q = _windows(kept.queries[part], C, some, C)
    K = _windows(kept.keys[part], C, some, R - 1 + C)
    V = _windows(kept.values[part], C, some, R - 1 + C)
    Y = _windows(kept.y[part], C, some, C)
    D = _windows(dy, C, some, C)
    D = np.divide(D, kept.total[part, some], out=scratch.empty(D.shape, D))
    persistent = kept.persistent[part]
    dS = scratch.empty(A.shape, D)
    np.matmul(V.swapaxes(-1, -2), D, out=dS[..., rows:, :])
    if rows:
        np.matmul(persistent, D, out=dS[..., :rows, :])
    dS -= np.einsum("ncdi,ncdi->nci", D, Y)[..., None, :]
    dS *= A
    dq = scratch.product(K, dS[..., rows:, :])
    if rows:
        dq += scratch.product(persistent.swapaxes(-1, -2), dS[..., :rows, :])
        each = scratch.product(dS[..., :rows, :], Q.swapaxes(-1, -2))
        each += scratch.product(A[..., :rows, :], D.swapaxes(-1, -2))
        d_rows += np.sum(each, axis=1)
    _windows(dQ, C, some, C)[...] = dq
    _overlap(dK, scratch.product(Q, dS[..., rows:, :].swapaxes(-1, -2)), C, some)
    _overlap(dV, scratch.product(D, A[..., rows:, :].swapaxes(-1, -2)), C, some)


def _overlap(total: Array, parts: Array, C: int, chunks: slice) -> None:
    """Add the columns of each chunk, (n, chunks, d, width), where they lie in (n, d, columns)."""
    width = parts.shape[-1]
    for first in range(0, width, C):
        size = min(C, width - first)
        place = _windows(total[..., first:], C, chunks, size)
        place += parts[..., first : first + size]
