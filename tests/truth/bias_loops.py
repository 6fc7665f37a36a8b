"""Attentional biases of MIRAS and their slopes by loops over the entries of one prediction.

Written from the printed equations. Comparisons look at real parts alone and nothing is conjugated,
so that a complex step passes through. Nothing here is shared with the package under test.

    l2     sum_o e_o^2                       slope 2 e
    l1     sum_o |e_o|                       slope Sign(e)
    lp     sum_o |e_o|^p                     slope p Sign(e) |e|^(p-1)
    huber  e^2 / 2 where |e| <= threshold    slope e, or 2 e of a whole parabola
           threshold (|e| - threshold / 2)   slope threshold Sign(e)
    kl     sum_o v_o (log v_o - log softmax(y)_o)

with Sign(x) = tanh(sharpness x) and |x| = sqrt(x^2 + eps) under smoothing tanh.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def absolute(x: Any) -> Any:
    return -x if np.real(x) < 0.0 else x


def length(e: Any) -> Any:
    total = 0.0
    for x in e:
        total = total + x * x
    return np.sqrt(total)


def softmax(x: Any) -> Array:
    top = max(np.real(each) for each in x)
    shares = [np.exp(each - top) for each in x]
    return np.array([each / sum(shares) for each in shares])


def sign(x: Any, smoothing: str, sharpness: float, eps: float) -> Any:
    if smoothing == "tanh":
        return np.tanh(sharpness * x)
    if smoothing == "root":
        return x / np.sqrt(x * x + eps)
    return 0.0 * x + np.sign(np.real(x))


def of_power(x: Any, p: float, smoothing: str, sharpness: float, eps: float) -> Any:
    """Slope of |x|^p, smoothed."""
    if smoothing == "none":
        return 0.0 * x if np.real(x) == 0.0 else p * np.sign(np.real(x)) * absolute(x) ** (p - 1.0)
    size = np.sqrt(x * x + eps)
    return p * sign(x, smoothing, sharpness, eps) * size ** (p - 1.0)


def slope(
    y: Array,
    v: Array,
    *,
    kind: str,
    power: float = 3.0,
    smoothing: str = "tanh",
    sharpness: float = 10.0,
    eps: float = 1e-6,
    form: str = "mixture",
    threshold: float = 1.0,
    quadratic: str = "half",
    targets: str = "softmax",
) -> Array:
    """The derivative of the bias by the prediction y of a value v, both (d,)."""
    if kind == "kl":
        wanted = softmax(v) if targets == "softmax" else v
        return np.array([sum(wanted) * each for each in softmax(y)]) - wanted
    e = y - v
    result = []
    for x in e:
        own = (smoothing, sharpness, eps)
        if kind == "l2":
            result.append(2.0 * x)
        elif kind in ("l1", "lp"):
            result.append(of_power(x, 1.0 if kind == "l1" else power, *own))
        else:
            size = absolute(x) if form == "coordinate" else length(e)
            if np.real(size) <= np.real(threshold):
                result.append(x if quadratic == "half" else 2.0 * x)
            elif form == "norm":
                result.append(threshold * x / size)
            else:
                result.append(threshold * sign(x, *own))
    return np.array(result)


def loss(y: Array, v: Array, *, kind: str, **own: Any) -> Any:
    """The bias itself, where its gradient is that of `slope`: of a smoothing root or none."""
    if kind == "kl":
        wanted = softmax(v) if own.get("targets", "softmax") == "softmax" else v
        return sum(w * (np.log(w) - np.log(s)) for w, s in zip(wanted, softmax(y), strict=True))
    p = {"l2": 2.0, "l1": 1.0}.get(kind, own.get("power", 3.0))
    if kind != "huber":
        smooth = own["eps"] if own.get("smoothing") == "root" else 0.0
        return sum((np.sqrt(x * x + smooth)) ** p for x in y - v)
    threshold = own.get("threshold", 1.0)

    def clamped(size: Any) -> Any:
        if np.real(size) <= threshold:
            return size * size / 2.0
        return threshold * (size - threshold / 2.0)

    if own["form"] == "norm":
        return clamped(length(y - v))
    return sum(clamped(absolute(x)) for x in y - v)
