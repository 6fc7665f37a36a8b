"""Reads of attention over all pairs of tokens, in tape ops: the causal band, and the last keys of a call.

The band is the twin of the block by chunks. Specified in specs/attention.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.layers import rotary
from atlas_ref.types import Array
from tape import ops, plain


def with_context(rows: Array, extra: tuple[Array, Array]) -> tuple[Array, Array]:
    """Keys and values (B, H, N + P, d_head): rows of context, then persistent rows."""
    shape = (extra[0].shape[0], *rows.shape)
    rows = rows + ops.zeros_like(extra[0], shape=shape)
    return ops.concatenate([extra[0], rows], -2), ops.concatenate([extra[1], rows], -2)


def turned(config: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Queries or keys turned by their positions, where there are positions (ATTENTION-7)."""
    return x if config.rotary is None else rotary.rotated(config.rotary, x, cos, sin)


def plain_attention(
    config: Any,
    cos: Array,
    sin: Array,
    first: Any,
    qkv: Array,
    earlier_keys: Array,
    earlier_values: Array,
    persistent: Array,
) -> tuple[Array, Array]:
    """The causal band in tape ops, over all pairs of tokens: the twin of the block by chunks.

    Query t sees row s where t - R < s <= t and s lies in its document (ATTENTION-3).

    Args:
        first (T,): for each query the first row of its document, counted from the call.

    Returns:
        reads (B, H, T, d_head), rotated keys (B, H, T, d_head).
    """
    T, n = qkv.shape[-2], earlier_keys.shape[-2]
    q, k = (turned(config, qkv[:, i], cos, sin) for i in range(2))
    t, s = np.arange(T)[:, None], np.arange(-n, T)
    seen = (t - config.reach < s) & (s <= t) & (s >= np.asarray(first)[:, None])
    keys = ops.concatenate([earlier_keys, k], axis=-2)
    values = ops.concatenate([earlier_values, qkv[:, 2]], axis=-2)
    return softmax_reads(q, keys, values, persistent, persistent, seen, None), k


def last_keys(
    config: Any,
    cos: Array,
    sin: Array,
    qkv: Array,
    earlier_keys: Array,
    earlier_values: Array,
    persistent: Array,
    persistent_values: Array,
) -> tuple[Array, Array]:
    """The reading of public code: the last W keys of the call for all queries (ATTENTION-4).

    Of J keys, persistent rows first, query t sees 0 .. t + J - T, and all alike where that is none.

    Returns:
        reads (B, H, T, d_head), rotated keys (B, H, T, d_head).
    """
    T, P, n = qkv.shape[-2], persistent.shape[-2], earlier_keys.shape[-2]
    q, k = (turned(config, qkv[:, i], cos, sin) for i in range(2))
    drop = max(0, n + T - config.window)
    keys = ops.concatenate([earlier_keys, k], axis=-2)[..., drop:, :]
    values = ops.concatenate([earlier_values, qkv[:, 2]], axis=-2)[..., drop:, :]
    t, last = np.arange(T)[:, None], n - drop  # of the rows, by place, query t sees itself the last
    seen = np.arange(n + T - drop) <= t + last
    persistent_seen = None
    if config.persistent_visible == "right_aligned":
        persistent_seen = np.arange(P) <= t + last + P
    reads = softmax_reads(q, keys, values, persistent, persistent_values, seen, persistent_seen)
    return reads, k


def softmax_reads(
    q: Array,
    keys: Array,
    values: Array,
    persistent: Array,
    persistent_values: Array,
    seen: Any,
    persistent_seen: Any,
) -> Array:
    """Softmax over the rows seen, masked before the exponential, and the reads (ATTENTION-2).

    A query that sees no row takes the mean of all values (ATTENTION-4).
    """
    T, P = q.shape[-2], persistent.shape[-2]
    if persistent_seen is None:
        persistent_seen = np.ones((T, P), bool)
    seen = np.concatenate([persistent_seen, seen], axis=1)
    empty = ~seen.any(axis=1, keepdims=True)
    scores = ops.concatenate([q @ ops.transpose(persistent), q @ ops.transpose(keys)], axis=-1)
    scores = ops.where(empty, 0.0, scores * (1.0 / math.sqrt(q.shape[-1])))
    seen = backend.of(q).from_host(seen | empty)
    top = np.max(np.where(seen, np.real(plain(scores)), -np.inf), axis=-1, keepdims=True)
    e = ops.where(seen, ops.exp(ops.where(seen, scores - top, 0.0)), 0.0)  # (B, H, T, P + n + T)
    weights = e / ops.sum(e, axis=-1, keepdims=True)
    return weights[..., :P] @ persistent_values + weights[..., P:] @ values
