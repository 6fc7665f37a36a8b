"""Tokens that stand before each document: where documents begin, and reads that see their keys always.

Specified in specs/attention.md (ATTENTION-16).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.engine.attention import block as engine
from atlas_ref.engine.attention.layout import Layout
from atlas_ref.layers.attention import reads
from atlas_ref.types import Array
from tape import ops


class Piece(NamedTuple):
    """Tokens of a call that belong to one document.

    Attributes:
        first, last: of the call, the last one excluded.
        begins: whether the tokens before the document are still to be seen.
        starts: whether `reset` says that a document starts here.
    """

    first: int
    last: int
    begins: bool
    starts: bool


def pieces(starts: Any, tokens: int, *, begun: bool) -> Iterator[Piece]:
    """A call of so many tokens, cut where documents start.

    Args:
        starts (tokens,): True where one does; None for nowhere.
        begun: whether the document before the call has begun.
    """
    cuts = [] if starts is None else [int(each) for each in np.flatnonzero(starts)]
    bounds = sorted({0, *cuts})
    for first, last in zip(bounds, [*bounds[1:], tokens], strict=True):
        yield Piece(first, last, first in cuts or not begun, first in cuts)
        begun = True


def tokens(rows: Any, x: Array) -> Array:
    """The tokens (P, d_model) before every sequence of x, (B, P, d_model)."""
    return rows + ops.zeros_like(x, shape=(x.shape[0], *rows.shape))


def pinned_reads(
    config: Any, cos: Array, sin: Array, first: Any, qkv: Array, state: Any
) -> tuple[Array, Array]:
    """Reads of a band beside rows that every query sees, whose keys are not their values.

    In twice the width both are one row: with queries [q; 0], keys [k; 0] and values [0; v], a row
    [key; value] has the score of its key, and the second half of the reads are those of values.

    Args:
        first (T,): for each query the first row of its document, counted from the call.
        state: of a document that has begun.

    Returns:
        reads (B, H, T, d_head), rotated keys (B, H, T, d_head).
    """
    B, _, H, T, d = qkv.shape
    q, k = (reads.turned(config, qkv[:, i], cos, sin) for i in range(2))
    wide = [_wide(q), _wide(k), _wide(qkv[:, 2], second=True)]
    rows = ops.concatenate([state.prefix_keys, state.prefix_values], axis=-1)
    bare, none = config.replaced(rotary=None), ops.zeros_like(cos, shape=(T, 0))

    def plainly(wide: Array, *arrays: Array) -> Any:
        # whose scores are divided by the root of the width
        scaled = ops.stack([wide[:, 0] * math.sqrt(2.0), wide[:, 1], wide[:, 2]], axis=1)
        return reads.plain_attention(bare, none, none, first, scaled, *arrays)

    n = state.keys.shape[-2]
    layout = Layout(min(config.reach, n + T), None, first)
    block = engine.block(plainly, layout, none, none, 1.0 / math.sqrt(d))
    earlier = (_wide(state.keys), _wide(state.values, second=True))
    y, _ = block(
        _as_heads(ops.stack(wide, axis=1)),
        *(_as_heads(each) for each in earlier),
        ops.reshape(rows, (B * H, *rows.shape[-2:])),
    )
    return ops.reshape(y[..., d:], (B, H, T, d)), k


def _wide(x: Array, *, second: bool = False) -> Array:
    """x (..., d) as the first or second half of (..., 2 d), with zeros beside it."""
    parts = [x, ops.zeros_like(x)]
    return ops.concatenate(parts[::-1] if second else parts, axis=-1)


def _as_heads(x: Array) -> Array:
    """Sequences (B, ..., H, n, d) as heads of one, (1, ..., B H, n, d)."""
    B, H = x.shape[0], x.shape[-3]
    if x.ndim == 4:
        return ops.reshape(x, (1, B * H, *x.shape[2:]))
    return ops.reshape(ops.swapaxes(x, 0, 1), (1, x.shape[1], B * H, *x.shape[3:]))
