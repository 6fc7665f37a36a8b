"""Targets of the rule recurrence, one for each member, and the numbers of their cases (VEC-29).

Numbers are dyadic, exact in bfloat16 and float16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.program.derive import tensors
from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.recurrences.parameters import parse
from atlas_ref.vectors.inputs.stream import chosen, dyadic, whole
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import SMALL, SQUARE, TALL, WIDE, Topic

RULE = "recurrence"

#: Regimes: numbers of the tensors, and a first state.
NUMBERS, START = "recurrence", "first states"

#: Topics of every target.
TOPICS = (
    Topic("tall", TALL, (NUMBERS, START)),
    Topic("wide", WIDE, (NUMBERS, START)),
    Topic("square", SQUARE, (NUMBERS, START)),
    Topic("start", {**SQUARE, "state": False}, (NUMBERS,)),
    Topic("packed", {**WIDE, "pulse": 2, "reset": 3, "heads": 2}, (NUMBERS, START)),
    Topic("extreme", {**SQUARE, "tokens": 6}, (NUMBERS, START, "gates of zero")),
    Topic("gradient", {**SQUARE, "tokens": 5, "heads": 1}, (NUMBERS, START), grad=True),
    Topic(
        "gradient-packed",
        {**SMALL, "tokens": 7, "reset": 4, "pulse": 2, "heads": 2},
        (NUMBERS, START),
        grad=True,
    ),
    Topic("65", {**SMALL, "tokens": 65}, (NUMBERS, START, "near one")),
)

#: Topics of which every target that has them has a vector.
ALWAYS = (
    *("tall", "square", "start", "packed", "extreme", "layout", "usual", "groups"),
    *("gradient", "gradient-packed", "65"),
)

#: Parameters of members beside their defaults: mini-batches and levels that end inside a case, and an
#: eps that shows in every format.
PARAMETERS: dict[str, dict[str, Any]] = {
    "ttt_linear": {"mini_batch": 3, "norm_eps": 0.125},
    "log_linear": {"position": 3},
}


def _topics(name: str) -> tuple[Topic, ...]:
    """Topics that a member has tensors for."""
    found: tuple[Topic, ...] = TOPICS
    if MEMBERS[name].program.matrices:
        turned = {"state_layout": "(d_in, d_out)"}
        found += (Topic("layout", TALL, (NUMBERS, START), parameters=turned),)
    if "in/log_retain" not in MEMBERS[name].program.tensors:
        found = tuple(each for each in found if each.name != "extreme")
    if name == "ttt_linear":
        usual = {"norm_eps": 1e-6, "mini_batch": 16}
        found += (Topic("usual", {**SQUARE, "tokens": 20}, (NUMBERS, START), parameters=usual),)
    if name == "log_linear":
        groups = Topic("groups", SQUARE, (NUMBERS, START), parameters={"groups": 2})
        found += (groups, groups._replace(name="gradient-groups", grad=True))
    return found


def target(name: str) -> Target:
    """What vectors of a member are drawn from."""
    fields = {"rule": RULE, "parameters": {"member": name, **PARAMETERS.get(name, {})}}
    return Target(f"{RULE}-{name}", fields, _topics(name), longer=(), later=True, always=ALWAYS)


#: Targets of the published sets, which a member that came later is none of.
RECURRENCES = tuple(target(name) for name, each in MEMBERS.items() if not each.program.later)


# -- numbers ----------------------------------------------------------------------------------------

Inputs = dict[str, Any]

#: Values that tensors are drawn from; all others are whole numbers times a unit.
LISTS: dict[str, tuple[float, ...]] = {
    "in/log_retain": (-1.0, -0.75, -0.5, -0.375, -0.25, -0.125),
    "in/s": (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875),
    "in/weight": (0.25, 0.375, 0.5, 0.625, 0.75, 0.875),
    "in/level_scales": (0.25, 0.375, 0.5, 0.75, 1.25, 1.5),
    "in/ridge": (0.5, 0.75, 1.0, 1.25, 1.5),
    "in/step_size": (0.0625, 0.09375, 0.125, 0.1875, 0.25),
    "in/gain": (0.625, 0.75, 0.875, 1.125, 1.25, 1.5),
}
WHOLE = {"in/k": (8, 0.125), "in/shift": (4, 0.125)}
OTHER = (12, 0.125)

#: Logs of gates of long calls, and steps of them.
NEAR_ONE = (-0.0625, -0.03125, -0.015625)


def _drawn(seed: int, name: str, shape: tuple[int, ...]) -> Any:
    if name in LISTS:
        return chosen(seed, name, shape, LISTS[name])
    most, unit = WHOLE.get(name, OTHER)
    return dyadic(seed, name, shape, most=most, scale=unit)


def numbers(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Every tensor but masks and first states drawn anew; no first state."""
    firsts = {f"in/{name}0" for name in parse(case.header).program.states}
    bars = {f"in/{name}_bar" for name in parse(case.header).program.states}
    return {
        name: x if x.dtype.kind in "biu" else _drawn(seed, name, x.shape)
        for name, x in inputs.items()
        if name not in firsts | bars
    }


def first_states(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """First states that the member can have come to, and where reads have cotangents theirs."""
    settings = parse(case.header)
    program, found = settings.program, dict(inputs)
    shapes = tensors.shapes(program, settings, inputs)
    for state in program.states:
        name, bar = f"in/{state}0", f"in/{state}_bar"
        x = dyadic(seed, name, shapes[name], most=4, scale=0.25)
        first = program.first(state, x, settings)
        if first is not None:
            found[name] = first
        if "in/y_bar" in inputs:
            found[bar] = _drawn(seed, bar, shapes[bar])
    return found


def gates_of_zero(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """A fifth of logs -inf, 0 or -100; two places have the first two under every seed."""
    logs = inputs["in/log_retain"].copy()
    places = whole(seed, "edges of in/log_retain", logs.size, 0, 14).reshape(logs.shape)
    for place, value in enumerate((-np.inf, 0.0, -100.0)):
        logs[places == place] = value
    flat = logs.reshape(-1)
    flat[2], flat[-2] = -np.inf, 0.0
    return inputs | {"in/log_retain": logs}


def near_one(seed: int, inputs: Inputs, case: Case) -> Inputs:
    """Gates near 1, and steps a sixteenth, for tens of tokens."""
    found = dict(inputs)
    if "in/log_retain" in inputs:
        shape = inputs["in/log_retain"].shape
        found["in/log_retain"] = chosen(seed, "in/log_retain", shape, NEAR_ONE)
    if "in/step_size" in inputs:
        found["in/step_size"] = inputs["in/step_size"] / 16
    return found
