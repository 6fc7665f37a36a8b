"""Attentional biases of the plain loop: the error of a prediction, and the slope of its loss.

Written from DEEP-26 to DEEP-29; it shares no code with `parts.biases`. `touch` rounds functions that
are no sums of products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.types import Array
from tape import ops

Touch = Callable[[Array], Array]


def residual(bias: Any, plus: bool, touch: Touch, predicted: Array, values: Array) -> Array:
    """e: M(k) - v, or + v; of kl the share of the prediction less its target (DEEP-7, DEEP-29)."""
    if bias.kind != "kl":
        return predicted + values if plus else predicted - values
    given = bias.targets == "given"
    target = values if given else _share(touch, values)
    mass = ops.sum(values, axis=-1, keepdims=True) if given else 1.0
    return mass * _share(touch, predicted) - target


def slope(bias: Any, touch: Touch, e: Array, thresholds: Any = None) -> Array:
    """The derivative of the loss by a prediction, over 2 (DEEP-27, DEEP-28, DEEP-36)."""
    if bias.kind == "l2":
        return e
    if bias.kind == "kl":
        return e / 2.0
    if bias.kind == "huber":
        d = bias.threshold if thresholds is None else thresholds[..., None]
        return _clamped(bias, touch, e, d) / 2.0
    return _of_power(bias, touch, e) / 2.0


def _share(touch: Touch, x: Array) -> Array:
    """softmax as exp(x - log sum exp x)."""
    return touch(ops.exp(x - ops.logsumexp(x, axis=-1, keepdims=True)))


def _sign(bias: Any, touch: Touch, e: Array) -> Array:
    if bias.smoothing == "tanh":
        return touch(ops.tanh(e * bias.sharpness))
    if bias.smoothing == "root":
        return e / touch(ops.sqrt(bias.eps + e * e))
    up, down = (ops.astype(each, e.dtype) for each in (ops.greater(e, 0.0), ops.less(e, 0.0)))
    return ops.zeros_like(e) + up - down


def _of_power(bias: Any, touch: Touch, e: Array) -> Array:
    """p Sign(e) |e|^(p - 1)."""
    sign = _sign(bias, touch, e)
    if bias.kind == "l1":
        return sign
    p, square = bias.power, e * e
    if bias.smoothing != "none":
        return p * sign * touch(ops.power(square + bias.eps, (p - 1.0) / 2.0))
    if p == 2.0:
        return 2.0 * e
    empty = ops.equal(e, 0.0)
    size = ops.where(empty, 1.0, sign * e)
    return p * sign * ops.where(empty, 0.0, touch(ops.power(size, p - 1.0)))


def _clamped(bias: Any, touch: Touch, e: Array, d: Any) -> Array:
    """The slope of a parabola, and of a line behind the threshold d."""
    parabola = e * (1.0 if bias.quadratic == "half" else 2.0)
    if bias.form == "coordinate":
        far = ops.greater(e, d) | ops.less(e, -d)
        return ops.where(far, _sign(bias, touch, e) * d, parabola)
    square = ops.sum(e * e, axis=-1, keepdims=True)
    empty = ops.equal(square, 0.0)
    length = touch(ops.sqrt(ops.where(empty, 1.0, square)))
    far = ops.greater(length, d) & ~empty
    line = e / length if bias.form == "norm" else _sign(bias, touch, e)
    return ops.where(far, line * d, parabola)
