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
        return soft(kind, moved)
    if kind.kind == "kl":
        rows = groups(kind, moved)
        alive = ops.greater(groups(kind, W), 0.0)
        # what is dead stands below everything by more than exp can see
        low = ops.where(alive, rows, -1e4)
        share = touch(ops.exp(low - ops.logsumexp(low, axis=-1, keepdims=True)))
        return whole(kind, ops.where(alive, share, 0.0) * kind.size, moved)
    return on_sphere(kind, touch, moved) if kind.kind == "sphere" else moved


def weights_of_function(kind: Any, touch: Touch, weights: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors with which the function computes (DEEP-33)."""
    if kind.kind not in ("ftrl", "lq"):
        return dict(weights)
    return {name: link(kind, touch, x) if rank(name) == 2 else x for name, x in weights.items()}


def on_sphere(kind: Any, touch: Touch, A: Array, length: Any = None) -> Array:
    """size A / |A|, zeros as they are (DEEP-31).

    Args:
        length: what is done with the norm, where that is a mistake.
    """
    rows = groups(kind, A)
    square = ops.sum(rows * rows, axis=-1, keepdims=True)
    empty = ops.equal(square, 0.0)
    size = touch(ops.sqrt(ops.where(empty, 1.0, square)))
    size = size if length is None else length(size)
    return whole(kind, rows / size * kind.size, A)


def link(kind: Any, touch: Touch, A: Array, norm: Any = None) -> Array:
    """m(A) of one matrix (DEEP-33).

    Args:
        norm: what is done with the divisor, where that is a mistake; of it and of the sum of powers.
    """
    if kind.kind == "ftrl":
        return soft(kind, A)
    q = kind.power
    p = q if kind.link == "printed" else q / (q - 1.0)
    zero = ops.equal(A, 0.0)
    size = ops.absolute(ops.where(zero, 1.0, A))
    powers = ops.where(zero, 0.0, touch(ops.power(size, p)))
    total = ops.sum(powers, axis=(-2, -1), keepdims=True)
    empty = ops.equal(total, 0.0)
    total = ops.where(empty, 1.0, total)
    divisor = touch(ops.power(total, (p - 2.0) / p))
    divisor = divisor if norm is None else norm(divisor, total, p)
    if kind.link != "mirror":
        return A / divisor
    up = ops.where(ops.less(A, 0.0), -size, size)
    return ops.where(zero, 0.0, up * touch(ops.power(size, p - 2.0))) / divisor


def soft(kind: Any, x: Array) -> Array:
    """sign(x) max(|x| - t, 0) (DEEP-31)."""
    d = kind.threshold
    return ops.maximum(x - d, 0.0) + ops.minimum(x + d, 0.0)


def groups(kind: Any, x: Array) -> Array:
    """Entries that are normalised together along the last axis."""
    if kind.over == "row":
        return x
    if kind.over == "column":
        return ops.swapaxes(x, -1, -2)
    return ops.reshape(x, (*x.shape[:-2], -1))


def whole(kind: Any, rows: Array, like: Array) -> Array:
    """A matrix from such entries."""
    if kind.over == "column":
        return ops.swapaxes(rows, -1, -2)
    return ops.reshape(rows, like.shape)
