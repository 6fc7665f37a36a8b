"""Retention of matrices in the plain loop: what decays, what is left, what the function has.

Written from DEEP-30 to DEEP-33; it shares no code with `parts.retentions`. `touch` rounds functions
that are no sums of products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.deep.settings import rank
from atlas_ref.types import Array
from tape import ops

Touch = Callable[[Array], Array]


def before(kind: Any, touch: Touch, W: Array) -> Array:
    """What a write decays and moves: W, or its logarithm, 0 in the place of that of 0."""
    if kind.kind != "kl":
        return W
    empty = ops.less(W, 0.0) | ops.equal(W, 0.0)
    return touch(ops.log(ops.where(empty, 1.0, W)))


def after(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    """W after a write (DEEP-31, DEEP-32)."""
    if kind.kind == "elastic_net":
        return _soft(kind, moved)
    if kind.kind == "kl":
        rows = _groups(kind, moved)
        alive = ops.greater(_groups(kind, W), 0.0)
        # what is dead stands below everything by more than exp can see
        low = ops.where(alive, rows, -1e4)
        share = touch(ops.exp(low - ops.logsumexp(low, axis=-1, keepdims=True)))
        return _whole(kind, ops.where(alive, share, 0.0) * kind.size, moved)
    if kind.kind == "sphere":
        rows = _groups(kind, moved)
        square = ops.sum(rows * rows, axis=-1, keepdims=True)
        empty = ops.equal(square, 0.0)
        length = touch(ops.sqrt(ops.where(empty, 1.0, square)))
        return _whole(kind, rows / length * kind.size, moved)
    return moved


def seen(kind: Any, touch: Touch, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors with which the function computes (DEEP-33)."""
    if kind.kind not in ("ftrl", "lq"):
        return dict(weights)
    return {name: _mapped(kind, touch, x) if rank(name) == 2 else x for name, x in weights.items()}


def _mapped(kind: Any, touch: Touch, A: Array) -> Array:
    if kind.kind == "ftrl":
        return _soft(kind, A)
    q = kind.power
    p = q if kind.link == "printed" else q / (q - 1.0)
    zero = ops.equal(A, 0.0)
    size = ops.absolute(ops.where(zero, 1.0, A))
    powers = ops.where(zero, 0.0, touch(ops.power(size, p)))
    total = ops.sum(powers, axis=(-2, -1), keepdims=True)
    empty = ops.equal(total, 0.0)
    divisor = touch(ops.power(ops.where(empty, 1.0, total), (p - 2.0) / p))
    if kind.link != "mirror":
        return A / divisor
    up = ops.where(ops.less(A, 0.0), -size, size)
    return ops.where(zero, 0.0, up * touch(ops.power(size, p - 2.0))) / divisor


def _soft(kind: Any, x: Array) -> Array:
    d = kind.threshold
    return ops.maximum(x - d, 0.0) + ops.minimum(x + d, 0.0)


def _groups(kind: Any, x: Array) -> Array:
    """Entries that are normalised together along the last axis."""
    if kind.over == "row":
        return x
    if kind.over == "column":
        return ops.swapaxes(x, -1, -2)
    return ops.reshape(x, (*x.shape[:-2], -1))


def _whole(kind: Any, groups: Array, like: Array) -> Array:
    if kind.over == "column":
        return ops.swapaxes(groups, -1, -2)
    return ops.reshape(groups, like.shape)
