"""Causal attention in a window, chunk by chunk; plain twin: `layers.attention.reads.plain_attention`.

A chunk of C queries meets C + R - 1 keys, of which each query sees R. Column u is seen by query i
for u in i .. i + R - 1, so of columns u and u + R exactly one: folded onto each other they fill R
rows, and no exponential is wasted. Queries are the last axis of scores.

Specified in specs/attention.md (ATTENTION-11, ATTENTION-12).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.backend import as_strided, at_once, of
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.attention.layout import Cotangents, Kept, Layout, Sizes, first_rows
from atlas_ref.types import Array

#: Queries of a chunk: fewer waste fewer products, more make them larger.
CHUNK = 32
#: Numbers of scores that are computed at once, which stay in the second cache.
NUMBERS = 2**17


def sizes(layout: Layout, tokens: int) -> Sizes:
    """Chunks of that many tokens, none longer than a window."""
    C = min(CHUNK, layout.reach, tokens)
    return Sizes(C, -(-tokens // C), layout.reach - 1)


def attend(layout: Layout, sizes: Sizes, kept: Kept, tokens: int) -> None:
    """Scores, their softmax and the reads, in place in what is kept (ATTENTION-11)."""
    blocked = _blocked(layout, sizes, tokens)
    for part, some in _parts(kept.scores):
        with scratch.frame():
            _attend(kept, layout, part, some, blocked)


def attend_backward(kept: Kept, cotangents: Cotangents) -> None:
    """Cotangents, in place, of all but the reads; chunks may be those of tiles (ATTENTION-12)."""
    for part, some in _parts(kept.scores):
        with scratch.frame():
            _attend_backward(kept, part, some, cotangents)


def _blocked(layout: Layout, sizes: Sizes, tokens: int) -> dict[int, Any]:
    """Chunk -> the folded entries (R, C) whose key lies before the first row that its query sees."""
    C, R = sizes.C, layout.reach
    first, flags = first_rows(layout, sizes, tokens)
    u, i = np.arange(R)[:, None], np.arange(C)
    column = u + np.where(u < i, R, 0) - (R - 1)  # from the chunk's first token
    return {int(c): column + c * C < first[c * C : (c + 1) * C] for c in np.flatnonzero(flags)}


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
        np.matmul(kept.persistent[part][:, None], Q, out=A[..., :rows, :])
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
        reads += scratch.product(kept.persistent[part][:, None].swapaxes(-1, -2), A[..., :rows, :])
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


def _attend_backward(kept: Kept, part: slice, some: slice, cotangents: Cotangents) -> None:
    """Cotangents of some heads and chunks, from that of their reads, which is divided by Z."""
    A = kept.scores[part, some]
    C, rows = A.shape[-1], kept.persistent.shape[-2]
    width = A.shape[-2] - rows
    dy, dQ, dK, dV, d_rows = (each[part] for each in cotangents)
    Q = _windows(kept.queries[part], C, some, C)
    K = _windows(kept.keys[part], C, some, width)
    V = _windows(kept.values[part], C, some, width)
    Y = _windows(kept.y[part], C, some, C)
    D = _windows(dy, C, some, C)
    D = np.divide(D, kept.total[part, some], out=scratch.empty(D.shape, D))
    persistent = kept.persistent[part][:, None]
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
