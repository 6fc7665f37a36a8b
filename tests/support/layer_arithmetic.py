"""Layers of public code by plain products in a stated arithmetic, forwards and backwards.

Written from the description of that code and not from the layers; angles in the precision of the
tokens, as the code has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, differentiable
from atlas_ref.oracle.family.arithmetic import Arithmetic
from tape import ops, plain, vjp

Tensors = Mapping[str, Any]


def results(case: Case, way: Arithmetic, dtype: str) -> dict[str, Any]:
    """Results and gradients of a case, by their names in the file."""
    inputs = {name: value.astype(dtype) for name, value in case.inputs.items()}
    eps = dtype_eps(dtype)

    def forward(variables: Tensors) -> dict[str, Any]:
        return LAYERS[case.header.layer](way, {**inputs, **variables}, case.header.parameters, eps)

    out, pullback = vjp(forward, {name: inputs[name] for name in differentiable(case)})
    seeds = {name: np.zeros_like(value) for name, value in out.items()}
    (gradients,) = pullback({**seeds, "out/y": inputs["in/y_bar"]})
    return {**out} | {"grad/" + name.removeprefix("in/"): g for name, g in gradients.items()}


def dtype_eps(dtype: str) -> Any:
    return np.finfo(dtype).eps


def _column(way: Arithmetic, x: Any) -> Any:
    """Sums over the last axis, which stays."""
    return way.matmul(x, ops.ones_like(x, shape=(x.shape[-1], 1)))


def _rms(way: Arithmetic, x: Any, weight: Any, eps: Any) -> Any:
    return x / ops.sqrt(_column(way, x * x) / x.shape[-1] + eps) * weight


def _rms_norm(way: Arithmetic, inputs: Tensors, settings: Any, eps: Any) -> dict[str, Any]:
    eps = eps if isinstance(settings["eps"], str) else settings["eps"]
    return {"out/y": _rms(way, inputs["in/x"], inputs["in/param/weight"], eps)}


def _heads(way: Arithmetic, inputs: Tensors, settings: Any, eps: Any) -> dict[str, Any]:
    x = inputs["in/x"]
    root = ops.sqrt(_column(way, x * x)) / math.sqrt(x.shape[-1])
    divisor = ops.where(plain(root) < 1e-8, ops.zeros_like(root) + 1e-8, root)
    return {"out/y": x / divisor * inputs["in/param/gamma"]}


def _feed_forward(way: Arithmetic, inputs: Tensors, settings: Any, eps: Any) -> dict[str, Any]:
    p = {name.removeprefix("in/param/"): value for name, value in inputs.items()}
    n = _rms(way, inputs["in/x"], p["0.weight"], eps)
    h = way.matmul(n, ops.transpose(p["1.weight"])) + p["1.bias"]
    half = h.shape[-1] // 2
    gate = h[..., half:] / (1.0 + ops.exp(-h[..., half:]))
    return {"out/y": way.matmul(gate * h[..., :half], ops.transpose(p["3.weight"])) + p["3.bias"]}


def _attention(way: Arithmetic, inputs: Tensors, settings: Any, eps: Any) -> dict[str, Any]:
    p = {name.removeprefix("in/param/"): value for name, value in inputs.items()}
    x, H, d, W = (
        inputs["in/x"],
        settings["heads"],
        settings["dim_head"],
        settings["window_size"],
    )
    B, T, _ = x.shape
    n = _rms(way, x, p["norm.weight"], eps)
    qkv = way.matmul(n, ops.transpose(p["to_qkv.weight"]))
    q, k, v = (
        ops.swapaxes(ops.reshape(qkv[..., i * H * d : (i + 1) * H * d], (B, T, H, d)), 1, 2)
        for i in range(3)
    )
    rows = p.get("persist_mem")
    P = 0 if rows is None else rows.shape[1]

    def back(reads: Any) -> Any:
        merged = ops.reshape(ops.swapaxes(reads, 1, 2), (B, reads.shape[2], H * d))
        return way.matmul(merged, ops.transpose(p["to_out.weight"]))

    keys, values, ys, first = k[..., :0, :], v[..., :0, :], [], 0
    for tokens in settings["calls"]:
        here = slice(first, first + tokens)
        keys = ops.concatenate([keys, _turned(k[..., here, :], p)], axis=-2)[..., -W:, :]
        values = ops.concatenate([values, v[..., here, :]], axis=-2)[..., -W:, :]
        J = P + keys.shape[-2]
        seen = np.arange(J) <= np.arange(tokens)[:, None] + J - tokens
        ys.append(back(_reads(way, _turned(q[..., here, :], p), keys, values, rows, seen)))
        first += tokens
    t, s = np.arange(T)[:, None], np.arange(T)
    band = np.concatenate([np.ones((T, P), bool), (t - W < s) & (s <= t)], axis=1)
    prefix = back(_reads(way, _turned(q, p), _turned(k, p), v, rows, band))
    return {
        "out/y": ops.concatenate(ys, axis=1),
        "out/y_prefix": prefix,
        "out/cache/k": keys,
        "out/cache/v": values,
    }


def _turned(x: Any, p: Tensors) -> Any:
    freqs = p["rotary_emb.freqs"]
    angles = np.arange(x.shape[-2], dtype=freqs.dtype)[:, None] * freqs
    cos, sin, a, b = np.cos(angles), np.sin(angles), x[..., 0::2], x[..., 1::2]
    return ops.reshape(ops.stack([a * cos - b * sin, b * cos + a * sin], axis=-1), x.shape)


def _reads(way: Arithmetic, q: Any, keys: Any, values: Any, rows: Any, seen: Any) -> Any:
    if rows is not None:
        wide = rows + ops.zeros_like(keys, shape=(q.shape[0], *rows.shape))
        keys, values = (ops.concatenate([wide, each], axis=-2) for each in (keys, values))
    scores = way.matmul(q, ops.swapaxes(keys, -1, -2)) / math.sqrt(q.shape[-1])
    empty = ~seen.any(axis=1, keepdims=True)
    scores = ops.where(empty, ops.zeros_like(scores), scores)
    seen = seen | empty
    top = np.max(np.where(seen, plain(scores), -np.inf), axis=-1, keepdims=True)
    e = ops.where(seen, ops.exp(ops.where(seen, scores - top, 0.0)), 0.0)
    return way.matmul(e / _column(way, e), values)


LAYERS = {
    "rms_norm": _rms_norm,
    "multihead_rms_norm": _heads,
    "feed_forward": _feed_forward,
    "sliding_window_attention": _attention,
}
