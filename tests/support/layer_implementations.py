"""Implementations of layers that a user might hand over, by the names of the public code."""

from __future__ import annotations

from typing import Any

import numpy as np


def norms(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """RMSNorm and no other layer."""
    if case["layer"] != "rms_norm":
        raise NotImplementedError(case["layer"])
    return {"y": _rms_norm(case, inputs)}


def another_eps(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """RMSNorm with an eps of 1e-6."""
    if case["layer"] != "rms_norm":
        raise NotImplementedError(case["layer"])
    return {"y": _rms_norm({**case, "parameters": {"eps": 1e-6}}, inputs)}


def misnamed(case: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A result by a name that no layer has."""
    return {"Y": inputs["x"]}


def _rms_norm(case: dict[str, Any], inputs: dict[str, Any]) -> Any:
    x, eps = inputs["x"], case["parameters"]["eps"]
    eps = np.finfo(x.dtype).eps if eps == "finfo(dtype).eps" else eps
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * inputs["param/weight"]
