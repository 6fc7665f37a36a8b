"""Attentional biases of a deep memory on balls (CERT-17).

Written from DEEP-26 to DEEP-29.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flint import arb

from atlas_ref.certify.functions import inverse, softmax, summed
from atlas_ref.certify.matrix import Matrix, each, filled, norm, number, scaled

#: Settings that a header may leave out.
DEFAULTS: dict[str, Any] = {
    "power": 3.0,
    "smoothing": "tanh",
    "sharpness": 10.0,
    "eps": 1e-6,
    "form": "mixture",
    "threshold": 1.0,
    "quadratic": "half",
    "targets": "softmax",
}

#: A function of a ball and its derivative.
Pair = tuple[Callable[[arb], arb], Callable[[arb], arb]]


def error(bias: Mapping[str, Any], y: Matrix, v: Matrix, *, plus: bool) -> Matrix:
    """M(k) - v, or + v; of kl the share of the prediction less its target (DEEP-29)."""
    if bias["kind"] != "kl":
        return y + v if plus else y - v
    share = softmax(y)
    if bias.get("targets", DEFAULTS["targets"]) == "softmax":
        return share - softmax(v)
    return scaled(summed(v), share) - v


def half_slope(bias: Mapping[str, Any], e: Matrix, threshold: Matrix | None = None) -> Matrix:
    """Half the derivative of the bias by the prediction (DEEP-27, DEEP-28, DEEP-36)."""
    own, kind = {**DEFAULTS, **bias}, bias["kind"]
    if kind == "l2":
        return e
    if kind == "kl":
        return e.times(arb(0.5))
    if kind == "huber":
        d = number(arb(own["threshold"])) if threshold is None else threshold
        return _huber(own, e, d).times(arb(0.5))
    p = 1.0 if kind == "l1" else float(own["power"])
    return each(e, *_of_power(own, p)).times(arb(0.5))


def _of_power(own: Mapping[str, Any], p: float) -> Pair:
    """p Sign(x) |x|^(p - 1), and its derivative."""
    a, eps, power = arb(own["sharpness"]), arb(own["eps"]), arb(p)
    if own["smoothing"] == "none":
        return lambda x: _exact(x, power), lambda x: _exact_slope(x, p)
    if own["smoothing"] == "root":
        half = power / 2 - 1

        def root(x: arb) -> arb:
            return power * x * (x * x + eps) ** half

        def root_slope(x: arb) -> arb:
            square = x * x + eps
            return power * (square**half + 2 * half * x * x * square ** (half - 1))

        return root, root_slope
    half = (power - 1) / 2

    def smooth(x: arb) -> arb:
        return power * (a * x).tanh() * (x * x + eps) ** half

    def smooth_slope(x: arb) -> arb:
        t, square = (a * x).tanh(), x * x + eps
        return power * (a * (1 - t * t) * square**half + t * 2 * half * x * square ** (half - 1))

    return smooth, smooth_slope


def _exact(x: arb, power: arb) -> arb:
    if x.is_zero():
        return arb(0)
    return power * x.sgn() * abs(x) ** (power - 1)


def _exact_slope(x: arb, p: float) -> arb:
    if p == 1.0:
        return arb(0)
    if x.is_zero():
        return arb(2 if p == 2.0 else 0)
    return arb(p) * (arb(p) - 1) * abs(x) ** (arb(p) - 2)


def _huber(own: Mapping[str, Any], e: Matrix, threshold: Matrix) -> Matrix:
    """The slope of the parabola or of the line; both where a ball holds the threshold.

    Args:
        threshold: one number, which may have a derivative (DEEP-36).
    """
    d, factor = threshold.value[0, 0], arb(1 if own["quadratic"] == "half" else 2)
    sign, sign_slope = _of_power(own, 1.0)
    if own["form"] == "coordinate":
        none = arb(0)
        near = each(
            e,
            lambda x: _chosen(abs(x), d, factor * x, none),
            lambda x: _chosen(abs(x), d, factor, none),
        )
        far = each(
            e,
            lambda x: _chosen(abs(x), d, none, sign(x)),
            lambda x: _chosen(abs(x), d, none, sign_slope(x)),
        )
        return near + scaled(threshold, far)
    size = norm(e)
    line = scaled(inverse(size), e) if own["form"] == "norm" else each(e, sign, sign_slope)
    inside, beyond = e.times(factor), scaled(threshold, line)
    length = size.value[0, 0]
    if length <= d:
        return inside
    return beyond if length > d else _either(inside, beyond)


def _chosen(size: arb, d: arb, inside: arb, beyond: arb) -> arb:
    if size <= d:
        return inside
    return beyond if size > d else inside.union(beyond)


def _either(one: Matrix, other: Matrix) -> Matrix:
    """A matrix that holds both, and a pullback that holds both."""
    value = filled(
        one.rows,
        one.columns,
        [a.union(b) for a, b in zip(one.value.entries(), other.value.entries(), strict=True)],
    )
    share = arb(0.5, 0.5)  # every number from 0 to 1
    return Matrix(value, (one, lambda g: g * share), (other, lambda g: g * share))
