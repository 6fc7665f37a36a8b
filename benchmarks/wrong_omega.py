"""Omega kernels in plain NumPy, each with a mistake, whose verdicts `benchmarks.diagnosis` times."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]

MUON = (3.4445, -4.7750, 2.0315)


def omega(header: Mapping[str, Any], inputs: Arrays, mistake: str = "") -> dict[str, Any]:
    """Omega as preset `spec` has it, in float32, but for one mistake; "" for none."""
    k, v, q = (np.asarray(inputs[name], np.float32) for name in "kvq")
    retain, momentum, rate = (
        np.asarray(inputs[name], np.float32)[..., None, None]
        for name in ("retain", "momentum", "step_size")
    )
    M, S = (np.asarray(inputs[name], np.float32) for name in ("M0", "S0"))
    weights = np.asarray(inputs["window_weights"], np.float32)  # (..., T, c), by lag
    reads, c = [], header["window"]
    for t in range(k.shape[-2]):
        held = slice(max(0, t + 1 - c), t + 1)
        keys, values = k[..., held, :], v[..., held, :]
        residual = keys @ M.swapaxes(-1, -2) - values
        weight = weights[..., t, : keys.shape[-2]][..., ::-1, None]
        weight = np.ones_like(weight) if "sum" in mistake else weight
        gradient = (weight * residual).swapaxes(-1, -2) @ keys
        at = (..., t, slice(None), slice(None))
        S = momentum[at] * S + rate[at] * gradient
        U = orthogonalised(S, (3.0, -4.0, 2.0) if "coefficients" in mistake else MUON)
        step = rate[at] * U
        M = retain[at] * (M - step) if "decay" in mistake else retain[at] * M - step
        reads.append((M @ q[..., t, :, None])[..., 0])
    return {"y": np.stack(reads, axis=-2), "M": M, "S": S}


def orthogonalised(S: Any, coefficients: tuple[float, float, float]) -> Any:
    """Five steps of Newton-Schulz."""
    a, b, c = coefficients
    X = S / (np.linalg.norm(S, axis=(-2, -1), keepdims=True) + np.float32(1e-7))
    for _ in range(5):
        A = X @ X.swapaxes(-1, -2)
        X = a * X + (b * A + c * (A @ A)) @ X
    return X


#: Mistakes, by the names of the functions that make them.
MISTAKES = {
    "late_decay": "decay after the write",
    "plain_sum": "a plain sum over the window",
    "coefficients": "other coefficients of Newton-Schulz",
}

right = omega
late_decay, plain_sum, coefficients = (partial(omega, mistake=each) for each in MISTAKES.values())
