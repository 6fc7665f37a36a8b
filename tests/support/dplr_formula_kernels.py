"""Kernels of rule dplr with what a layer does before them: gates and step sizes of raw numbers.

Written from specs/gates.md and specs/dplr_cases.md on top of the kernels by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support import dplr_kernels

Tensors = dict[str, np.ndarray]


def right(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Every formula."""
    return dplr_kernels.right(_bare(case), _made(case, inputs))


def without_bias(case: dict[str, Any], inputs: Tensors) -> Tensors:
    """Formulas of gates without their bias."""
    left = {name: x for name, x in inputs.items() if name != "gate_bias"}
    return dplr_kernels.right(_bare(case), _made(case, left))


def _bare(case: dict[str, Any]) -> dict[str, Any]:
    own = {n: x for n, x in case.get("parameters", {}).items() if n[:5] not in ("gate_", "beta_")}
    return {**case, "parameters": own}


def _made(case: dict[str, Any], inputs: Tensors) -> Tensors:
    own, x = case.get("parameters", {}), dict(inputs)
    kind = np.float64 if x["v"].dtype == np.float64 else np.float32
    if "gate_formula" in own:
        x["log_retain"] = _log_gate(own, x, kind).astype(kind)
    if "beta_formula" in own:
        beta = np.exp(-np.logaddexp(0.0, -x["beta_input"].astype(np.float64)))
        x["beta"] = (2 * beta if own["beta_formula"] == "twice_sigmoid" else beta).astype(kind)
    return {n: value for n, value in x.items() if n[:5] not in ("gate_", "beta_")}


def _log_gate(own: dict[str, Any], x: Tensors, kind: Any) -> Any:
    z = x["gate_input"].astype(np.float64)
    channels = z.ndim == x["v"].ndim

    def along(name: str) -> Any:
        each = x[name].astype(np.float64)
        return each[..., None, :] if channels else each[..., None]

    rate = np.exp(x["gate_log_rate"].astype(np.float64))[..., None] if "gate_log_rate" in x else 1.0
    rate = np.asarray(rate)[..., None] if channels and np.ndim(rate) else rate
    z = z + along("gate_bias") if "gate_bias" in x else z
    with np.errstate(over="ignore"):
        if own["gate_formula"] == "softplus":
            return -rate * np.logaddexp(0.0, z)
        if own["gate_formula"] == "bounded":
            return own["gate_lower_bound"] / (1 + np.exp(-rate * z))
        if own["gate_formula"] == "log_sigmoid":
            g = -np.logaddexp(0.0, -z) / own.get("gate_normalizer", 1.0)
            return np.maximum(g, own.get("gate_least", -np.inf))
        if own["gate_formula"] == "floored_sigmoid":
            floor = along("gate_floor")
            return np.log(floor + (1 - floor) / (1 + np.exp(-z)))
        return -np.exp(np.minimum(z, 64.0))
