"""The subject tnt: a global memory, local memories that every shard starts anew, their reads added.

Specified in specs/tnt_cases.md (TNTCASE-1, TNTCASE-5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.conventions import Convention
from atlas_ref.forms import tnt
from atlas_ref.forms.support import require
from atlas_ref.forms.tnt.state import Keys, Place, start_like
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.tensor_spec import under
from atlas_ref.oracle.drawing import along_tokens
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.derive import ops as traces
from atlas_ref.oracle.program.derive.readings import search
from atlas_ref.oracle.subjects import memory
from atlas_ref.oracle.subjects.base.calls import Calls, last_state
from atlas_ref.oracle.subjects.base.search import READINGS
from atlas_ref.oracle.subjects.subject import Subject
from atlas_ref.oracle.tnt import inputs as tnt_inputs
from atlas_ref.oracle.tnt import parameters, program, projection, tensors, void
from atlas_ref.oracle.tnt.draw import DRAWING
from atlas_ref.oracle.tnt.settings import Memory, Settings, settings_of, stated_settings
from atlas_ref.oracle.tnt.tokens import TOKENS, of_memory
from atlas_ref.rules import FAMILY
from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array
from tape import ops as tape

_HELD = "|".join(tensors.HELD)
_FIRST = "|".join([*tensors.FIRST, *TOKENS])

#: Names of results (TNTCASE-5, TNTCASE-6).
RESULTS = re.compile(
    rf"out/y|out/state/position|(out|grad)/state/(global|local\d+)/({_HELD})"
    rf"|grad/(global|local\d+)/({_FIRST})|grad/({'|'.join(TOKENS)})"
)

#: Results that are the state, in the format in which it is kept (TOL-8).
STATE = re.compile(r"out/state/(global|local\d+)/(M|S|M_ref|window_momentum)")

#: Clause of a result by the end of its name.
CLAUSES = {
    "out/y": "TNT-1",
    "out/state/position": "TNT-11",
    "P": "TNT-7",
    "P_size": "TNT-9",
    "P_keys": "TNT-8",
}


def config(case: Case, inputs: Mapping[str, Any], form: str, chunk: int | None) -> tnt.Config:
    """The settings of a case with these inputs."""
    return parameters.config(
        case.header,
        inputs["in/k"].shape[-1],
        inputs["in/v"].shape[-1],
        form=form,
        chunk=chunk,
        own=case.convention.replaced(layout=Convention().layout),
    )


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    s, made = settings_of(case), config(case, inputs, form, chunk)
    reset = np.asarray(inputs["in/reset"]).astype(bool) if "in/reset" in inputs else None
    each = {m.name: of_memory(inputs, m.name) for m in s.memories}
    given = tuple(
        Tokens(**{name: own[name] for name in TOKENS if name in own}, reset=reset)
        for own in each.values()
    )
    k = given[0].k
    first = tuple(_initial(own, k.shape[:-2]) for own in each.values())
    params = tnt.Params(memories=first)
    with backend.used(backend.of(*inputs.values()).name):  # where a first state is made
        state = start_like(made, params, k.shape[:-2], k)
        if "in/state/position" in inputs:
            state = _resume(s, made, inputs, given, state)
        state, y = tnt.run(made, params, given, state)
    out = {"out/y": y, "out/state/position": np.asarray(state.position, np.int64)}
    for m, own, place in zip(s.memories, each.values(), state.places, strict=True):
        needs = tensors.state_tensors(s, m, own)
        left = _last_state(m, {**own, **_of_state(inputs, m)}, place.memory, needs)
        left |= {"P": place.keys.total, "P_size": place.keys.size, "P_keys": place.keys.rows}
        out |= {f"out/state/{m.name}/{name}": left[name] for name in needs}
    return out, None


def _initial(own: Mapping[str, Array], lead: tuple[int, ...]) -> tnt.Initial:
    """Where a memory starts; tensors with unlike leading axes each get those of the tokens."""
    names = {"M": "M0", "S": "S0", "W_QK": "W_QK"}
    given = {field: own[name] for field, name in names.items() if name in own}
    if len({x.shape[:-2] for x in given.values()}) > 1:
        given = {field: tape.broadcast_to(x, (*lead, *x.shape[-2:])) for field, x in given.items()}
    return tnt.Initial(**given)


def _resume(
    s: Settings, made: tnt.Config, inputs: Mapping[str, Array], given: Any, fresh: tnt.State
) -> tnt.State:
    """The state that a call before has left (TNTCASE-4)."""
    position = int(inputs["in/state/position"])
    places = []
    for m, kind, tokens in zip(s.memories, made.memories, given, strict=True):
        held = _of_state(inputs, m)
        run = kind.run_config
        phase = m.phase(position)
        names = {"M": "in/M0", "S": "in/S0"}
        ordinary = {names.get(name, f"in/{name}"): x for name, x in held.items()}
        state = memory.initial_state(kind.rule, run, ordinary, tokens, phase)
        keys = Keys(
            total=inputs.get(f"in/state/{m.name}/P"),
            size=inputs.get(f"in/state/{m.name}/P_size"),
            rows=inputs.get(f"in/state/{m.name}/P_keys"),
        )
        places.append(Place(memory=state, keys=keys))
    return fresh.replaced(position=position, places=tuple(places))


def _of_state(inputs: Mapping[str, Array], m: Memory) -> dict[str, Array]:
    """The tensors of a memory's rule in a state that was left."""
    before = under(inputs, f"in/state/{m.name}/")
    return {name: x for name, x in before.items() if name not in projection.Held._fields}


def _last_state(m: Memory, own: Mapping[str, Array], state: Any, needs: Any) -> dict[str, Array]:
    """What the rule of a memory leaves, by the names of an ordinary case (CONV-37).

    Args:
        own: tensors of the memory, and the window that it began the call with.
    """
    values = {"M": state.M}
    if "S" in needs:
        values["S"] = state.S
    if "M_ref" in needs:
        values["M_ref"] = state.reference
    if "window_k" not in needs:
        return values
    n = min(state.filled, state.keys.shape[-2] - 1)
    for name in ("window_k", "window_v"):
        before = [own[name]] if name in own else []
        rows = tape.concatenate([*before, own[name.removeprefix("window_")]], axis=-2)
        values[name] = rows[..., rows.shape[-2] - n :, :]
    of_window = {
        "window_gate_before": (state.token_gates, -1),
        "window_residual": (state.residuals, -2),
        "window_momentum": (state.momenta, -3),
    }
    for name, (rows, axis) in of_window.items():
        if name in needs:
            first = rows.shape[axis] - n
            values[name] = rows[(..., slice(first, None), *[slice(None)] * (-axis - 1))]
    return values


def _draw(
    request: Any, header: Any, generator: Any, d_phi: int
) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Random inputs, and the shape of the cotangent; a state is that of a call before (TNTCASE-8)."""
    s = stated_settings(header)
    found = tnt_inputs.rows(request, s, generator)
    if request.history:
        before = tnt_inputs.before(request, s, generator, found)
        left = of_program.run(program.PROGRAM, s, before, of_program.exact(PLAIN))
        found |= {
            name.replace("out/", "in/", 1): np.asarray(x)
            for name, x in left.items()
            if name.startswith("out/state/")
        }
    return found, (*found["in/k"].shape[:-1], request.d_out)


def _check_form(case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form that does not compute a memory of the case (TNTCASE-11)."""
    for each in config(case, case.inputs, "sequential", None).memories:
        require(each.rule.name, each.run_config.convention, form, chunk)


def clause(header: Any, name: str) -> str:
    """The clause about a result."""
    if name.startswith("grad/"):
        return "TNT-14"
    last = name.rpartition("/")[2]
    return (
        CLAUSES.get(name)
        or CLAUSES.get(last)
        or FAMILY[parameters.rule_of(header)].clauses.get(last, "TNT-11")
    )


def _along(case: Case) -> str:
    """The input with the tokens and channels of a case."""
    return "in/k"


def _blank(name: str) -> str | None:
    """What a first state is that a case does not have (TNTCASE-4); None for rows of a window."""
    memory, _, own = name.removeprefix("in/state/").rpartition("/")
    stands_in = {
        "M": f"in/{memory}/M0",
        "S": f"in/{memory}/S0",
        "M_ref": f"in/state/{memory}/M",
        **dict.fromkeys(("P", "P_size", "position"), ""),
    }
    return "" if name.endswith("0") else stands_in.get(own)


def _void(case: Case) -> dict[str, str]:
    return void.reasons(case.header, case.inputs)


SUBJECT = Subject(
    name=parameters.NAME,
    cotangent="in/y_bar",
    clauses={"out": "TNTCASE-1", "grad": "TNT-14"},
    evaluate=_evaluate,
    plain=program.run,
    draw=_draw,
    draw_states=tnt_inputs.states,
    has_newton_schulz=True,
    has_parameters=True,
    check_header=parameters.check_header,
    checked=tensors.check_inputs,
    clause=clause,
    void=_void,
    numbers=tensors.numbers,
    results=RESULTS,
    measured=True,  # beyond 1e-12 in float64 (TNTCASE-7)
    has_convention=True,
    states=STATE,
    features=void.features,
    search=READINGS,
    searched=search(program.program_and_settings, "tnt")._replace(keeps=program.keeps),
    calls=Calls(cut=partial(along_tokens, tensors.axes), left=last_state, blank=_blank),
    traced=traces.trace(program.program_and_settings, _along),
    convention=parameters.convention,
    check_form=_check_form,
    sample=tnt_inputs.SAMPLE,
    drawing=DRAWING,
)

__all__ = ["SUBJECT"]
