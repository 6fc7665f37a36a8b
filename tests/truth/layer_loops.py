"""Parts of layers by plain loops over numbers: norms, rotary positions, convolution, feed-forward,
attention, and a memory layer around them.

Every function takes float64 or complex128, never conjugates, and compares real parts only, so that
a complex step passes through. Nothing here is shared with the package under test.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

Array = np.ndarray


def norm(
    x: Array, kind: str, eps: float, guard: str, weight: Any = None, bias: Any = None
) -> Array:
    """One row."""
    n = len(x)
    if kind == "none":
        return np.array(x)
    if kind == "layer":
        mean = sum(x) / n
        x = np.array([each - mean for each in x])
    square = sum(each * each for each in x)
    square = square if kind == "l2" else square / n
    if guard == "add":
        divisor = cmath.sqrt(square + eps)
    else:
        divisor = cmath.sqrt(square)
        divisor = eps if divisor.real < eps else divisor
    y = [each / divisor for each in x]
    y = y if weight is None else [a * b for a, b in zip(y, weight, strict=True)]
    y = y if bias is None else [a + b for a, b in zip(y, bias, strict=True)]
    return fitting(y, x, weight, bias)


def norms(x: Array, *settings: Any) -> Array:
    """Rows of x (..., d)."""
    rows = [norm(row, *settings) for row in x.reshape(-1, x.shape[-1])]
    return np.array(rows).reshape(x.shape)


def fitting(y: Any, *inputs: Any) -> Array:
    """Results as complex numbers where an input is complex, else as real ones."""
    y = np.array(y)
    return y if any(np.iscomplexobj(each) for each in inputs) else np.real(y)


def rotary(row: Array, position: int, frequencies: Any, pairs: str) -> Array:
    """One query or key."""
    d, out = len(row), np.array(row)
    for i, frequency in enumerate(frequencies):
        a, b = (2 * i, 2 * i + 1) if pairs == "interleaved" else (i, i + d // 2)
        angle = position * frequency
        out[a] = row[a] * math.cos(angle) - row[b] * math.sin(angle)
        out[b] = row[b] * math.cos(angle) + row[a] * math.sin(angle)
    return out


def positions(tokens: int, first: int, reset: Any = None) -> list[int]:
    """Of each token, from `first` on and from 0 at each document."""
    result = []
    for t in range(tokens):
        first = 0 if reset is not None and reset[t] else first
        result.append(first)
        first += 1
    return result


def documents(tokens: int, earlier: int, reset: Any) -> dict[int, int]:
    """The document of each row, rows before the call at -earlier .. -1."""
    of = dict.fromkeys(range(-earlier, 0), 0)
    document = 0
    for t in range(tokens):
        document += int(reset is not None and reset[t])
        of[t] = document
    return of


def silu(x: Any) -> Any:
    return x / (1.0 + np.exp(-x))


def gelu(x: Any) -> Any:
    return x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))) / 2.0


def convolution(
    x: Array, weight: Array, padding: str, activation: str, tail: Any = None, reset: Any = None
) -> Array:
    """Of x (B, T, D) with filters (D, K); the tail (B, n, D) comes before."""
    (B, T, D), K = x.shape, weight.shape[1]
    rows = 0 if tail is None else tail.shape[1]
    of = documents(T, rows, reset)
    y = np.zeros((B, T, D), np.result_type(x, weight))
    for b in range(B):
        for t in range(T):
            for channel in range(D):
                for j in range(K):
                    s = t + j - (K - 1 if padding == "causal" else K // 2)
                    if s in of and of[s] == of[t]:
                        here = x[b, s, channel] if s >= 0 else tail[b, rows + s, channel]
                        y[b, t, channel] += weight[channel, j] * here
    return silu(y) if activation == "silu" else y


def feed_forward(x: Array, p: dict[str, Any], gate_half: str, activation: str, eps: float) -> Array:
    """Of rows x (..., D)."""
    n, rows = p["W_out"].shape[1], []
    for row in x.reshape(-1, x.shape[-1]):
        normed = norm(row, "rms", eps, "add", p["weight"])
        h = [sum(p["W_in"][i] * normed) + p["b_in"][i] for i in range(2 * n)]
        value, gate = (h[:n], h[n:]) if gate_half == "second" else (h[n:], h[:n])
        act = silu if activation == "silu" else gelu
        z = np.array([a * act(b) for a, b in zip(value, gate, strict=True)])
        rows.append([sum(p["W_out"][i] * z) + p["b_out"][i] for i in range(x.shape[-1])])
    return np.array(rows).reshape(x.shape)


def softmax(scores: list[Any]) -> list[Any]:
    top = max(np.real(each) for each in scores)
    e = [np.exp(each - top) for each in scores]
    return [each / sum(e) for each in e]


def attention(
    x: Array,
    p: dict[str, Any],
    *,
    window: int,
    counts_self: bool = True,
    mode: str = "causal",
    persistent_visible: str = "always",
    eps: float,
    frequencies: Any,
    pairs: str,
    first: int = 0,
    earlier: Any = None,
    reset: Any = None,
) -> tuple[Array, Array, Array]:
    """Of x (B, T, D): the result, and all keys and values (B, H, n + T, d), those of `earlier` first.

    Args:
        p: weight (D,), W_qkv (3, H, d, D), W_out (D, H, d), persistent (H, P, d); q_norm, k_norm.
        first: position of the first token.
        earlier: keys and values (B, H, n, d) of tokens before the call.
    """
    B, T, D = x.shape
    _, H, d, _ = p["W_qkv"].shape
    n = 0 if earlier is None else earlier[0].shape[2]
    at, of = positions(T, first, reset), documents(T, n, reset)
    kind = np.result_type(x, p["W_qkv"], p["persistent"], *(() if earlier is None else earlier))
    keys, values = np.zeros((2, B, H, n + T, d), kind)
    y = np.zeros((B, T, D), kind)
    for b in range(B):
        normed = [norm(row, "rms", eps, "add", p["weight"]) for row in x[b]]
        for h in range(H):
            q = []
            if n:
                keys[b, h, :n], values[b, h, :n] = earlier[0][b, h], earlier[1][b, h]
            for t in range(T):
                rows = [p["W_qkv"][i, h] @ normed[t] for i in range(3)]
                for i, which in enumerate(("q_norm", "k_norm")):
                    if p[which] is not None:
                        rows[i] = norm(rows[i], "rms", 1e-8, "clamp", p[which].weight[h])
                q.append(rotary(rows[0], at[t], frequencies, pairs))
                keys[b, h, n + t] = rotary(rows[1], at[t], frequencies, pairs)
                values[b, h, n + t] = rows[2]
            for t in range(T):
                extra = [(row, row) for row in p["persistent"][h]]
                if mode == "causal":
                    low = t - window + (1 if counts_self else 0)
                    seen = [s for s in range(max(low, -n), t + 1) if of[s] == of[t]]
                    pairs_seen = extra + [(keys[b, h, n + s], values[b, h, n + s]) for s in seen]
                else:
                    every = range(max(0, n + T - window), n + T)
                    held = [(keys[b, h, s], values[b, h, s]) for s in every]
                    last = t + len(held) - T
                    pairs_seen = held[: last + 1] if last >= 0 else []
                    of_all = (extra + held)[: max(0, last + len(extra) + 1)]
                    pairs_seen = extra + pairs_seen if persistent_visible == "always" else of_all
                    if not pairs_seen:  # the mean of all values
                        both = extra + held
                        pairs_seen = [(0.0 * key, value) for key, value in both]
                weights = softmax([sum(q[t] * key) / math.sqrt(d) for key, _ in pairs_seen])
                read = sum(w * value for w, (_, value) in zip(weights, pairs_seen, strict=True))
                y[b, t] += p["W_out"][:, h] @ read
    return y, keys, values


def memory(convolved: Any, normed_heads: Any, p: dict[str, Any], S: Any, Z: Any, ops: Any) -> Any:
    """A memory layer of public code with window 1, momentum and the error against the call's start.

    Args:
        convolved: three inputs (B, T, D) of the projections to q, k, v, and the normed x.
        normed_heads: maps q or k (B, H, T, d) and its name to what the memory takes.
        ops: functions of arrays or of tape variables.

    Returns:
        y (B, T, D), S, Z (B, H, d, d).
    """
    of_q, of_k, of_v, n = convolved
    (B, T), (H, d) = n.shape[:2], S.shape[1:3]
    q, k, v = (
        ops.moveaxis(ops.reshape(x @ ops.transpose(p[f"to_{name}.weight"]), (B, T, H, d)), 2, 1)
        for name, x in (("q", of_q), ("k", of_k), ("v", of_v))
    )
    q, k = normed_heads(q, "q"), normed_heads(k, "k")

    def gate(name: str) -> Any:
        z = n @ ops.transpose(p[f"to_{name}.0.weight"]) + p[f"to_{name}.0.bias"]
        return ops.expand_dims(ops.expand_dims(ops.swapaxes(ops.sigmoid(z), 1, 2), -1), -1)

    rate, retain, momentum = gate("lr"), gate("decay"), gate("momentum")  # (B, H, T, 1, 1)
    start, reads = S, []
    for t in range(T):
        reads.append(ops.squeeze(S @ ops.expand_dims(q[:, :, t], -1), -1))
        error = ops.squeeze(start @ ops.expand_dims(k[:, :, t], -1), -1) - v[:, :, t]
        Z = momentum[:, :, t] * Z + ops.outer(error, k[:, :, t])
        S = retain[:, :, t] * S - rate[:, :, t] * Z
    merged = ops.reshape(ops.stack(reads, axis=1), (B, T, H * d))
    return merged @ ops.transpose(p["to_out.weight"]), S, Z
