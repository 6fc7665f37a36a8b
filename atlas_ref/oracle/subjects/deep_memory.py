"""The subject deep_memory: a memory that is a function with weights, written once a chunk.

Specified in specs/deep_memory_cases.md (DEEPCASE-1, DEEPCASE-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.conventions import Convention, resolve
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import OF_TOKENS, masks, under
from atlas_ref.oracle.deep import inputs as deep_memory_inputs
from atlas_ref.oracle.deep import parameters, program, tensors, void
from atlas_ref.oracle.deep.sweep import cut
from atlas_ref.oracle.deep.sweep.draw import DRAWING
from atlas_ref.oracle.drawing import along_tokens
from atlas_ref.oracle.subjects.base.calls import Calls, last_state
from atlas_ref.oracle.subjects.base.checked import check_form
from atlas_ref.oracle.subjects.base.search import READINGS
from atlas_ref.oracle.subjects.subject import Preset, Subject
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.rules import sequence
from atlas_ref.rules.deep_memory import RULE, Config, presets, start
from atlas_ref.types import Array
from tape import ops as tape

#: Names of results (DEEPCASE-6, DEEPCASE-7).
RESULTS = re.compile(
    r"(out|grad)/state/((weights|momentum|reference)/\w+(/\w+)?|keys|values|token_gates|thresholds)"
    r"|out/state/position|grad/memory/(momentum/)?\w+(/\w+)?"
    r"|out/y|grad/(k|v|q|retain|momentum|step_size|step_size_memory|window_weights|window_gate)"
    r"|grad/threshold"
)

#: Results that are the state, in the format in which it is kept (TOL-8).
STATE = re.compile(r"out/state/(weights|momentum|reference)/.*")

#: Clause of a result by the beginning of its name, the longest first.
CLAUSES = {
    "out/state/weights": "DEEP-13",
    "out/state/momentum": "DEEP-11",
    "out/state/reference": "DEEP-8",
    "out/state": "DEEP-5",
    "out/y": "DEEP-15",
}

#: Clause of gradients, by the outer gradient.
GRADIENTS = {
    "full": "DEEP-18",
    "first_order": "DEEP-19",
    "straight_through": "DEEP-20",
    "none": "DEEP-21",
}

#: Tokens and gates of a call.
TOKENS = (*OF_TOKENS, "threshold")


def config(header: Any, inputs: Mapping[str, Any]) -> Config:
    """The settings of a case with these inputs."""
    return parameters.config(header, inputs["in/k"].shape[-1], inputs["in/v"].shape[-1])


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    own = config(case.header, inputs).replaced(convention=case.convention)
    given = {name: inputs[f"in/{name}"] for name in TOKENS if f"in/{name}" in inputs}
    tokens = sequence.Tokens(**given, **masks(inputs))
    memory = under(inputs, tensors.MEMORY)
    with backend.used(backend.of(*inputs.values()).name):  # where a first state is made
        state, y = sequence.run(RULE, own, tokens, _state(own, inputs, tokens), phi=memory)
    return {"out/y": y, **_outputs(own, inputs, state, memory)}, None


def _state(own: Config, inputs: Mapping[str, Array], tokens: sequence.Tokens) -> Any:
    """The state before the first token (DEEPCASE-5)."""
    state = start(own, tokens.k.shape[:-2], dtype=tokens.k.dtype)
    kinds = {kind: under(inputs, f"in/state/{kind}/") for kind in tensors.KINDS}
    held = {
        name: inputs[f"in/state/{name}"]
        for name in ("keys", "values", "token_gates", "thresholds")
        if f"in/state/{name}" in inputs
    }
    position = int(inputs.get("in/state/position", 0))
    return state.replaced(position=position, **kinds, **held)


def _outputs(
    own: Config, inputs: Mapping[str, Array], state: Any, memory: Mapping[str, Array]
) -> dict[str, Array]:
    """What a next call starts from (DEEPCASE-6)."""
    kinds = {"weights": state.weights, "reference": state.reference}
    if "in/momentum" in inputs:
        zeros = {name: tape.zeros_like(x) for name, x in state.weights.items()}
        kinds["momentum"] = state.momentum or zeros
    out = {
        f"out/state/{kind}/{name}": kinds[kind][name]
        for kind in tensors.KINDS
        for name in kinds.get(kind, ())
    }
    if state.keys.shape[-2]:
        out |= {"out/state/keys": state.keys, "out/state/values": state.values}
        if state.token_gates is not None:
            out["out/state/token_gates"] = state.token_gates
        if state.thresholds is not None:
            out["out/state/thresholds"] = state.thresholds
    return out | {"out/state/position": np.asarray(state.position, np.int64)}


def clause(header: Any, name: str) -> str:
    """The clause about a result."""
    if name.startswith("grad/"):
        return GRADIENTS[parameters.parse(header).outer_gradient]
    if name.startswith("out/state/momentum") and parameters.parse(header).deep_momentum:
        return "DEEP-37"
    return next((each for key, each in CLAUSES.items() if name.startswith(key)), "")


def _blank(name: str) -> str | None:
    """What a first state is that a case does not have (DEEPCASE-5); None for rows of a window."""
    if name.startswith(network := f"{tensors.MEMORY}{PREFIX}"):
        return ""  # where the momentum is no network
    kind, _, own = name.removeprefix("in/state/").partition("/")
    stands_in = {
        "weights": f"{tensors.MEMORY}{own}",
        "reference": f"in/state/weights/{own}",
        "momentum": f"{network}{own}",
        "position": "",
    }
    return stands_in.get(kind)


def _void(case: Case) -> dict[str, str]:
    return void.reasons(config(case.header, case.inputs), case.inputs)


SUBJECT = Subject(
    name=RULE.name,
    cotangent="in/y_bar",
    clauses={"out": "DEEPCASE-1", "grad": "DEEP-18"},
    evaluate=_evaluate,
    plain=program.run,
    draw=deep_memory_inputs.draw,
    draw_states=deep_memory_inputs.states,
    rule=RULE,
    has_newton_schulz=True,
    has_parameters=True,
    check_header=parameters.check_header,
    checked=tensors.check_inputs,
    clause=clause,
    void=_void,
    numbers=tensors.numbers,
    results=RESULTS,
    measured=True,  # beyond 1e-12 in float64 (DEEPCASE-9)
    has_convention=True,
    convention=lambda header: resolve(header.convention, rule=header.rule),
    check_form=check_form,
    presets={
        each: Preset(
            {"memory": presets.MEMORY, "span": presets.SPAN, **own},
            presets.CONVENTION,
            # a network in the place of the momentum needs its gate
            without=lambda stated: () if stated.get("deep_momentum") else ("in/momentum",),
        )
        for each, own in presets.PRESETS.items()
    },
    drawing=DRAWING,
    states=STATE,
    features=void.features,
    traced=program.TRACED,
    search=READINGS,
    searched=program.SEARCHED,
    calls=Calls(
        cut=partial(along_tokens, cut.axes),
        left=last_state,
        blank=_blank,
    ),
)

__all__ = ["SUBJECT", "Convention", "config"]
