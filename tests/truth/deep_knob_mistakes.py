"""A matrix memory in chunks with a bias and a retention, entry by entry, and mistakes of these.

Written from the printed equations of MIRAS and the words of each mistake; nothing is shared with the
package. One row, no momentum gate beside `momentum`, gates of a write are those of its last token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.truth.retention_loops import groups, soft

Inputs = Mapping[str, Any]


def run(x: Inputs, own: Any, mistake: str = "") -> tuple[np.ndarray, np.ndarray]:
    """y (T, d_out) and W of inputs by their bare names.

    Args:
        own: chunk, window, span, bias and retention, whose kinds' settings are all stated.
    """
    k, v, q = x["k"], x["v"], x["q"]
    A, S = x["W"].copy(), np.zeros_like(x["W"])
    reference, reads = A, []
    for t in range(len(k)):
        if own.retention.get("lag") and t % own.span == 0:
            reference = A
        if (t + 1) % own.chunk == 0:
            at = reference if own.retention.get("lag") else A
            at = at if mistake == "gradients without the link" else linked(at, own, mistake)
            g = np.zeros_like(A)
            for i in range(max(0, t - own.window + 1), t + 1):
                y = np.array(
                    [sum(at[o, j] * k[i, j] for j in range(k.shape[1])) for o in range(len(A))]
                )
                bar = slopes(y, v[i], _threshold(x, own, i, mistake), own.bias, mistake)
                g = g + np.outer(bar, k[i])
            S = x["momentum"][t] * S + g
            lags, refreshes = _lag(t, own, mistake)
            A = written(A, x["retain"][t], x["step_size"][t] * S, own, mistake, lags)
            reference = A if refreshes else reference
        W = A if mistake == "reads without the link" else linked(A, own, mistake)
        W = sphere(W, own.retention, "") if mistake == "projection at the reads alone" else W
        reads.append(W @ q[t])
    return np.stack(reads), A


def _threshold(x: Inputs, own: Any, i: int, mistake: str) -> Any:
    if "threshold" not in x or mistake == "threshold ignored":
        return own.bias.get("threshold")
    if mistake == "threshold of the token before":
        return x["threshold"][max(0, i - 1)]
    if mistake == "threshold of the last token":
        last = min(len(x["threshold"]), (i // own.chunk + 1) * own.chunk) - 1
        return x["threshold"][last]
    return x["threshold"][i]


def _lag(t: int, own: Any, mistake: str) -> tuple[bool, bool]:
    """Whether a write has logarithms, and whether the reference is refreshed behind it."""
    if not own.retention.get("lag"):
        return True, False
    if mistake == "lag token at the end of its span":
        last = (t + 1) % own.span == 0
        return last, last
    first = t % own.span < own.chunk
    return first, first and mistake != "reference before the lag token"


# -- the bias --------------------------------------------------------------------------------------


def slopes(y: Any, v: Any, d: Any, bias: Mapping[str, Any], mistake: str) -> np.ndarray:
    """The derivative of the loss by a prediction."""
    if bias["kind"] == "kl":
        share = y if mistake == "prediction without its softmax" else _softmax(y)
        return share - _softmax(v)
    e = y - v
    if bias["kind"] == "l2":
        return 2.0 * e
    if bias["kind"] in ("l1", "lp"):
        return np.array([_power(each, bias, mistake) for each in e])
    return _huber(e, d, bias, mistake)


def _softmax(x: Any) -> np.ndarray:
    powers = [math.exp(each - max(x)) for each in x]
    return np.array(powers) / sum(powers)


def _sign(e: float, bias: Mapping[str, Any]) -> float:
    if bias["smoothing"] == "tanh":
        return math.tanh(bias["sharpness"] * e)
    if bias["smoothing"] == "root":
        return e / math.sqrt(e * e + bias["eps"])
    return math.copysign(1.0, e) if e else 0.0


def _power(e: float, bias: Mapping[str, Any], mistake: str) -> float:
    if bias["kind"] == "l1":
        return _sign(e, bias)
    p = bias["power"]
    size = abs(e) if bias["smoothing"] == "none" else math.sqrt(e * e + bias["eps"])
    factor = 1.0 if mistake == "power left out of the slope" else p
    exponent = p if mistake == "power of the error not lowered" else p - 1.0
    return factor * _sign(e, bias) * size**exponent


def _huber(e: Any, d: float, bias: Mapping[str, Any], mistake: str) -> np.ndarray:
    length = math.sqrt(sum(each * each for each in e))
    found = []
    for each in e:
        held = abs(each) if bias["form"] == "coordinate" else length
        if mistake == "threshold of the squared norm":
            held = length**2
        if mistake == "threshold of the largest entry":
            held = max(abs(other) for other in e)
        beyond = held > d
        if mistake == "branches of the threshold exchanged":
            beyond = not beyond
        line = each / length if bias["form"] == "norm" else _sign(each, bias)
        line = line if mistake == "threshold left out of the slope" else d * line
        found.append(line if beyond else (each if bias["quadratic"] == "half" else 2.0 * each))
    return np.array(found)


# -- the retention ---------------------------------------------------------------------------------


def written(
    A: np.ndarray, r: float, move: np.ndarray, own: Any, mistake: str, lags: bool
) -> np.ndarray:
    """The weights that a write leaves."""
    kept = own.retention
    kind = kept["kind"]
    if kind == "kl" and lags:
        return _simplex(A, r, move, kept, mistake)
    if mistake == "soft threshold before the decay":
        return r * _each(A, lambda a: soft(a, kept["threshold"])) - move
    if mistake == "projection before the step":
        return r * sphere(A, kept, mistake) - move
    moved = r * A - move
    if kind == "elastic_net" and mistake == "hard threshold":
        return _each(moved, lambda a: a if abs(a) > kept["threshold"] else 0.0)
    if kind == "elastic_net" or mistake == "threshold carried by writes":
        return _each(moved, lambda a: soft(a, kept["threshold"]))
    if kind == "sphere" and mistake != "projection at the reads alone":
        return sphere(moved, kept, mistake)
    return moved


def _each(A: np.ndarray, change: Any) -> np.ndarray:
    return np.array([[change(float(a)) for a in row] for row in A])


def sphere(A: np.ndarray, kept: Mapping[str, Any], mistake: str) -> np.ndarray:
    """Weights over the norm of their group."""
    found = np.zeros_like(A)
    for group in groups(A.shape, kept["over"]):
        square = sum(A[place] ** 2 for place in group)
        divisor = square if mistake == "squared norm of the sphere" else math.sqrt(square)
        for place in group:
            found[place] = kept["size"] * A[place] / divisor if square else 0.0
    return found


def _simplex(
    A: np.ndarray, r: float, move: np.ndarray, kept: Mapping[str, Any], mistake: str
) -> np.ndarray:
    found = np.zeros_like(A)
    for group in groups(A.shape, kept["over"]):
        revived = mistake == "weights of 0 come back"
        alive = [place for place in group if A[place] > 0.0 or revived]
        plain = mistake == "weights without their logarithm"
        before = {p: A[p] if plain else math.log(A[p]) if A[p] > 0.0 else 0.0 for p in alive}
        powers = {p: math.exp(r * before[p] - move[p]) for p in alive}
        total = 1.0 if mistake == "softmax without its sum" else sum(powers.values())
        for p in alive:
            found[p] = kept["size"] * powers[p] / total
    return found


def linked(A: np.ndarray, own: Any, mistake: str) -> np.ndarray:
    """What the function computes with."""
    kept = own.retention
    if kept["kind"] == "ftrl" and mistake != "threshold carried by writes":
        if mistake == "hard threshold":
            return _each(A, lambda a: a if abs(a) > kept["threshold"] else 0.0)
        return _each(A, lambda a: soft(a, kept["threshold"]))
    if kept["kind"] != "lq":
        return A
    q = kept["power"]
    p = q if kept["link"] == "printed" else q / (q - 1.0)
    total = sum(abs(float(a)) ** p for a in A.ravel())
    rooted = total if mistake == "norm of the link without its root" else total ** (1.0 / p)
    divisor = rooted ** (p - 2.0)
    if kept["link"] != "mirror":
        return A / divisor
    return _each(A, lambda a: math.copysign(abs(a) ** (p - 1.0), a) / divisor)
