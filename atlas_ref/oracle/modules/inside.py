"""A look inside the rule of a memory whose cell is wrong: the replay of its recorded steps.

Specified in specs/modules.md (MODULES-14).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.memories import Memory
from atlas_ref.oracle.modules.recording import MODULE, Recording
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.words import first_words
from atlas_ref.parts import window
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.rules import RULES
from atlas_ref.types import Array

#: Steps of the rule that a look inside starts from (REPLAY-3).
STEPS = ("phi_k", "residual", "gradient", "S", "M", "phi_q", "y")
MAPPED = ("phi_k", "phi_q")
FIELDS = ("q", "k", "v", "retain", "step_size", "momentum", "window_gate")


def inside_of(recording: Recording, graph: Graph, key: str) -> str:
    """The first wrong step of the rule, or the tensors to record; "" for what is no cell."""
    module, _, tensor = key.partition("/")
    if not module.endswith(".cell") or not tensor.startswith("out/"):
        return ""
    missing = [
        f"{MODULE}{each}"
        for field in FIELDS
        if (each := f"{module}/in/{field}") in graph.values and each not in recording.values
    ]
    trace = recording.traces.get(module)
    if trace is None:
        rule = RULES[memory_of(recording, module).rule]
        steps = [each for each in STEPS if each in rule.clauses or each in MAPPED]
        missing += [f"{MODULE}{module}/trace/{step}" for step in steps]
    if missing:
        return f"to look inside the rule record {', '.join(missing)}"
    if len(recording.recipe.calls) > 1 and _bound_to_calls(memory_of(recording, module)):
        return "to look inside the rule record one call: its reference or reads belong to calls"
    try:
        case = case_of(recording, module)
        findings = replay(case, {f"trace/{op}": each for op, each in (trace or {}).items()})
    except CaseError as error:
        return f"the steps of the rule cannot be replayed: {error}"
    wrong = first_wrong(findings)
    if wrong is None:
        return "every recorded step of the rule is right"
    return f"{wrong.verdict} inside the rule: {first_words(wrong)}" + (
        f"; nearest: {wrong.nearest}" if wrong.nearest else ""
    )


def _bound_to_calls(memory: Memory) -> bool:
    rule = memory.convention
    return rule.reference == "call_start" or rule.read == "call_end"


def level_of(module: str) -> int:
    """The number of the level that a cell belongs to."""
    found = re.search(r"\blevels\.(\d+)\.cell$", module)
    return int(found[1]) if found else 0


def memory_of(recording: Recording, module: str) -> Memory:
    """The rule of a cell, and its readings."""
    return recording.recipe.memories[level_of(module)]


def case_of(recording: Recording, module: str) -> Case:
    """The case of a memory's rule on what its cell received (MODULES-14)."""
    values, own, number = recording.values, memory_of(recording, module), level_of(module)
    tensors = {
        f"in/{field}": values[key] for field in FIELDS if (key := f"{module}/in/{field}") in values
    }
    for state in ("M", "S"):
        if (key := f"{module}/in/state/{state}") in values:
            tensors[f"in/{state}0"] = values[key]
    k = tensors["in/k"]
    branch = _branch(recording, module, number)
    tensors |= _weights(own, branch, k, tensors.pop("in/window_gate", None))
    first, period = recording.recipe.combined.first_step, own.period
    if period > 1 or first % period:
        writes = (first + np.arange(k.shape[-2])) % period == 0
        tensors["in/active"] = writes.astype(np.uint8)
    header: dict[str, Any] = {
        "schema": 1,
        "rule": own.rule,
        "window": own.window,
        "convention": _plain(own.convention),
    }
    if "span" in own.settings:
        header["span"] = own.settings["span"]
    feature_map = own.settings.get("feature_map")
    if feature_map is not None and feature_map.kind != "identity":
        header["feature_map"] = feature_map.model_dump(mode="json")
        for name, each in branch.projection.phi.items():
            tensors["in/proj" if name == "proj" else f"in/phi/{name}"] = each
    return make(header, _as_arrays(tensors), name=module)


def _branch(recording: Recording, module: str, number: int) -> Any:
    """Parameters of the level of a cell."""
    own, place = recording.params, re.search(r"\blayers\.(\d+)\.", module)
    if place is not None:
        own = own.blocks[int(place[1])]
    if recording.recipe.kind != "memory":
        own = own.memory
    return own.levels[number]


def _weights(own: Memory, branch: Any, k: Array, gate: Array | None) -> dict[str, Array]:
    """Weights of the window by token and lag, or the gate alone where lags weigh the same.

    Source: WINDOW-2, MODULES-14.
    """
    if "window" not in own.settings:
        return {}
    kind, c = own.settings["window_weights"], own.window
    lag = window.by_lag(kind, branch.projection.window, window=c, heads=k.shape[1], like=np.ones(1))
    if lag is None or ((np.asarray(lag) == 1.0).all() and (gate is not None or c == 1)):
        return {} if gate is None else {"in/window_gate": gate}
    weights = np.array(np.broadcast_to(lag, (*k.shape[:-1], c)), np.float64)
    if gate is not None:
        for j in range(c):
            weights[..., :j, j] = 0.0
            weights[..., j:, j] *= gate[..., : gate.shape[-1] - j]
    return {"in/window_weights": weights.astype(k.dtype)}


def _plain(rule: Any) -> dict[str, Any]:
    """A convention in the types of JSON."""
    axes = dict(rule.__dict__)
    if isinstance(axes["newton_schulz"], NewtonSchulz):
        axes["newton_schulz"] = axes["newton_schulz"].model_dump(mode="json")
    return axes


def _as_arrays(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(each) for name, each in tensors.items()}
