"""The subject recurrence: members of the linear family that rule dplr is not.

Specified in specs/recurrences.md (RECUR-5 to RECUR-8, RECUR-13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.program.derive import calls, drawing, ops, readings, tensors
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.run import run
from atlas_ref.oracle.recurrences import parameters
from atlas_ref.oracle.recurrences.members import MEMBERS, STATES
from atlas_ref.oracle.recurrences.parameters import Parameters
from atlas_ref.oracle.subjects.base.search import READINGS
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array

_TRAINED = {
    name.removeprefix("in/")
    for member in MEMBERS.values()
    for name, tensor in member.program.tensors.items()
    if not (tensor.mask or name.endswith("_bar"))
}
RESULTS = re.compile(rf"out/(y|{'|'.join(STATES)})|grad/({'|'.join(sorted(_TRAINED))})")
STATE = re.compile(rf"out/({'|'.join(STATES)})")


def _program(header: Any) -> tuple[Program, Parameters]:
    """The program of a header, and its parameters."""
    settings = parameters.parse(header)
    return settings.program, settings


def _of_case(case: Case) -> tuple[Program, Parameters]:
    return _program(case.header)


def _evaluate(
    inputs: Mapping[str, Array], case: Case, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    settings = parameters.parse(case.header)
    return MEMBERS[settings.member].evaluate(inputs, settings), None


def _plain(inputs: Mapping[str, Array], case: Case, rounding: Rounding) -> dict[str, Array]:
    """The recurrence as a plain loop, which shares no code with its rule (TOL-3)."""
    return run(*_program(case.header), inputs, rounding)


def _along(case: Case) -> str:
    """The input with the tokens and channels of the member, the first one."""
    return next(iter(parameters.parse(case.header).program.tensors))


def _next_parameters(case: Case) -> Mapping[str, Any]:
    """Parameters of the call that follows (RECUR-13)."""
    program, settings = _program(case.header)
    return program.continued(case.inputs, settings)


def _clause(header: Any, name: str) -> str:
    """The clause about a result (RECUR-7)."""
    if name.startswith("grad/"):
        return "RECUR-4"
    parsed = parameters.parse(header)
    program = parsed.program
    return program.clauses(parsed, {}).get(name.removeprefix("out/"), program.clause)


def _check_form(case: Case, form: str, chunk: int | None) -> None:
    """Refuse a form other than the loop (RECUR-8).

    Raises:
        ValueError: names the form, and the one to use instead.
    """
    if form != "sequential":
        raise ValueError(f"form: {form} does not compute rule recurrence; use sequential")
    if chunk is not None:
        raise ValueError(f"chunk: {chunk}, but form sequential has none; leave it out")


def _features(case: Case) -> set[str]:
    """Names of the features of SRC-21 that a case has (RECUR-7)."""
    states = parameters.parse(case.header).program.states
    first = case.inputs[_along(case)].shape
    widths = {case.inputs[name].shape[-1] for name in ("in/k", "in/v") if name in case.inputs}
    has = {
        "pulse": "in/active" in case.inputs,
        "reset": "in/reset" in case.inputs,
        "heads": len(first) > 2 and first[-3] > 1,
        "rectangular": len(widths) > 1,
        "state": any(f"in/{name}0" in case.inputs for name in states),
        "logarithms": "in/log_retain" in case.inputs,
    }
    return {name for name, value in has.items() if value}


SUBJECT = Subject(
    name="recurrence",
    cotangent="in/y_bar",
    clauses={"out": "RECUR-1", "grad": "RECUR-4", "trace_grad": "RECUR-4"},
    evaluate=_evaluate,
    plain=_plain,
    draw=lambda request, header, generator, d_phi: tensors.draw(
        *_program(header), request, generator
    ),
    draw_states=lambda request, header, inputs, generator: tensors.states(
        *_program(header), inputs, generator
    ),
    instead="atlas-ref eval, check, replay, tolerance, identify, sweep and certify do",
    is_memory=True,
    has_parameters=True,
    check_header=parameters.check_header,
    checked=lambda header, inputs: tensors.check_inputs(*_program(header), inputs),
    clause=_clause,
    numbers=lambda header, inputs: tensors.numbers(*_program(header), inputs),
    results=RESULTS,
    measured=True,  # beyond 1e-12 in float64 (RECUR-7)
    states=STATE,
    features=_features,
    check_form=_check_form,
    continued=_next_parameters,
    search=READINGS,
    traced=ops.trace(_of_case, _along),
    searched=readings.search(_of_case, "recurrence"),
    drawing=drawing.drawing(
        _of_case, {name: member.program for name, member in MEMBERS.items()}, "member"
    ),
    calls=calls.calls(_of_case),
)
