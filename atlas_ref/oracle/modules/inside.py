"""A look inside the rule of a memory whose cell is wrong: the replay of its recorded steps.

Specified in specs/modules.md (MODULES-14).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.recording import MODULE, Recording
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.words import first_words
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array

#: Steps of the rule that a look inside starts from (REPLAY-3).
STEPS = ("phi_k", "residual", "gradient", "S", "M", "phi_q", "y")
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
        missing += [f"{MODULE}{module}/trace/{step}" for step in STEPS]
    if missing:
        return f"to look inside the rule record {', '.join(missing)}"
    if len(recording.recipe.calls) > 1 and _bound_to_calls(recording):
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


def _bound_to_calls(recording: Recording) -> bool:
    rule = recording.recipe.rule
    return rule.reference == "call_start" or rule.read == "call_end"


def case_of(recording: Recording, module: str) -> Case:
    """The case of a memory's rule on what its cell received (MODULES-14)."""
    recipe, values = recording.recipe, recording.values
    settings = recipe.settings
    tensors = {
        f"in/{field}": values[key] for field in FIELDS if (key := f"{module}/in/{field}") in values
    }
    for state in ("M", "S"):
        if (key := f"{module}/in/state/{state}") in values:
            tensors[f"in/{state}0"] = values[key]
    k = tensors["in/k"]
    if "in/window_gate" not in tensors and settings.omega_window > 1:
        shape = (*k.shape[:-1], settings.omega_window)
        tensors["in/window_weights"] = np.ones(shape, k.dtype)
    header: dict[str, Any] = {
        "schema": 1,
        "rule": "omega",
        "window": settings.omega_window,
        "convention": _plain(recipe.rule),
    }
    if settings.feature_map.kind != "identity":
        header["feature_map"] = settings.feature_map.model_dump()
    return make(header, _as_arrays(tensors), name=module)


def _plain(rule: Any) -> dict[str, Any]:
    """A convention in the types of JSON."""
    axes = dict(rule.__dict__)
    if isinstance(axes["newton_schulz"], NewtonSchulz):
        axes["newton_schulz"] = axes["newton_schulz"].model_dump(mode="json")
    return axes


def _as_arrays(tensors: dict[str, Array]) -> dict[str, Array]:
    return {name: np.asarray(each) for name, each in tensors.items()}
