"""Causal attention in a window by compiled code, tile by tile; plain twin:
`atlas_ref.layers.attention.reads.plain_attention`.

A tile has as many queries as a panel has lanes. It meets the keys of its own panel and of those
before it that a window reaches; scores, their softmax and the reads stay in the cache. Specified in
specs/attention.md (ATTENTION-11, ATTENTION-12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from atlas_ref.backend.compiled.lanes import compiled, on_disk
from atlas_ref.backend.compiled.products import _transpose_tile, enter, product, transpose
from atlas_ref.backend.compiled.rows import (
    exponential,
    larger,
    part_of,
    put_part,
    put_row,
    quotient,
    row_of,
)
from atlas_ref.types import Array


def compiled_for(kind: np.dtype[Any], way: str) -> Callable[..., None]:
    """The loop "forward" or "backward" for a dtype."""
    number = numba.from_dtype(kind)
    three, four = numba.types.Array(number, 3, "C"), numba.types.Array(number, 4, "C")
    first = numba.types.Array(numba.types.int64, 1, "C")
    flags = numba.types.Array(numba.types.boolean, 1, "C")
    reach = numba.types.intp
    heads = (three, three, three, three)
    if way in ("arrange", "arrange_back"):
        five, table = numba.types.Array(number, 5, "C"), numba.types.Array(number, 2, "C")
        scale, flag = number, numba.types.boolean
        function = arrange if way == "arrange" else arrange_back
        return on_disk(function, (five, table, table, scale, flag, reach, three, three, three))
    if way == "forward":
        return on_disk(forward, (*heads, first, flags, reach, four, four, three, *[three] * 7))
    return on_disk(backward, (*heads, reach, four, four, three, *[three] * 5, *[three] * 14))


def arrange(
    x: Array,
    cos: Array,
    sin: Array,
    scale: float,
    interleaved: bool,
    before: int,
    queries: Array,
    keys: Array,
    values: Array,
) -> None:
    """Turn queries and keys of x (B, 3, H, d, T) by tables (d/2, T), and place them and values.

    Args:
        before: columns of keys and values before the call; queries are times `scale`.
    """
    B, _, H, d, T = x.shape
    one = cos.dtype.type(1)
    for n in range(B * H):
        b, h = n // H, n % H
        for i in range(d // 2):
            p, q = (2 * i, 2 * i + 1) if interleaved else (i, i + d // 2)
            of_p, of_q = queries[n, p, :T], queries[n, q, :T]
            _turned(x[b, 0, h, p], x[b, 0, h, q], cos[i], sin[i], one, scale, of_p, of_q)
            of_p, of_q = keys[n, p, before : before + T], keys[n, q, before : before + T]
            _turned(x[b, 1, h, p], x[b, 1, h, q], cos[i], sin[i], one, one, of_p, of_q)
        for e in range(d):
            _copied(x[b, 2, h, e], values[n, e, before : before + T])


def arrange_back(
    dx: Array,
    cos: Array,
    sin: Array,
    scale: float,
    interleaved: bool,
    before: int,
    dq: Array,
    dk: Array,
    dv: Array,
) -> None:
    """Cotangents of `arrange`: turned back, into dx (B, 3, H, d, T)."""
    B, _, H, d, T = dx.shape
    one = cos.dtype.type(1)
    for n in range(B * H):
        b, h = n // H, n % H
        for i in range(d // 2):
            p, q = (2 * i, 2 * i + 1) if interleaved else (i, i + d // 2)
            of_p, of_q = dq[n, p, :T], dq[n, q, :T]
            _turned(of_p, of_q, cos[i], sin[i], -one, scale, dx[b, 0, h, p], dx[b, 0, h, q])
            of_p, of_q = dk[n, p, before : before + T], dk[n, q, before : before + T]
            _turned(of_p, of_q, cos[i], sin[i], -one, one, dx[b, 1, h, p], dx[b, 1, h, q])
        for e in range(d):
            _copied(dv[n, e, before : before + T], dx[b, 2, h, e])


@compiled
def _turned(
    a: Array, b: Array, cos: Array, sin: Array, sign: Any, scale: Any, to_a: Array, to_b: Array
) -> None:
    """One pair of entries at all times."""
    for t in range(len(a)):
        c, s = scale * cos[t], sign * scale * sin[t]
        to_a[t] = a[t] * c - b[t] * s
        to_b[t] = b[t] * c + a[t] * s


@compiled
def _copied(x: Array, to: Array) -> None:
    for t in range(len(x)):
        to[t] = x[t]


def forward(
    queries: Array,
    keys: Array,
    values: Array,
    persistent: Array,
    first: Array,
    flagged: Array,
    reach: int,
    scores: Array,
    total: Array,
    y: Array,
    queries_t: Array,
    keys_t: Array,
    values_t: Array,
    values_e: Array,
    rows_t: Array,
    rows_e: Array,
    reads: Array,
) -> None:
    """Reads of all heads (ATTENTION-11).

    Args:
        queries (n, d, tokens), keys, values (n, d, earlier + tokens), whole tiles.
        persistent (n, P, d).
        first (tokens,): for each query the first row that it may see, counted from the call.
        flagged (tiles,): whether that matters to a tile.
        scores (n, tiles, P + keys, width), total (n, tiles, 1, width): exponentials, their sums;
            with scores of one tile, those of the last alone are kept.
        y (n, d, tokens).
        queries_t and what follows: work space, panels of times (_t) and of entries (_e).
    """
    one, zero = scores.dtype.type(1), scores.dtype.type(0)
    d, P, w = queries.shape[1], persistent.shape[1], scores.shape[3]
    tiles, before = total.shape[1], len(keys_t) - total.shape[1]
    count = (before + 1) * w
    for n in range(len(queries)):
        _panels(queries[n], queries_t)
        _panels(keys[n], keys_t)
        _panels(values[n], values_t)
        transpose(values_t, values_e)
        enter(persistent[n].T, rows_t)
        enter(persistent[n], rows_e)
        for c in range(tiles):
            at = c if scores.shape[1] == tiles else 0
            S, q = scores[n, at : at + 1], queries_t[c : c + 1]
            if P:
                product(one, rows_t, q, d, zero, S, S, P, False)
            own = S[:, P:]
            product(one, keys_t[c : c + before + 1], q, d, zero, own, own, count, False)
            _mask(own[0], c, before, reach, first, flagged[c])
            _soften(S[0], P + count, total[n, c])
            V = values_e[:, c * w : c * w + count]
            product(one, V, own, count, zero, reads, reads, d, False)
            if P:
                product(one, rows_e, S, P, one, reads, reads, d, False)
            Z = row_of(total[n, c], 0)
            for e in range(d):
                put_part(y[n, e], c * w, quotient(row_of(reads[0], e), Z))


@compiled
def _panels(x: Array, panels: Array) -> None:
    """Write x (rows, columns), whole tiles of columns, into panels."""
    w = panels.shape[2]
    for i in range(x.shape[0]):
        for q in range(len(panels)):
            put_row(panels[q], i, part_of(x[i], q * w))


@compiled
def _mask(S: Array, c: int, before: int, reach: int, first: Array, flagged: bool) -> None:
    """Take out keys after a query, keys beyond its window, and those before the first it may see."""
    w = S.shape[1]
    low = S.dtype.type(-np.inf)
    over = before * w - (reach - 1)  # how far the oldest panel begins before the first window
    for r in range(w):
        for i in range(r):
            S[before * w + r, i] = low
    for r in range(w):
        for i in range(max(0, r - over + 1), w):
            S[r, i] = low
        for i in range(r + w - over + 1, w):
            S[w + r, i] = low
    if flagged:
        for u in range((before + 1) * w):
            for i in range(w):
                if (c - before) * w + u < first[c * w + i]:
                    S[u, i] = low


@compiled
def _soften(S: Array, rows: int, total: Array) -> None:
    """Replace scores by exp(score - top), and put their sums into total."""
    top = row_of(S, 0)
    for u in range(1, rows):
        top = larger(top, row_of(S, u))
    e = exponential(row_of(S, 0) - top)
    put_row(S, 0, e)
    sums = e
    for u in range(1, rows):
        e = exponential(row_of(S, u) - top)
        put_row(S, u, e)
        sums = sums + e
    put_row(total, 0, sums)


def backward(
    queries: Array,
    keys: Array,
    values: Array,
    persistent: Array,
    reach: int,
    scores: Array,
    total: Array,
    y: Array,
    dy: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    d_rows: Array,
    queries_t: Array,
    queries_e: Array,
    keys_t: Array,
    keys_e: Array,
    values_t: Array,
    dy_t: Array,
    dy_e: Array,
    y_t: Array,
    rows_t: Array,
    rows_e: Array,
    ds: Array,
    waiting: Array,
    result: Array,
    sums: Array,
) -> None:
    """Cotangents of all heads (ATTENTION-12).

    A panel of keys waits until the last tile that sees it: then its dS^T and A^T are whole, and its
    cotangents are one product each over all its queries.

    Args:
        waiting (2 (earlier tiles + 1), keys, width): dS^T and A^T of panels that wait.
        ds (1, P + keys, width), result (1, d, width), sums (1, P d, width): work space.
    """
    one, zero = scores.dtype.type(1), scores.dtype.type(0)
    d, P, w = queries.shape[1], persistent.shape[1], scores.shape[3]
    tiles, before = scores.shape[1], len(keys_t) - scores.shape[1]
    span = before + 1
    for n in range(len(queries)):
        _panels(queries[n], queries_t)
        _panels(keys[n], keys_t)
        _panels(values[n], values_t)
        _panels(dy[n], dy_t)
        _panels(y[n], y_t)
        enter(persistent[n].T, rows_t)
        enter(persistent[n], rows_e)
        for c in range(tiles):
            Z = row_of(total[n, c], 0)
            for e in range(d):
                put_row(dy_t[c], e, quotient(row_of(dy_t[c], e), Z))
        transpose(queries_t, queries_e)
        transpose(keys_t, keys_e)
        transpose(dy_t, dy_e)
        for u in range(P * d):
            put_row(sums[0], u, row_of(queries_t[0], 0) * zero)
        for c in range(tiles + before):
            if c < tiles:
                A, g = scores[n, c : c + 1], dy_t[c : c + 1]
                _tile(A, g, y_t[c], values_t[c : c + span], rows_t, ds, P, d)
                own = ds[:, P:]
                K = keys_e[:, c * w : (c + span) * w]
                product(one, K, own, span * w, zero, result, result, d, False)
                if P:
                    product(one, rows_e, ds, P, one, result, result, d, False)
                    _of_rows(ds[0], A[0], queries_t[c], g[0], P, d, sums[0])
                for e in range(d):
                    put_part(dq[n, e], c * w, row_of(result[0], e))
                for j in range(span):
                    place = (c + j) % span
                    _turn(own[0], j, waiting[place], span - 1 - j)
                    _turn(A[0, P:], j, waiting[span + place], span - 1 - j)
            place = c % span  # the panel of keys that no later tile sees
            first = c - before  # and its first query's tile, from the start of the call
            _finish(queries_e, waiting[place : place + 1], first, result, d, dk[n], c)
            at = span + place
            _finish(dy_e, waiting[at : at + 1], first, result, d, dv[n], c)
        for p in range(P):
            for e in range(d):
                both = zero
                for i in range(w):
                    both += sums[0, p * d + e, i]
                d_rows[n, p, e] = both


@compiled
def _tile(A: Array, g: Array, y: Array, V: Array, rows_t: Array, ds: Array, P: int, d: int) -> None:
    """dS = A (V^T dy' - <dy', y>) of a tile."""
    one, zero = A.dtype.type(1), A.dtype.type(0)
    count = A.shape[1] - P
    if P:
        product(one, rows_t, g, d, zero, ds, ds, P, False)
    own = ds[:, P:]
    product(one, V, g, d, zero, own, own, count, False)
    along = row_of(g[0], 0) * row_of(y, 0)
    for e in range(1, d):
        along = along + row_of(g[0], e) * row_of(y, e)
    for u in range(P + count):
        put_row(ds[0], u, row_of(A[0], u) * (row_of(ds[0], u) - along))


@compiled
def _of_rows(ds: Array, A: Array, q: Array, g: Array, P: int, d: int, sums: Array) -> None:
    """Add the cotangents of persistent rows, as keys and as values, query by query."""
    for p in range(P):
        of_score, weight = row_of(ds, p), row_of(A, p)
        for e in range(d):
            both = of_score * row_of(q, e) + weight * row_of(g, e)
            put_row(sums, p * d + e, row_of(sums, p * d + e) + both)


@compiled
def _turn(S: Array, j: int, out: Array, to: int) -> None:
    """Write the transpose of square tile j of S (rows, width) to square tile `to` of out."""
    _transpose_tile(S, j * S.shape[1], out, to * S.shape[1])


@compiled
def _finish(
    left: Array, right: Array, first: int, result: Array, d: int, out: Array, c: int
) -> None:
    """Write the cotangents of one panel of keys, a product over the tiles of its queries."""
    one, zero = right.dtype.type(1), right.dtype.type(0)
    w, span = right.shape[2], right.shape[1] // right.shape[2]
    tiles = left.shape[1] // w
    start, end = max(first, 0), min(first + span, tiles)
    skip = start - first
    rows = (end - start) * w
    product(
        one,
        left[:, start * w : end * w],
        right[:, skip * w : skip * w + rows],
        rows,
        zero,
        result,
        result,
        d,
        False,
    )
    for e in range(d):
        put_part(out[e], c * w, row_of(result[0], e))
