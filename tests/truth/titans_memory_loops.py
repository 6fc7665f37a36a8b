"""The neural memory of titans-pytorch, token by token and head by head, as plain loops.

Projections, gates of a token and of a chunk, an MLP as the memory, one write a chunk. Parameters by
the names of the public code, matrices (in, out) inside the memory. Float64 or complex128, never a
conjugate, comparisons of real parts only, so that a complex step passes through. Nothing here is
shared with the package under test.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
Tensors = dict[str, Any]
EPS = float(np.finfo(np.float64).eps)


class Settings(NamedTuple):
    """Of the layer.

    Attributes:
        names: of the memory's tensors, in the order of memory_model_parameters.
        chunk: tokens of a write.
        batch: tokens after which gradients are taken at the memory of then; None for those at the
            initial one for ever.
        order: of momentum, 0 for none.
        newton_schulz: whether matrices of the update go through five steps of it.
        clip: of the soft clamp of each gradient's norm, or None.
    """

    names: tuple[str, ...]
    heads: int = 1
    chunk: int = 1
    batch: int | None = None
    max_lr: float = 1.0
    order: int = 1
    newton_schulz: bool = False
    clip: float | None = None


class State(NamedTuple):
    """Of one sequence; tensors are lists over heads of dicts.

    Attributes:
        at: tokens so far.
        ref: memories where gradients are taken.
        W: memories.
        S: of each order, momenta.
        waiting: normed tokens of the unfinished chunk.
    """

    at: int
    ref: list[Tensors]
    W: list[Tensors]
    S: list[list[Tensors]]
    waiting: list[Array]


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def erf(x: Array) -> Array:
    """Of x + i h for an h so small that h^2 is 0 beside 1."""
    real = np.array([math.erf(each) for each in np.real(x)])
    if not np.iscomplexobj(x):
        return real
    return real + 1j * np.imag(x) * 2.0 / math.sqrt(math.pi) * np.exp(-(np.real(x) ** 2))


def rms(x: Array, weight: Array) -> Array:
    return x / np.sqrt(sum(x * x) / len(x) + EPS) * weight


def matrices(W: Tensors) -> list[str]:
    return sorted(name for name in W if "weights." in name)


def value(W: Tensors, x: Array) -> Array:
    """The memory's result for one key or query (d,)."""
    return _layers(W, x)[0]


def _layers(W: Tensors, x: Array) -> tuple[Array, list[Array], list[Array], Any]:
    """The result, the input of each matrix, slopes of activations, and normed row and its scale."""
    inputs, slopes, h = [], [], x
    for name in matrices(W):
        if inputs:
            half = (1.0 + erf(h / math.sqrt(2.0))) / 2.0
            slopes.append(half + h * np.exp(-h * h / 2.0) / math.sqrt(2.0 * math.pi))
            h = h * half
        inputs.append(h)
        h = np.array([sum(h * W[name][:, o]) for o in range(W[name].shape[1])])
    if "norm.gamma" not in W:
        return h, inputs, slopes, None
    d = len(h)
    away = h - sum(h) / d
    scale = 1.0 / np.sqrt(sum(away * away) / d + 1e-5)
    n = away * scale
    return n * (W["norm.gamma"] + 1.0) + x, inputs, slopes, (n, scale)


def gradient(W: Tensors, x: Array, bar: Array) -> Tensors:
    """Of bar . value(W, x) by W."""
    _, inputs, slopes, normed = _layers(W, x)
    g: Tensors = {}
    if normed is not None:
        n, scale = normed
        g["norm.gamma"] = bar * n
        bar = bar * (W["norm.gamma"] + 1.0)
        bar = scale * (bar - sum(bar) / len(n) - n * sum(bar * n) / len(n))
    for i, name in reversed(list(enumerate(matrices(W)))):
        g[name] = np.array([[a * b for b in bar] for a in inputs[i]])
        bar = np.array([sum(row * bar) for row in W[name]])
        bar = bar * slopes[i - 1] if i else bar
    return g


def loss_gradient(W: Tensors, k: Array, v: Array, lr: Array, clip: float | None) -> Tensors:
    """Of sum_i lr_i mean_o (M(k_i) - v_i)_o^2, each tensor's norm softly clamped."""
    total = {name: 0.0 * a for name, a in W.items()}
    for key, want, rate in zip(k, v, lr, strict=True):
        bar = 2.0 * rate * (value(W, key) - want) / len(want)
        g = gradient(W, key, bar)
        total = {name: a + g[name] for name, a in total.items()}
    if clip is None:
        return total
    for name, g in total.items():
        size = np.sqrt(np.sum(g * g))
        total[name] = g * ((np.tanh(size / (clip / 2.0)) * (clip / 2.0) + clip / 2.0) / size)
    return total


def newton_schulz(S: Array) -> Array:
    """Five steps, transposed where there are more rows than columns."""
    tall = S.shape[0] > S.shape[1]
    X, size = (S.T if tall else S), np.sqrt(np.sum(S * S))
    X = X / (1e-7 if np.real(size) < 1e-7 else size)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.T if tall else X


def start(p: Tensors, s: Settings) -> State:
    W = [
        {name: p[f"memory_model_parameters.{i}"][h] for i, name in enumerate(s.names)}
        for h in range(s.heads)
    ]
    zero = [{name: np.zeros(a.shape) for name, a in each.items()} for each in W]
    return State(0, W, W, [zero] * s.order, [])


def gate(p: Tensors, name: str, row: Array) -> Array:
    """Numbers of a linear map with a bias."""
    weight, bias = p[f"{name}.0.weight"], p[f"{name}.0.bias"]
    return np.array([sum(w * row) + b for w, b in zip(weight, bias, strict=True)])


def projected(W: Array, row: Array, heads: int) -> Array:
    return np.array([sum(w * row) for w in W]).reshape(heads, -1)


def write(p: Tensors, s: Settings, state: State) -> State:
    """The state after a chunk's write."""
    rows = state.waiting
    pooled = sum(rows) / len(rows)
    decay = sigmoid(gate(p, "to_decay_factor", pooled))
    keep = sigmoid(gate(p, "to_momentum", pooled)).reshape(s.heads, -1) if s.order else None
    lr = [s.max_lr * sigmoid(gate(p, "to_adaptive_step", row)) for row in rows]
    k, v = ([projected(p[f"to_{n}.weight"], r, s.heads) for r in rows] for n in ("keys", "values"))
    W, S = [], [list(each) for each in state.S]
    for h in range(s.heads):
        g = loss_gradient(
            state.ref[h],
            np.array([each[h] for each in k]),
            np.array([each[h] for each in v]),
            np.array([each[h] for each in lr]),
            s.clip,
        )
        update = {name: -a for name, a in g.items()}
        for o in range(s.order):
            before = S[o][h]
            update = {n: keep[h, o] * before[n] + a for n, a in update.items()}
            S[o][h] = update
        new = {}
        for name, a in update.items():
            u = newton_schulz(a) if s.newton_schulz and a.ndim == 2 else a
            new[name] = (1.0 - decay[h]) * state.W[h][name] + u
        W.append(new)
    refreshed = s.batch is not None and state.at % s.batch == 0
    return state._replace(ref=W if refreshed else state.ref, W=W, S=S, waiting=[])


def call(x: Array, p: Tensors, s: Settings, state: State) -> tuple[Array, State, list[Any]]:
    """Results y (T, dim) of tokens x, the state after them, and the memories from first to last."""
    y, memories = [], [state.W]
    for row in x:
        stored = rms(row, p["store_norm.weight"])
        state = state._replace(at=state.at + 1, waiting=[*state.waiting, stored])
        if len(state.waiting) == s.chunk:
            state = write(p, s, state)
            memories.append(state.W)
        r = rms(row, p["retrieve_norm.weight"])
        q = projected(p["to_queries.weight"], r, s.heads)
        heads = [value(state.W[h], q[h]) for h in range(s.heads)]
        if s.heads == 1:
            y.append(heads[0])
            continue
        open_ = [sigmoid(sum(w * r)) for w in p["retrieve_gate.0.weight"]]
        merged = np.concatenate([a * b for a, b in zip(heads, open_, strict=True)])
        y.append(p["combine_heads.weight"] @ merged)
    return np.array(y), state, memories
