"""Small cases of every rule for the tests of gates, at either level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.parts.gates import GateParams, GateSet

RULES = ("omega", "titans_lmm", "delta", "hebbian")
T, D_IN, D_OUT = 6, 4, 3
B, H, D_MODEL = 2, 2, 5


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def uniform(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(0.05, 0.95, shape)


def tensors(rule: str, **changes: Any) -> dict[str, Any]:
    """Keys, values, queries and the gates of the rule; None removes one."""
    inputs: dict[str, Any] = {
        "k": 0.5 * gaussian(T, D_IN),
        "v": gaussian(T, D_OUT, seed=1),
        "q": gaussian(T, D_IN, seed=2),
    }
    inputs["retain"] = uniform(T, seed=3)
    if rule in ("omega", "titans_lmm"):
        inputs["momentum"] = uniform(T, seed=4)
    if rule != "hebbian":
        inputs["step_size"] = 0.3 * uniform(T, seed=5)
    inputs |= changes
    return {f"in/{name}": value for name, value in inputs.items() if value is not None}


def case(rule: str, convention: dict[str, Any] | None = None, **changes: Any) -> Any:
    plain = {"newton_schulz": "none"} if rule == "omega" else {}
    return atlas_ref.make(
        {"schema": 1, "rule": rule, "convention": {**plain, **(convention or {})}},
        tensors(rule, **changes),
    )


def evaluated(
    rule: str, convention: dict[str, Any] | None = None, *, grad: bool = False, **changes: Any
) -> dict[str, Any]:
    return atlas_ref.evaluate(case(rule, convention, **changes), grad=grad).tensors


def refused(
    message: str, rule: str, convention: dict[str, Any] | None = None, **changes: Any
) -> None:
    with pytest.raises(atlas_ref.CaseError, match=message):
        case(rule, convention, **changes)


def parameters(rule: str, rows: int = 1) -> dict[str, Any]:
    names = {"W_K": (H, D_IN, D_MODEL), "W_V": (H, D_OUT, D_MODEL), "W_Q": (H, D_IN, D_MODEL)}
    gates = {"hebbian": ("retain",), "delta": ("retain", "step_size")}.get(
        rule, ("retain", "momentum", "step_size")
    )
    for name in gates:
        names |= {f"W_{name}": (H, rows, D_IN + D_OUT), f"b_{name}": (H, rows)}
    return {
        name: 0.4 * gaussian(*shape, seed=20 + i) for i, (name, shape) in enumerate(names.items())
    }


def token_level(
    rule: str,
    convention: dict[str, Any] | None = None,
    *,
    rows: int = 1,
    param: dict[str, Any] | None = None,
    grad: bool = False,
    **more: Any,
) -> dict[str, Any]:
    weights = {
        name: value
        for name, value in (parameters(rule, rows) | (param or {})).items()
        if value is not None
    }
    inputs = {
        "in/x": gaussian(B, T, D_MODEL),
        **{f"in/param/{name}": value for name, value in weights.items()},
    }
    inputs |= {f"in/{name}": value for name, value in more.items() if name != "feature_map"}
    plain = {"newton_schulz": "none"} if rule == "omega" else {}
    header = {
        "schema": 1,
        "rule": rule,
        "level": "token",
        "convention": {**plain, **(convention or {})},
    }
    header |= {"feature_map": more["feature_map"]} if "feature_map" in more else {}
    return atlas_ref.evaluate(atlas_ref.make(header, inputs), grad=grad).tensors


def one_gate(name: str, bias: Any, weights: Any = 0.0) -> GateSet:
    """A gate of one head that reads a key and a value of length 1, its weights all equal."""
    n = len(bias)
    return GateSet(
        **{name: GateParams(W=np.full((1, n, 2), float(weights)), b=np.asarray(bias, float)[None])}
    )


def central(function: Callable[[Any], float], x: Any) -> Any:
    got = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-6
        got[index] = (function(x + step) - function(x - step)) / 2e-6
    return got
