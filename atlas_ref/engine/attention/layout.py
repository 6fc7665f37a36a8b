"""Arrays of attention in a window, as its two ways of computing share them; plain twin:
`layers.attention.reads.plain_attention`.

Time is the last axis, so that sums over entries and over keys run along the processor's vectors.
Specified in specs/attention.md (ATTENTION-11).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend import as_strided, on_host
from atlas_ref.backend.scratch import scratch
from atlas_ref.types import Array


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


class Sizes(NamedTuple):
    """How tokens are cut.

    Attributes:
        C: queries of a chunk.
        chunks: their number; the last one may be padded.
        before: columns of keys before the first query.
    """

    C: int
    chunks: int
    before: int


class Kept(NamedTuple):
    """What the forward keeps: padded arrays over (N, d, columns), N = batch times heads.

    Attributes:
        persistent (N, P, d).
        scores (N, chunks, P + before + C, C): exp(score - top), 0 where not seen.
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


class Cotangents(NamedTuple):
    """Those of reads, queries, keys and values (N, d, columns), of persistent rows (N, P, d)."""

    y: Array
    queries: Array
    keys: Array
    values: Array
    persistent: Array


def padded(like: Array, kind: Any, sizes: tuple[int, ...]) -> Array:
    """Zeros before and after the columns of a call, (B, H, d, before + T + after)."""
    B, H, d, before, T, after = sizes
    room = np.empty_like(like, kind, order="C", shape=(B, H, d, before + T + after))
    room[..., :before] = 0.0
    room[..., before + T :] = 0.0
    return room


def joined(x: Array) -> Array:
    """Batch and heads as one axis, without a copy."""
    return as_strided(x, (x.shape[0] * x.shape[1], *x.shape[2:]), x.strides[1:])


def rotate(
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


def first_rows(layout: Layout, sizes: Sizes, tokens: int) -> tuple[Any, Any]:
    """The first row that each query may see, and the chunks where that shortens a window.

    Returns:
        first (chunks C,), flags (chunks,).
    """
    first = np.full(sizes.chunks * sizes.C, -layout.reach)
    first[:tokens] = layout.first
    shorter = first > np.arange(len(first)) - (layout.reach - 1)
    return first, shorter.reshape(sizes.chunks, sizes.C).any(axis=1)
