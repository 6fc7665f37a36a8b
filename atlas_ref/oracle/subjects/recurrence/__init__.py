"""The subject recurrence: members of the linear family that rule dplr is not.

Specified in specs/recurrences.md (RECUR-5 to RECUR-8, RECUR-13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.recurrences import parameters, tensors
from atlas_ref.oracle.recurrences.members import MEMBERS, STATES
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array

_TRAINED = {
    name.removeprefix("in/")
    for member in MEMBERS.values()
    for name in member.tensors
    if not name.endswith("_bar")
}
RESULTS = re.compile(rf"out/(y|{'|'.join(STATES)})|grad/({'|'.join(sorted(_TRAINED))})")
STATE = re.compile(rf"out/({'|'.join(STATES)})")


def _evaluate(
    inputs: Mapping[str, Array], case: Any, form: str, chunk: int | None
) -> tuple[dict[str, Array], None]:
    own = parameters.parsed(case.header)
    return own.of.evaluate(inputs, own.settings), None


def _plain(inputs: Mapping[str, Array], case: Any, rounding: Rounding) -> dict[str, Array]:
    """The recurrence as a plain loop, which shares no code with its rule (TOL-3)."""
    own = parameters.parsed(case.header)
    return own.of.plain(inputs, own.settings, rounding)


def _continued(case: Any) -> Mapping[str, Any]:
    """Parameters of the call that follows (RECUR-13)."""
    own = parameters.parsed(case.header)
    return own.of.continued(case.inputs, own.settings)


def _clause(header: Any, name: str) -> str:
    """The clause about a result (RECUR-7)."""
    return "RECUR-4" if name.startswith("grad/") else parameters.parsed(header).of.clause


def _check_form(case: Any, form: str, chunk: int | None) -> None:
    """Refuse a form other than the loop (RECUR-8).

    Raises:
        ValueError: names the form, and the one to use instead.
    """
    if form != "sequential":
        raise ValueError(f"form: {form} does not compute rule recurrence; use sequential")
    if chunk is not None:
        raise ValueError(f"chunk: {chunk}, but form sequential has none; leave it out")


def _features(case: Any) -> set[str]:
    """Names of the features of SRC-21 that a case has (RECUR-7)."""
    of = parameters.parsed(case.header).of
    first = case.inputs[next(iter(of.tensors))].shape
    widths = {case.inputs[name].shape[-1] for name in ("in/k", "in/v") if name in case.inputs}
    has = {
        "pulse": "in/active" in case.inputs,
        "reset": "in/reset" in case.inputs,
        "heads": len(first) > 2 and first[-3] > 1,
        "rectangular": len(widths) > 1,
        "state": any(f"in/{name}0" in case.inputs for name in of.states),
        "logarithms": "in/log_retain" in case.inputs,
    }
    return {name for name, value in has.items() if value}


SUBJECT = Subject(
    name="recurrence",
    cotangent="in/y_bar",
    clauses={"out": "RECUR-1", "grad": "RECUR-4"},
    evaluate=_evaluate,
    plain=_plain,
    draw=tensors.draw,
    draw_states=tensors.states,
    instead="atlas-ref eval, check and tolerance do",
    is_memory=True,
    has_parameters=True,
    check_header=parameters.check_header,
    checked=tensors.checked,
    clause=_clause,
    numbers=tensors.numbers,
    results=RESULTS,
    measured=True,  # beyond 1e-12 in float64 (RECUR-7)
    states=STATE,
    features=_features,
    check_form=_check_form,
    forms=("sequential",),
    continued=_continued,
)
