"""Modules of the Atlas-MAG language model and their gradients by hand, as plain loops.

Each function returns its value and a function from the cotangent of the value to the gradients, by
name. Tokens are (B, T, d), heads (B, H, T, d / H), parameters by the names of the public code.
Float64. Nothing here is shared with the package under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Tensors = dict[str, Any]
Result = tuple[Any, Callable[[Any], Tensors]]


def places(x: Array) -> list[tuple[int, ...]]:
    """Indices of all rows of x (..., d)."""
    return list(np.ndindex(*x.shape[:-1]))


def add(total: Tensors, more: Tensors, start: str = "") -> Tensors:
    """Sums of gradients by name, `start` before the names of the second ones."""
    result = dict(total)
    for name, a in more.items():
        result[start + name] = result[start + name] + a if start + name in result else a
    return result


def linear(x: Array, W: Array) -> Result:
    """y_o = sum_i W[o, i] x_i of each row; gradients x and W."""
    y = np.zeros((*x.shape[:-1], len(W)))
    for at in places(x):
        y[at] = W @ x[at]

    def back(bar: Array) -> Tensors:
        x_bar, W_bar = np.zeros(x.shape), np.zeros(W.shape)
        for at in places(x):
            x_bar[at] = W.T @ bar[at]
            W_bar += bar[at][:, None] * x[at][None, :]
        return {"x": x_bar, "W": W_bar}

    return y, back


def rms_norm(x: Array, weight: Array, eps: float = 1e-6) -> Result:
    """Of the last axis of x; gradients x and weight."""
    y, d = np.zeros(x.shape), x.shape[-1]
    r = {at: 1.0 / math.sqrt(sum(x[at] ** 2) / d + eps) for at in places(x)}
    for at in r:
        y[at] = weight * x[at] * r[at]

    def back(bar: Array) -> Tensors:
        x_bar, weight_bar = np.zeros(x.shape), np.zeros(d)
        for at in r:
            n, n_bar = x[at] * r[at], bar[at] * weight
            weight_bar += bar[at] * n
            x_bar[at] = r[at] * (n_bar - n * sum(n_bar * n) / d)
        return {"x": x_bar, "weight": weight_bar}

    return y, back


def single_rms_norm(x: Array, weight: Array, eps: float = 1e-6) -> Array:
    """The same with x and its quotient rounded to float32, as published."""
    y = np.zeros(x.shape)
    for at in places(x):
        row = x[at].astype(np.float32)
        mean = np.float32(np.mean(row * row, dtype=np.float32))
        y[at] = weight * (row / np.sqrt(mean + np.float32(eps)))
    return y


def sigmoid(a: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-a))


def swiglu(x: Array, W1: Array, W2: Array, W3: Array) -> Result:
    """W3 (silu(W1 x) * (W2 x)); gradients x, w1, w2, w3."""
    a, a_back = linear(x, W1)
    b, b_back = linear(x, W2)
    s = sigmoid(a)
    y, y_back = linear(a * s * b, W3)

    def back(bar: Array) -> Tensors:
        outside = y_back(bar)
        of_a = a_back(outside["x"] * b * (s + a * s * (1.0 - s)))
        of_b = b_back(outside["x"] * a * s)
        return {
            "x": of_a["x"] + of_b["x"],
            "w1": of_a["W"],
            "w2": of_b["W"],
            "w3": outside["W"],
        }

    return y, back


def causal_convolution(x: Array, weight: Array, bias: Array) -> Result:
    """y[t, c] = bias_c + sum_j weight[c, 0, K - 1 - j] x[t - j, c]; gradients x, weight, bias."""
    (B, T, _), K = x.shape, weight.shape[2]
    every = [(b, t, j) for b in range(B) for t in range(T) for j in range(K) if t >= j]
    y = np.zeros(x.shape) + bias
    for b, t, j in every:
        y[b, t] += weight[:, 0, K - 1 - j] * x[b, t - j]

    def back(bar: Array) -> Tensors:
        x_bar, weight_bar = np.zeros(x.shape), np.zeros(weight.shape)
        for b, t, j in every:
            x_bar[b, t - j] += weight[:, 0, K - 1 - j] * bar[b, t]
            weight_bar[:, 0, K - 1 - j] += bar[b, t] * x[b, t - j]
        return {"x": x_bar, "weight": weight_bar, "bias": sum(sum(bar))}

    return y, back


def split(x: Array, heads: int) -> Array:
    """(B, T, d) as (B, H, T, d / H): head h is the h-th run of columns."""
    B, T, d = x.shape
    return np.array(
        [
            [
                [x[b, t, h * d // heads : (h + 1) * d // heads] for t in range(T)]
                for h in range(heads)
            ]
            for b in range(B)
        ]
    )


def merge(x: Array) -> Array:
    """(B, H, T, d / H) as (B, T, d)."""
    B, _, T, _ = x.shape
    return np.array([[np.concatenate(list(x[b, :, t])) for t in range(T)] for b in range(B)])


def qkv(x: Array, p: Tensors, heads: int) -> Result:
    """q, k, v by heads, q and k normed; gradients x, w_q, w_k, w_v, q_norm, k_norm."""
    rows, backs = [], []
    for name in "qkv":
        y, back = linear(x, p[f"w_{name}.weight"])
        y, norm_back = split(y, heads), None
        if name != "v":
            y, norm_back = rms_norm(y, p[f"{name}_norm.weight"])
        rows.append(y)
        backs.append((name, back, norm_back))

    def back(bars: Any) -> Tensors:
        total: Tensors = {}
        for (name, linear_back, norm_back), bar in zip(backs, bars, strict=True):
            if norm_back is not None:
                of_norm = norm_back(bar)
                total[f"{name}_norm.weight"], bar = of_norm["weight"], of_norm["x"]
            g = linear_back(merge(bar))
            total = add(total, {"x": g["x"], f"w_{name}.weight": g["W"]})
        return total

    return rows, back


def rotary(x: Array, first: int = 0, base: float = 10000.0, turn: int = 1) -> Array:
    """Of heads (B, H, T, d), the halves of d as pairs; turn -1 is the transpose."""
    (B, H, T, d), y = x.shape, np.array(x)
    for b, h, t, i in np.ndindex(B, H, T, d // 2):
        angle = turn * (first + t) * base ** (-2.0 * i / d)
        one, two = x[b, h, t, i], x[b, h, t, i + d // 2]
        y[b, h, t, i] = one * math.cos(angle) - two * math.sin(angle)
        y[b, h, t, i + d // 2] = one * math.sin(angle) + two * math.cos(angle)
    return y


def attention(q: Array, k: Array, v: Array, window: int, mask: Any = None) -> Result:
    """Of heads (B, H, T, d): softmax of the last window keys that the mask (B, T) lets pass."""
    (B, H, T, d), y = q.shape, np.zeros(q.shape)
    kept = {}
    for b, h, t in np.ndindex(B, H, T):
        seen = [j for j in range(max(0, t - window + 1), t + 1) if mask is None or mask[b, j]]
        s = np.array([sum(q[b, h, t] * k[b, h, j]) for j in seen]) / math.sqrt(d)
        e = np.exp(s - max(s))
        kept[b, h, t] = list(zip(seen, e / sum(e), strict=True))
        y[b, h, t] = sum(p * v[b, h, j] for j, p in kept[b, h, t])

    def back(bar: Array) -> Tensors:
        q_bar, k_bar, v_bar = np.zeros(q.shape), np.zeros(q.shape), np.zeros(q.shape)
        for (b, h, t), pairs in kept.items():
            along = sum(bar[b, h, t] * y[b, h, t])
            for j, p in pairs:
                v_bar[b, h, j] += p * bar[b, h, t]
                s_bar = p * (sum(bar[b, h, t] * v[b, h, j]) - along) / math.sqrt(d)
                q_bar[b, h, t] += s_bar * k[b, h, j]
                k_bar[b, h, j] += s_bar * q[b, h, t]
        return {"q": q_bar, "k": k_bar, "v": v_bar}

    return y, back


def gamma_gate(h: Array, W1: Array, W2: Array) -> Result:
    """sigmoid(W2 silu(W1 h)) (B, T, 1); gradients x, gate.0.weight, gate.2.weight."""
    a, a_back = linear(h, W1)
    s = sigmoid(a)
    z, z_back = linear(a * s, W2)
    y = sigmoid(z)

    def back(bar: Array) -> Tensors:
        outside = z_back(bar * y * (1.0 - y))
        inside = a_back(outside["x"] * (s + a * s * (1.0 - s)))
        return {
            "x": inside["x"],
            "gate.0.weight": inside["W"],
            "gate.2.weight": outside["W"],
        }

    return y, back


def projection(
    q: Array, k: Array, gate: Any, P: Array, n0: float, window: int, powers: Any
) -> Result:
    """Queries (B, T, d) projected by the keys before them; gradients q, k, gate.

        (P q_t + sum_j w_j k_j (k_j . q_t)) / (n0 + sum_j w_j |k_j|^2 + 1e-6),
        w_j = powers[t - 1 - j] gate_j of t - window <= j < t.

    Args:
        gate: (B, T), or None for ones.
        powers: of the decay, by lag.
    """
    (B, T, _), y, below = q.shape, np.zeros(q.shape), np.zeros(q.shape[:2])
    gate = np.ones((B, T)) if gate is None else gate
    for b, t in np.ndindex(B, T):
        above, under = P @ q[b, t], n0 + 1e-6
        for j in range(max(0, t - window), t):
            w = powers[t - 1 - j] * gate[b, j]
            above = above + w * k[b, j] * sum(k[b, j] * q[b, t])
            under = under + w * sum(k[b, j] ** 2)
        y[b, t], below[b, t] = above / under, under

    def back(bar: Array) -> Tensors:
        q_bar, k_bar, gate_bar = np.zeros(q.shape), np.zeros(q.shape), np.zeros((B, T))
        for b, t in np.ndindex(B, T):
            up = bar[b, t] / below[b, t]
            down = -sum(bar[b, t] * y[b, t]) / below[b, t]
            q_bar[b, t] += P.T @ up
            for j in range(max(0, t - window), t):
                w, key = powers[t - 1 - j] * gate[b, j], k[b, j]
                along, over = sum(key * q[b, t]), sum(key * up)
                q_bar[b, t] += w * key * over
                k_bar[b, j] += w * (up * along + q[b, t] * over + 2.0 * down * key)
                gate_bar[b, j] += powers[t - 1 - j] * (along * over + down * sum(key**2))
        return {"q": q_bar, "k": k_bar, "gate": gate_bar}

    return y, back
