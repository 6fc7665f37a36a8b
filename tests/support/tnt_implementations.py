"""Implementations of a TNT that a user might hand over: delta without gates, one local memory."""

from __future__ import annotations

from typing import Any

import numpy as np

#: The cases that they compute.
REQUEST: dict[str, Any] = {
    "tokens": 11,
    "d_in": 3,
    "d_out": 2,
    "convention": {"gate": "none"},
    "parameters": {"rule": "delta", "global": {"span": 4}, "locals": [{"span": 2, "shard": 4}]},
}


def right(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Eqs 5 to 7, token by token."""
    return _run(case, inputs, resets=True)


def never_reset(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A local memory that shards do not reset."""
    return _run(case, inputs, resets=False)


def _run(case: dict[str, Any], inputs: dict[str, Any], *, resets: bool) -> dict[str, Any]:
    own = case["parameters"]
    span, (local,) = own["global"]["span"], own["locals"]
    k, v, q, step = (np.asarray(inputs[n]) for n in ("k", "v", "q", "step_size"))
    rows, T = v.shape[:2]
    first = np.broadcast_to(inputs["local0/M0"], (rows, v.shape[-1], k.shape[-1]))
    V, W = np.asarray(inputs["global/M0"]), first
    y = np.empty_like(v)
    for t in range(T):
        in_shard = t % local["shard"]
        if t % span == 0:
            V_ref = V
        if in_shard == 0 and (resets or t == 0):
            W = first
        if in_shard % local["span"] == 0:
            W_ref, P = W, np.zeros((rows, k.shape[-1], k.shape[-1]), k.dtype)
        key = k[:, t, None, :]

        def gradient(M: Any, key: Any = key, t: int = t) -> Any:
            error = M @ key.swapaxes(-1, -2) - v[:, t, :, None]
            return step[:, t, None, None] * error * key

        V, W = V - gradient(V_ref), W - gradient(W_ref)
        P = P + key.swapaxes(-1, -2) * key / np.sum(key * key, axis=-1, keepdims=True)
        query = q[:, t, :, None]
        y[:, t] = (V_ref @ query + W @ (P @ query))[..., 0]
    return {"out/y": y, "out/state/global/M": V, "out/state/local0/M": W}
