"""Implementations of a deep memory that a user might hand over: two matrices with silu between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

#: The cases that they compute.
REQUEST: dict[str, Any] = {
    "tokens": 9,
    "d_in": 3,
    "d_out": 2,
    "convention": {"newton_schulz": "none"},
    "parameters": {
        "memory": {"kind": "mlp", "activation": "silu", "expansion": 2.0},
        "chunk": 2,
        "window": 3,
    },
}


def right(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Chunks of two tokens, each written at its end."""
    return _run(case, inputs, lambda t, C: t)


def gates_of_the_first_token(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A write with the gates of the token that begins its chunk."""
    return _run(case, inputs, lambda t, C: t - C + 1)


def _silu(a: Any) -> tuple[Any, Any]:
    s = 1.0 / (1.0 + np.exp(-a))
    return a * s, s + a * s * (1.0 - s)


def _run(
    case: dict[str, Any], inputs: dict[str, Any], token_of: Callable[[int, int], int]
) -> dict[str, Any]:
    own = case["parameters"]
    if own["memory"].get("activation") != "silu" or "span" in own:
        raise NotImplementedError("another memory")
    if "momentum" not in inputs or inputs["k"].ndim != 3:
        raise NotImplementedError("no momentum, or no axis of rows")
    C = own.get("chunk", 1)
    c = own.get("window", C)
    kind = inputs["k"].dtype
    narrow = kind.name not in ("float32", "float64")
    x = {name: a.astype(np.float32) if narrow else a for name, a in inputs.items()}
    rows, T = x["k"].shape[:2]
    y = np.zeros_like(x["v"])
    after: dict[str, list[Any]] = {"W_1": [], "W_2": []}
    for b in range(rows):
        W1, W2 = x["memory/W_1"].copy(), x["memory/W_2"].copy()
        S1, S2 = 0 * W1, 0 * W2
        for t in range(T):
            if (t + 1) % C == 0:
                of, g1, g2 = token_of(t, C), 0 * W1, 0 * W2
                for i in range(max(0, t - c + 1), t + 1):
                    a = W1 @ x["k"][b, i]
                    s, slope = _silu(a)
                    e = 2 * (W2 @ s - x["v"][b, i])
                    g1 += np.outer((W2.T @ e) * slope, x["k"][b, i])
                    g2 += np.outer(e, s)
                m, r, h = (x[name][b, of] for name in ("momentum", "retain", "step_size"))
                S1, S2 = m * S1 + g1, m * S2 + g2
                W1, W2 = r * W1 - h * S1, r * W2 - h * S2
            y[b, t] = W2 @ _silu(W1 @ x["q"][b, t])[0]
        after["W_1"].append(W1)
        after["W_2"].append(W2)
    states = {f"state/weights/{name}": np.stack(each) for name, each in after.items()}
    return {"y": y.astype(kind), **states}
