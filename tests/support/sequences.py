"""Random sequences, and the package's results for them under short names; nothing here is a
truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.rules import delta, hebbian, omega, titans_lmm

MODULES = {"omega": omega, "titans_lmm": titans_lmm, "delta": delta, "hebbian": hebbian}
GATES = {
    "omega": ("retain", "momentum", "step_size"),
    "titans_lmm": ("retain", "momentum", "step_size"),
    "delta": ("retain", "step_size"),
    "hebbian": ("retain",),
}
RANGES = {
    "retain": (0.7, 0.95),
    "momentum": (0.3, 0.8),
    "step_size": (0.1, 0.4),
    "step_size_memory": (0.1, 0.4),
}
SHARED = ("x", "active", "reset", "proj")

Arrays = dict[str, np.ndarray]


def drawn(
    rule: str = "omega",
    *,
    T: int = 6,
    d_in: int = 4,
    d_out: int = 3,
    window: int = 1,
    lead: tuple[int, ...] = (),
    per_dimension: bool = False,
    split: bool = False,
    seed: int = 0,
) -> Arrays:
    """Keys, values, queries, gates, window weights and initial states, none of them zero or
    symmetric.
    """
    random = np.random.default_rng(seed)
    gate_shape = (*lead, T, d_out) if per_dimension else (*lead, T)
    tensors = {
        "k": random.standard_normal((*lead, T, d_in)) / np.sqrt(d_in),
        "v": random.standard_normal((*lead, T, d_out)),
        "q": random.standard_normal((*lead, T, d_in)),
    }
    for gate in (*GATES[rule], *(["step_size_memory"] if split else [])):
        tensors[gate] = random.uniform(*RANGES[gate], gate_shape)
    if rule == "omega" and window > 1:
        tensors["window_weights"] = random.uniform(0.5, 1.5, (*lead, T, window)) / window
    tensors["M0"] = 0.5 * random.standard_normal((*lead, d_out, d_in))
    if "momentum" in GATES[rule]:
        tensors["S0"] = 0.5 * random.standard_normal((*lead, d_out, d_in))
    return tensors


def earlier(
    n: int,
    *,
    d_in: int = 4,
    d_out: int = 3,
    residual: bool = False,
    gate: bool = False,
    seed: int = 7,
) -> Arrays:
    """n initial window tokens, with residuals or gates where the case needs them."""
    random = np.random.default_rng(seed)
    tensors = {
        "window_k": random.standard_normal((n, d_in)) / np.sqrt(d_in),
        "window_v": random.standard_normal((n, d_out)),
    }
    if residual:
        tensors["window_residual"] = random.standard_normal((n, d_out))
    if gate:
        tensors["window_gate_before"] = random.uniform(0.2, 0.8, n)
    return tensors


def without(tensors: Arrays, *names: str) -> Arrays:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def case(
    rule: str, tensors: Mapping[str, Any], convention: Any = "spec", **header: Any
) -> atlas_ref.Case:
    named = {f"in/{name}": np.asarray(tensor) for name, tensor in tensors.items()}
    return atlas_ref.make({"schema": 1, "rule": rule, "convention": convention, **header}, named)


def results(
    rule: str,
    tensors: Mapping[str, Any],
    convention: Any = "spec",
    *,
    grad: bool = False,
    **header: Any,
) -> dict[str, Any]:
    """y, M, S and the state for a next call, "phase" among it; with `grad` also grad/NAME."""
    evaluation = atlas_ref.evaluate(case(rule, tensors, convention, **header), grad=grad)
    named = {name.removeprefix("out/"): tensor for name, tensor in evaluation.tensors.items()}
    return named | {"phase": evaluation.header["phase"]} if "phase" in evaluation.header else named


def times(tensors: Arrays, start: int, stop: int) -> Arrays:
    """Tokens start to stop of every tensor with a time axis, nothing of the rest."""
    lead = tensors["k"].ndim - 2 if "k" in tensors else 0
    timed = ("k", "v", "q", "window_weights", "window_gate", "log_retain", "log_momentum", *RANGES)
    cut = {
        name: tensor[(slice(None),) * lead + (slice(start, stop),)]
        for name, tensor in tensors.items()
        if name in timed
    }
    cut |= {name: tensors[name][start:stop] for name in ("active", "reset") if name in tensors}
    return cut | ({"x": tensors["x"][:, start:stop]} if "x" in tensors else {})


def split_call(
    rule: str, tensors: Arrays, convention: Any, at: int, **header: Any
) -> dict[str, Any]:
    """Results of two calls, the second resumed from the first: its final state, and y of both."""
    T = (
        len(tensors["k"])
        if tensors.get("k", np.empty(0)).ndim == 2
        else (tensors["x"] if "x" in tensors else tensors["k"]).shape[-2]
    )
    timeless = {
        name: tensor for name, tensor in tensors.items() if name not in times(tensors, 0, 1)
    }
    first = results(rule, {**timeless, **times(tensors, 0, at)}, convention, **header)
    carried = {
        name: tensor for name, tensor in first.items() if name not in ("y", "M", "S", "phase")
    }
    states = {f"{name}0": first[name] for name in ("M", "S") if name in first}
    constant = {
        name: tensor
        for name, tensor in timeless.items()
        if not name.startswith(("window_", "M0", "S0", "M_ref"))
    }
    phase = {"phase": first["phase"]} if "phase" in first else {}
    second = results(
        rule,
        {**constant, **times(tensors, at, T), **states, **carried},
        convention,
        **{**header, **phase},
    )
    return second | {"y": np.concatenate([first["y"], second["y"]], axis=-2)}
