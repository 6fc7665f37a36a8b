"""Attentional biases: the loss of a write as a function of its error.

    loss = (s / 2) sum_i w_i bias(e_i),   e_i = M(k_i) - v_i

    l2      |e|^2
    l1, lp  sum_o |e_o|, sum_o |e_o|^p
    huber   |e|^2 / 2 up to a threshold, then a line, of each coordinate or of the norm
    kl      KL(v || softmax(M(k)))

Specified in specs/deep_memory.md (DEEP-26 to DEEP-29). Source: MIRAS (2504.13173) Eqs 14 to 16
and 24 to 26.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.parts.kinds import check_read
from atlas_ref.parts.norms import reduction
from atlas_ref.types import Array, Frozen
from tape import ops

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

#: Settings that some kinds read; under another kind they must have their defaults.
READ_BY: dict[str, tuple[str, ...]] = {
    "power": ("lp",),
    "smoothing": ("l1", "lp", "huber"),
    "sharpness": ("l1", "lp", "huber"),
    "eps": ("l1", "lp", "huber"),
    "form": ("huber",),
    "threshold": ("huber",),
    "quadratic": ("huber",),
    "targets": ("kl",),
}


class Bias(Frozen):
    """What a write minimises: a loss of the error between a prediction and its value (DEEP-26).

    Attributes:
        kind: l2, l1, lp, huber or kl.
        power: p of lp, at least 1.
        smoothing: of Sign(e) and |e|: tanh, tanh(sharpness e) and sqrt(e^2 + eps) as printed; root,
            the gradient of (e^2 + eps)^(p / 2); none, the sign itself, 0 at 0.
        sharpness, eps: of the smoothing.
        form: of huber: each coordinate by itself; the norm of an error; mixture, l2 up to that norm
            and l1 beyond it.
        threshold: of huber, above which the loss grows like a line.
        quadratic: of huber: half, |e|^2 / 2, whose gradient meets that of the line; whole, |e|^2.
        targets: of kl: softmax of a value, or the value as it is given.
    """

    kind: Literal["l2", "l1", "lp", "huber", "kl"] = "l2"
    power: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 3.0
    smoothing: Literal["tanh", "root", "none"] = "tanh"
    sharpness: Positive = 10.0
    eps: Positive = 1e-6
    form: Literal["coordinate", "norm", "mixture"] = "mixture"
    threshold: Positive = 1.0
    quadratic: Literal["half", "whole"] = "half"
    targets: Literal["softmax", "given"] = "softmax"

    @model_validator(mode="after")
    def _read(self) -> Self:
        check_read(self, READ_BY)
        fields = type(self).model_fields
        if not self.smooths and self.smoothing != fields["smoothing"].default:
            raise ValueError(f"smoothing: {self.smoothing!r}, but form norm has no sign")
        for name, read in (("sharpness", "sharpness" in self.reads), ("eps", "eps" in self.reads)):
            if not read and getattr(self, name) != fields[name].default:
                raise ValueError(
                    f"{name}: {getattr(self, name)!r}, but nothing is smoothed by it here"
                )
        return self

    @property
    def smooths(self) -> bool:
        """Whether the gradient has a sign of coordinates."""
        return self.kind in ("l1", "lp") or (self.kind == "huber" and self.form != "norm")

    @property
    def reads(self) -> tuple[str, ...]:
        """Numbers of the smoothing that are read."""
        if not self.smooths or self.smoothing == "none":
            return ()
        if self.smoothing == "root":
            return ("eps",)
        return ("sharpness", "eps") if self.kind == "lp" else ("sharpness",)


def residual(bias: Bias, predicted: Array, values: Array) -> Array:
    """e (..., n, d_out): M(k) - v, or the difference of two distributions (DEEP-29)."""
    if bias.kind != "kl":
        return predicted - values
    share = ops.softmax(predicted, axis=-1)
    if bias.targets == "softmax":
        return share - ops.softmax(values, axis=-1)
    return ops.sum(values, axis=-1, keepdims=True) * share - values


def half_slope(bias: Bias, e: Array, thresholds: Array = None) -> Array:
    """Half the derivative of the bias by the prediction, of an error (..., n, d_out) (DEEP-27).

    Args:
        thresholds (..., n): of huber, one for each token in place of the setting (DEEP-36).
    """
    if bias.kind == "l2":
        return e
    if bias.kind == "kl":
        return 0.5 * e
    if bias.kind == "huber":
        return 0.5 * _huber(bias, e, thresholds)
    return 0.5 * _power(bias, e, 1.0 if bias.kind == "l1" else bias.power)


def _power(bias: Bias, e: Array, p: float) -> Array:
    """p Sign(e) |e|^(p - 1), smoothed (DEEP-27), also where the square of an error overflows."""
    if bias.smoothing == "none":
        return _unsmoothed(e, p)
    if bias.smoothing == "tanh":
        sign = ops.tanh(bias.sharpness * e)
        return sign if p == 1.0 else p * (sign * _smooth(bias, e, p - 1.0))
    s = _reduction(e)
    x = e if isinstance(s, float) else s * e
    return p * _grown(x * (x * x + bias.eps * s * s) ** (0.5 * p - 1.0), s, p - 1.0)


def _unsmoothed(e: Array, p: float) -> Array:
    if p == 2.0:
        return 2.0 * e
    one, zero = ops.ones_like(e), ops.equal(e, 0.0)
    sign = ops.where(zero, 0.0 * one, ops.where(ops.less(e, 0.0), -one, one))
    if p == 1.0:
        return sign
    size = ops.absolute(ops.where(zero, 1.0, e))  # no power of 0, whose slope is infinite below 2
    return p * (sign * size ** (p - 1.0))


def _smooth(bias: Bias, e: Array, power: float) -> Array:
    """(e^2 + eps)^(power / 2)."""
    s = _reduction(e)
    x = e if isinstance(s, float) else s * e
    return _grown((x * x + bias.eps * s * s) ** (0.5 * power), s, power)


def _reduction(e: Array) -> Any:
    """Factor of each entry: 1, or the power of two that keeps its square in range."""
    s = reduction(np.expand_dims(np.real(ops.stop_gradient(e)), -1))
    return s if isinstance(s, float) else s[..., 0]


def _grown(x: Array, s: Any, power: float) -> Array:
    """x / s^power, in two halves, since the whole factor may overflow where x / s^power does not."""
    if isinstance(s, float):
        return x
    half = s ** (-0.5 * power)
    return half * (half * x)


def _huber(bias: Bias, e: Array, thresholds: Array) -> Array:
    """e or 2 e up to the threshold, the threshold times a sign or unit error beyond it (DEEP-28,
    DEEP-36).
    """
    threshold = bias.threshold if thresholds is None else ops.expand_dims(thresholds, -1)
    inside = e if bias.quadratic == "half" else 2.0 * e
    if bias.form == "coordinate":
        beyond = ops.greater(ops.absolute(e), threshold)
        return ops.where(beyond, threshold * _power(bias, e, 1.0), inside)
    s = reduction(e)  # of each token, so that no sum of squares overflows
    x = e if isinstance(s, float) else s * e
    total = ops.sum(x * x, axis=-1, keepdims=True)
    none = ops.equal(total, 0.0)  # where a root has no slope
    size = ops.sqrt(ops.where(none, 1.0, total))
    beyond = ops.greater(ops.where(none, 0.0, size), s * threshold)
    line = x / size if bias.form == "norm" else _power(bias, e, 1.0)
    return ops.where(beyond, threshold * line, inside)
