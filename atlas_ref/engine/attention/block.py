"""Attention of one call in a window as one opaque block, with a backward written by hand; plain
twin: `layers.attention.reads.plain_attention`.

Target: time and memory linear in T, at most 1.3 times the time of the layer's useful products at
T = 1024, window 64; the plain twin has T / window times as many. Measured by `benchmarks.layers`.
Specified in specs/attention.md (ATTENTION-11, ATTENTION-12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.engine.attention import chunks, tiles
from atlas_ref.engine.attention.layout import (
    Cotangents,
    Kept,
    Layout,
    Sizes,
    joined,
    padded,
    rotate,
)
from atlas_ref.types import Array
from tape import opaque


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
        return run(arrays, keep=True)

    def run(arrays: tuple[Array, ...], *, keep: bool) -> tuple[Any, Any]:
        turn = (cos.T, sin.T, scale)
        sizes = tiles.sizes(layout, *arrays)
        if sizes is not None:
            value, kept = _forward(layout, sizes, turn, arrays, tiled=True, keep=keep)
            if tiles.attend(layout, sizes, kept, arrays[0].shape[-2]):
                return value, (sizes, kept, arrays, True)
        sizes = chunks.sizes(layout, arrays[0].shape[-2])
        value, kept = _forward(layout, sizes, turn, arrays, tiled=False)
        chunks.attend(layout, sizes, kept, arrays[0].shape[-2])
        return value, (sizes, kept, arrays, False)

    def backward(residuals: Any, g: Any) -> tuple[Array, ...]:
        return _backward(layout, (cos.T, sin.T, scale), residuals, g)

    def value_alone(*arrays: Array) -> Any:
        return run(arrays, keep=False)[0]

    return opaque(plain, forward, backward, value=value_alone)


def _forward(
    layout: Layout,
    sizes: Sizes,
    turn: tuple[Array, Array, float],
    arrays: tuple[Array, ...],
    *,
    tiled: bool,
    keep: bool = True,
) -> tuple[tuple[Array, Array], Kept]:
    """Room for the reads, turned keys, and what is kept, with queries, keys and values in place.

    Args:
        keep: whether a backward follows, which needs the exponentials of all tiles.
    """
    qkv, earlier_keys, earlier_values, persistent = arrays
    cos, sin, scale = turn
    B, _, H, T, d = qkv.shape
    before, tokens = sizes.before, sizes.chunks * sizes.C
    kind, x = np.result_type(*arrays), qkv.swapaxes(-1, -2)  # (B, 3, H, d, T)
    queries, y = (padded(qkv, kind, (B, H, d, 0, T, tokens - T)) for _ in range(2))
    keys, values = (padded(qkv, kind, (B, H, d, before, T, tokens - T)) for _ in range(2))
    for place, rows in ((keys, earlier_keys), (values, earlier_values)):
        n = min(layout.reach - 1, rows.shape[-2])
        place[..., before - n : before] = rows[..., rows.shape[-2] - n :, :].swapaxes(-1, -2)
    placed = (joined(queries), joined(keys), joined(values))
    if not (tiled and tiles.arrange("arrange", layout, sizes, turn, x, *placed)):
        values[..., before : before + T] = x[:, 2]
        rotate(layout, x[:, 0], cos * scale, sin * scale, queries[..., :T], scale)
        rotate(layout, x[:, 1], cos, sin, keys[..., before : before + T])
    P = persistent.shape[-2]
    scores = (B * H, sizes.chunks, P + before + sizes.C, sizes.C)
    one_tile = (B * H, 1, *scores[2:])
    kept = Kept(
        queries=placed[0],
        keys=placed[1],
        values=placed[2],
        persistent=np.broadcast_to(persistent, (B, H, P, d)).reshape(B * H, P, d).copy(),
        scores=np.empty_like(qkv, kind, order="C", shape=scores if keep else one_tile),
        total=np.empty_like(qkv, kind, order="C", shape=(*scores[:2], 1, sizes.C)),
        y=joined(y),
    )
    turned = keys[..., before : before + T].swapaxes(-1, -2)
    return (y[..., :T].swapaxes(-1, -2), turned), kept


def _backward(
    layout: Layout, turn: tuple[Array, Array, float], residuals: Any, g: Any
) -> tuple[Array, ...]:
    """Cotangents of qkv, earlier keys and values, and persistent rows (ATTENTION-12).

    With Z the sums and A the exponentials, P = A / Z, dy' = dy / Z:
    dV = dy' A^T, dS = A (V^T dy' - <dy', y>), dQ = K dS, dK = Q dS^T
    """
    sizes, kept, (qkv, earlier_keys, _, persistent), tiled = residuals
    (B, _, H, T, d), (cos, sin, scale) = qkv.shape, turn
    before, tokens = sizes.before, sizes.chunks * sizes.C
    kind = np.result_type(kept.y, *(each for each in g if each is not None))

    def room(*shape: int) -> Array:
        return np.empty_like(kept.y, kind, order="C", shape=shape)

    dy = joined(padded(kept.y, kind, (B, H, d, 0, T, tokens - T)))
    dy[..., :T] = 0.0 if g[0] is None else g[0].swapaxes(-1, -2).reshape(B * H, d, T)
    cotangents = Cotangents(
        y=dy,
        queries=room(*dy.shape),
        keys=room(*kept.keys.shape),
        values=room(*kept.keys.shape),
        persistent=room(*kept.persistent.shape),
    )
    if not (tiled and tiles.attend_backward(layout, sizes, kept, cotangents)):
        for each in cotangents[1:]:  # to which chunks add
            each[...] = 0.0
        chunks.attend_backward(kept, cotangents)
    dQ, dK, dV = (each.reshape(B, H, d, each.shape[-1]) for each in cotangents[1:4])
    if g[1] is not None:
        dK[..., before : before + T] += g[1].swapaxes(-1, -2)
    dx = np.empty_like(kept.y, kind, order="C", shape=(B, 3, H, d, T))
    # a rotation back is one by the negative angle
    placed = cotangents[1:4]
    if not (tiled and tiles.arrange("arrange_back", layout, sizes, turn, dx, *placed)):
        rotate(layout, dQ[..., :T], cos * scale, -sin * scale, dx[:, 0], scale)
        rotate(layout, dK[..., before : before + T], cos, -sin, dx[:, 1])
        dx[:, 2] = dV[..., before : before + T]
    d_rows = np.sum(cotangents.persistent.reshape(B, *persistent.shape), axis=0)
    n = earlier_keys.shape[-2]
    return (
        dx.swapaxes(-1, -2),
        _earlier(dK, layout, before, n),
        _earlier(dV, layout, before, n),
        d_rows,
    )


def _earlier(x: Array, layout: Layout, before: int, rows: int) -> Array:
    """Cotangents of rows before the call, (B, H, n, d): zero for those that no query sees."""
    n = min(layout.reach - 1, rows)
    B, H, d, _ = x.shape
    result = np.zeros_like(x, order="C", shape=(B, H, rows, d))
    result[..., rows - n :, :] = x[..., before - n : before].swapaxes(-1, -2)
    return result
