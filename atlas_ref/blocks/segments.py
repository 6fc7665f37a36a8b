"""Segments of MAC: recall from the memory before the segment, attend, write what attention found.

Specified in specs/blocks.md (BLOCKS-7). Source: Titans (2501.00663) Eqs 21-25.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from atlas_ref.blocks import mix
from atlas_ref.layers import attention, checks, memory, norm, rotary
from atlas_ref.layers.attention import prefix
from atlas_ref.layers.attention.reads import softmax_reads
from atlas_ref.types import Array, Frozen
from tape import ops


class Segment(Frozen):
    """The segment under way (BLOCKS-7).

    Attributes:
        memory: the memory before the segment, with the tails of the tokens that it recalled for.
        cache: keys and values of the segment's rows so far, recalled ones and tokens in turn.
        place: number of its tokens so far.
    """

    memory: memory.State
    cache: attention.State
    place: Annotated[int, Field(ge=0)] = 0


def run_segments(config: Any, params: Any, state: Any, x: Array, starts: Any) -> tuple[Any, Array]:
    """Tokens of a call, cut where segments and documents start (BLOCKS-7).

    Returns:
        state, x after the mix (B, T, d_model).
    """
    results, first, T = [], 0, x.shape[-2]
    while first < T:
        if starts is not None and starts[first]:
            state = _document(config, state)
        elif state.segment.place == config.segment:
            state = _next(config, state)
        last = min(T, first + config.segment - state.segment.place)
        if starts is not None:
            later = np.flatnonzero(starts[first + 1 : last])
            last = first + 1 + int(later[0]) if len(later) else last
        state, y = _piece(config, params, state, x[:, first:last])
        results.append(y)
        first = last
    return state, results[0] if len(results) == 1 else ops.concatenate(results, axis=-2)


def _document(config: Any, state: Any) -> Any:
    """The state where a document starts: memories at their origins, a new segment."""
    written = memory.restarted(config.memory, state.memory)
    recalled = memory.restarted(config.memory, state.segment.memory)
    segment = Segment.trusted(
        memory=recalled.replaced(levels=written.levels),
        cache=_emptied(state.segment.cache),
        place=0,
    )
    return state.replaced(memory=written, segment=segment, tokens=0)


def _next(config: Any, state: Any) -> Any:
    """The state at the start of the next segment, which recalls from what was written so far."""
    recalled = state.segment.memory.replaced(levels=state.memory.levels)
    segment = Segment.trusted(memory=recalled, cache=_emptied(state.segment.cache), place=0)
    return state.replaced(segment=segment)


def _emptied(cache: attention.State) -> attention.State:
    return cache.replaced(keys=cache.keys[..., :0, :], values=cache.values[..., :0, :])


def _piece(config: Any, params: Any, state: Any, x: Array) -> tuple[Any, Array]:
    """Tokens of one segment: recall, attend, write, mix (BLOCKS-7)."""
    segment = state.segment
    before = memory.at_step(segment.memory, state.memory)
    with checks.within("memory"):
        recalled, h = memory.retrieve(config.memory, params.memory, before, x)
    cache, y = _attended(config, params.attention, segment, h, x)
    with checks.within("memory"):
        written, m = memory.apply(config.memory, params.memory, state.memory, y)
    place = segment.place + x.shape[-2]
    recalled = segment.memory.replaced(tails=recalled.tails)
    segment = Segment.trusted(memory=recalled, cache=cache, place=place)
    after = state.replaced(memory=written, segment=segment, tokens=state.tokens + x.shape[-2])
    return after, x + mix.mixed(config.mix, params.mix, x, y, m)


def _attended(
    config: Any, params: attention.Params, segment: Segment, h: Array, x: Array
) -> tuple[attention.State, Array]:
    """Attention of tokens x over persistent rows, recalled rows and tokens of their segment.

    Row j of what was recalled has position j, token j position C + j, both after persistent tokens;
    token i sees both up to i.
    """
    c, place, T = config.attention, segment.place, x.shape[-2]
    P = c.persistent if c.prefixed else 0
    qkv = _projected(c, params, x, P + config.segment + place)
    of_recalled = _projected(c, params, h, P + place)
    rows = [_paired(of_recalled[:, i], qkv[:, i]) for i in (1, 2)]
    cache = segment.cache
    keys = ops.concatenate([cache.keys, rows[0]], axis=-2)
    values = ops.concatenate([cache.values, rows[1]], axis=-2)
    seen = np.arange(keys.shape[-2]) // 2 <= place + np.arange(T)[:, None]
    H, d = c.heads, c.d_head
    fixed = _fixed(c, params, x)
    y = softmax_reads(qkv[:, 0], keys, values, *fixed, seen, None)
    merged = ops.reshape(ops.swapaxes(y, 1, 2), (x.shape[0], T, H * d))
    W_out = ops.transpose(ops.reshape(params.W_out, (c.d_model, H * d)))
    return cache.replaced(keys=keys, values=values), merged @ W_out


def _fixed(c: attention.Config, params: attention.Params, x: Array) -> tuple[Array, Array]:
    """Keys and values of the persistent rows, or of the tokens before each segment (BLOCKS-9)."""
    if params.persistent is None:
        none = ops.zeros_like(x, shape=(c.heads, 0, c.d_head))
        return none, none
    if not c.prefixed:
        return params.persistent, params.persistent
    return attention.prefix_rows(c, params, prefix.tokens(params.persistent, x))


def _paired(recalled: Array, tokens: Array) -> Array:
    """Rows of both in turn (B, H, 2T, d_head), so that a segment's cache grows at its end."""
    B, H, T, d = tokens.shape
    return ops.reshape(ops.stack([recalled, tokens], axis=3), (B, H, 2 * T, d))


def _projected(c: attention.Config, params: attention.Params, x: Array, position: int) -> Array:
    """Queries, keys and values (B, 3, H, T, d_head) of rows from a position on, turned."""
    B, T, D = x.shape
    H, d = c.heads, c.d_head
    n = norm.normed(c.norm, params.norm, x)
    qkv = n @ ops.transpose(ops.reshape(params.W_qkv, (3 * H * d, D)))
    qkv = ops.moveaxis(ops.reshape(qkv, (B, T, 3, H, d)), 1, 3)
    qkv = attention.heads_normed(c, params, qkv)
    if c.rotary is None:
        return qkv
    cos, sin = rotary.tables(c.rotary, position + np.arange(T), x)
    q, k = (rotary.rotated(c.rotary, qkv[:, i], cos, sin) for i in range(2))
    return ops.stack([q, k, qkv[:, 2]], axis=1)
