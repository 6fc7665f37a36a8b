"""Attentional biases of the plain loop: the error of a prediction, and the slope of its loss.

Written from DEEP-26 to DEEP-29; it shares no code with `parts.biases`. `touch` rounds functions that
are no sums of products. `part` calls the functions that a mistake may wrap (DEEPCASE-15).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.oracle.program.hook import same
from atlas_ref.types import Array
from tape import ops

Touch = Callable[[Array], Array]

#: Called as part(name, compute, *arguments); `hook.Hook.part`, or `plainly`.
Part = Callable[..., Any]


def plainly(name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
    """A part that nothing wraps."""
    return compute(*arguments)


def residual(
    bias: Any, plus: bool, touch: Touch, predicted: Array, values: Array, part: Part
) -> Array:
    """e: M(k) - v, or + v; of kl the share of the prediction less its target (DEEP-7, DEEP-29)."""
    if bias.kind != "kl":
        return predicted + values if plus else predicted - values
    given = bias.targets == "given"
    target = values if given else share(touch, values)
    mass = ops.sum(values, axis=-1, keepdims=True) if given else 1.0
    return mass * part("bias/share", share, touch, predicted) - target


def slope(bias: Any, touch: Touch, e: Array, thresholds: Any, part: Part) -> Array:
    """The derivative of the loss by a prediction, over 2 (DEEP-27, DEEP-28, DEEP-36)."""
    if bias.kind == "l2":
        return e
    if bias.kind == "kl":
        return e / 2.0
    if bias.kind == "huber":
        d = bias.threshold if thresholds is None else thresholds[..., None]
        return _slope_of_huber(bias, touch, e, d, part) / 2.0
    return part("bias/power", of_power, bias, touch, e, part) / 2.0


def share(touch: Touch, x: Array) -> Array:
    """softmax as exp(x - log sum exp x)."""
    return touch(ops.exp(x - ops.logsumexp(x, axis=-1, keepdims=True)))


def sign(bias: Any, touch: Touch, e: Array) -> Array:
    """Sign of every entry, as the smoothing has it (DEEP-27)."""
    if bias.smoothing == "tanh":
        return touch(ops.tanh(e * bias.sharpness))
    if bias.smoothing == "root":
        return e / _modulus(bias, touch, e, 1.0)
    up, down = (ops.astype(each, e.dtype) for each in (ops.greater(e, 0.0), ops.less(e, 0.0)))
    return ops.zeros_like(e) + up - down


def of_power(bias: Any, touch: Touch, e: Array, part: Part) -> Array:
    """p Sign(e) |e|^(p - 1) (DEEP-27)."""
    direction = part("bias/sign", sign, bias, touch, e)
    if bias.kind == "l1":
        return direction
    p = bias.power
    if bias.smoothing != "none":
        return p * direction * _modulus(bias, touch, e, p - 1.0)
    if p == 2.0:
        return 2.0 * e
    empty = ops.equal(e, 0.0)
    size = ops.where(empty, 1.0, direction * e)
    return p * direction * ops.where(empty, 0.0, touch(ops.power(size, p - 1.0)))


def _modulus(bias: Any, touch: Touch, e: Array, power: float) -> Array:
    """sqrt(e^2 + eps)^power; |e|^power where e^2 has no room, beside which no eps counts."""
    far = _far(e)
    near = ops.where(far, 1.0, e)
    squares = ops.power(near * near + bias.eps, power / 2.0)
    size = ops.where(far, ops.where(ops.less(e, 0.0), -e, e), 1.0)
    return touch(ops.where(far, ops.power(size, power), squares))


def _far(e: Array) -> Any:
    """Whether the sum of the squares of some such entries could overflow."""
    plain = ops.stop_gradient(e).real
    return abs(plain) > 1e-3 * np.sqrt(np.finfo(plain.dtype).max)


def _unit(e: Array) -> Any:
    """A power of two for each token: 1, or 1e-3 of the root of the least number where one is far."""
    real = ops.stop_gradient(e).real.dtype
    small = 2.0 ** (np.finfo(real).minexp // 2 - 10)
    return np.where(_far(e).any(axis=-1, keepdims=True), small, 1.0).astype(real)


def _slope_of_huber(bias: Any, touch: Touch, e: Array, d: Any, part: Part) -> Array:
    """The slope of a parabola, and of a line behind the threshold d."""
    parabola = e * (1.0 if bias.quadratic == "half" else 2.0)

    def along(direction: Array) -> Array:
        return part("bias/line", line, direction, d)

    if bias.form == "coordinate":
        far = part("bias/far", beyond, e, None, d)
        return ops.where(far, along(part("bias/sign", sign, bias, touch, e)), parabola)
    unit = _unit(e)
    own = e * unit
    length = _length(touch, own)
    far = part("bias/far", beyond, own, length, unit * d)
    if bias.form == "norm":
        return ops.where(far, along(own / part("bias/length", same, length)), parabola)
    return ops.where(far, along(part("bias/sign", sign, bias, touch, e)), parabola)


def beyond(e: Array, length: Array | None, d: Any) -> Array:
    """Which errors are beyond the threshold: entries, or whole errors by their length (DEEP-28)."""
    if length is None:
        return ops.greater(e, d) | ops.less(e, -d)
    return ops.greater(length, d) & ~ops.equal(ops.sum(e * e, axis=-1, keepdims=True), 0.0)


def line(direction: Array, d: Any) -> Array:
    """The slope beyond the threshold (DEEP-28)."""
    return direction * d


def _length(touch: Touch, e: Array) -> Array:
    """The norm of every error, 1 in the place of 0."""
    square = ops.sum(e * e, axis=-1, keepdims=True)
    return touch(ops.sqrt(ops.where(ops.equal(square, 0.0), 1.0, square)))
