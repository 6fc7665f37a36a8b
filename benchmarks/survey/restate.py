"""A case restated for an implementation: under its convention, without inputs that it does not
know.

A set is made for the rules, not for one library: most of its cases state a convention that a given
implementation does not compute. Its inputs are still worth asking about - short, searched, with
gates at 0 and 1 -, so a case that is refused as it stands is stated anew under the implementation's
own convention, and our truth is computed for that. What was changed is counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.gate_axis import wide

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]

#: What every restated case has in common.
OWN = "its own convention"

#: Words for a case that asks the same as an earlier one.
SAME = "restated, the same as another"

STATES = ("M0", "S0", "M_bar", "S_bar", "M_ref")


class Asked(NamedTuple):
    """The outcome of restating a case.

    Attributes:
        case: to be asked; None where it is not.
        changes: what was changed in it, in words; none for a case as it stands.
        why: why it is not asked.
    """

    case: Case | None
    changes: tuple[str, ...] = ()
    why: str = ""


def asked(case: Case, implementation: Any) -> Asked | None:
    """A case for an implementation; None where its rule is another."""
    if case.header.rule != implementation.rule:
        return None
    inputs = _bare(case)
    if not implementation.refusal(case.header.plain(), inputs):
        return _restated(case, case.header.plain(), inputs, implementation, ())
    if case.header.level != "projected":
        return Asked(None, why="level token")
    changes = [OWN]
    if implementation.rule != "newton_schulz":
        inputs = _changed(inputs, case, implementation, changes)
    header = {
        "schema": 1,
        "rule": implementation.rule,
        "convention": _convention(case, implementation),
        "note": case.header.note,
    }
    if wide({f"in/{name}": value for name, value in inputs.items()}):
        header["gate_axis"] = "d_out"  # such gates of a case are of no other axis (GATES-15)
    why = implementation.refusal(header, inputs)
    return (
        Asked(None, why=why)
        if why
        else _restated(case, header, inputs, implementation, tuple(changes))
    )


def once(questions: Iterable[Asked]) -> list[Asked]:
    """Questions without those that restating made equal to an earlier one."""
    keys: set[str] = set()
    result = []
    for question in questions:
        if question.case is None:
            result.append(question)
            continue
        parts = [
            f"{name} {value.dtype} {value.shape}".encode() + value.tobytes()
            for name, value in sorted(question.case.inputs.items())
        ]
        key = hashlib.sha256(
            b"\0".join([repr(question.case.convention).encode(), *parts])
        ).hexdigest()
        result.append(Asked(None, why=SAME) if key in keys else question)
        keys.add(key)
    return result


def _restated(
    case: Case,
    header: dict[str, Any],
    inputs: Inputs,
    implementation: Any,
    changes: tuple[str, ...],
) -> Asked:
    """The case to ask, with gates as logarithms where the implementation takes them so.

    A gate that is 0 somewhere stays as it is.
    """
    arrays = dict(inputs)
    for name in implementation.logs:
        if name in arrays and (arrays[name] > 0).all():
            arrays[f"log_{name}"] = np.log(arrays.pop(name))
    try:
        return Asked(
            make(header, {f"in/{name}": value for name, value in arrays.items()}, name=case.name),
            changes,
        )
    except CaseError as error:
        return Asked(None, why=str(error).partition(": ")[2])


def _bare(case: Case) -> Inputs:
    return {name.removeprefix("in/"): np.asarray(value) for name, value in case.inputs.items()}


def _convention(case: Case, implementation: Any) -> dict[str, Any]:
    """Its own; of Newton-Schulz, what it fixes, on top of what the case says."""
    own: dict[str, Any] = implementation.convention
    if implementation.rule != "newton_schulz":
        return own
    settings = case.convention.newton_schulz_settings.model_dump(mode="json")
    return {
        "newton_schulz": settings
        | {"scale": "1", "norm_factor": 1, "argument": "S"}
        | own["newton_schulz"]
    }


def _changed(inputs: Inputs, case: Case, implementation: Any, changes: list[str]) -> Inputs:
    mine = resolve(implementation.convention, rule=implementation.rule)
    arrays = {name: value for name, value in inputs.items() if name != "M_ref"}
    if case.convention.layout != mine.layout:
        arrays |= {name: np.swapaxes(arrays[name], -1, -2) for name in STATES if name in arrays}
    arrays = _gates(arrays, mine, implementation, changes)
    if implementation.square and arrays["k"].shape[-1] != arrays["v"].shape[-1]:
        arrays = _cut(arrays, changes)
    absent = [name for name in ("M0", "S0") if name not in implementation.states]
    absent += [f"{name}_bar" for name in ("M", "S") if name not in implementation.returns]
    changes += [f"no {name}" for name in absent if arrays.pop(name, None) is not None]
    if implementation.prepare is not None:
        width = arrays["v"].shape[-1]
        if arrays["k"].shape[-1] != width:
            arrays = _cut(arrays, changes)
        arrays, words = implementation.prepare(arrays)
        changes.append(words)
    return arrays


def _gates(inputs: Inputs, mine: Any, implementation: Any, changes: list[str]) -> Inputs:
    """The gates that its convention has: logarithms as numbers, one a head, a rate more or less."""
    arrays = dict(inputs)
    for name in ("retain", "momentum"):
        if f"log_{name}" in arrays:
            arrays[name] = np.exp(arrays.pop(f"log_{name}"))
            changes.append("gates in place of their logarithms")
    for name in ("retain", "momentum", "step_size", "step_size_memory"):
        if (
            name in arrays
            and arrays[name].ndim == arrays["k"].ndim
            and name not in implementation.per_row
        ):
            arrays[name] = arrays[name][..., 0]
            changes.append("one gate per head")
    if mine.gate == "none" and "retain" in arrays:
        del arrays["retain"]
        changes.append("no retain gate")
    if mine.gate != "none" and "retain" not in arrays:
        arrays["retain"] = np.full(
            arrays["k"].shape[:-1], float(mine.gate == "retain"), arrays["k"].dtype
        )
        changes.append("a retain gate that keeps all")
    if implementation.rule == "hebbian":
        return arrays
    if "step_size" not in arrays:
        arrays["step_size"] = np.full(arrays["k"].shape[:-1], 0.5, arrays["k"].dtype)
        changes.append("a step size")
    if mine.rate == "split" and "step_size_memory" not in arrays:
        arrays["step_size_memory"] = np.ascontiguousarray(
            np.flip(arrays["step_size"], arrays["k"].ndim - 2)
        )
        changes.append("a second rate")
    if mine.rate == "split" and "momentum" not in arrays:
        arrays["momentum"] = np.full(arrays["k"].shape[:-1], 0.5, arrays["k"].dtype)
        changes.append("a momentum gate")
    if mine.rate != "split" and arrays.pop("step_size_memory", None) is not None:
        changes.append("one rate")
    return arrays


def _cut(inputs: Inputs, changes: list[str]) -> Inputs:
    """Keys and values of one width, the smaller."""
    width = min(inputs["k"].shape[-1], inputs["v"].shape[-1])
    arrays = dict(inputs)
    for name in ("k", "q", "v", "y_bar"):
        if name in arrays:
            arrays[name] = arrays[name][..., :width]
    for name in STATES:
        if name in arrays:
            arrays[name] = arrays[name][..., :width, :width]
    changes.append("keys and values cut to one width")
    return {name: np.ascontiguousarray(value) for name, value in arrays.items()}
