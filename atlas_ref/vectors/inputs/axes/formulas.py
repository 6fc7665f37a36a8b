"""Targets of gates and step sizes by a formula, and of members that are younger (VEC-25)."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.vectors.inputs.dplr_targets import (
    HEADS,
    LONG,
    OF_HEADS,
    RULE,
    START,
    TALL,
    TOPICS,
    WIDE,
)
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import Topic

#: Topics of every target: those of the rule that are short and have a first memory.
SHORT = tuple(topic for topic in TOPICS if topic.name not in ("65", "start"))
GROUPS = Topic("gradient-groups", {**TALL, "tokens": 5}, (START,), True, parameters={"groups": 2})
PACKED = Topic(
    "gradient-packed", {**WIDE, "tokens": 6, "pulse": 2, "reset": 3}, (START,), grad=True
)

#: Topics of members that carry a momentum or a sum of squares beside their memory: both are given.
STATES = (
    Topic("state", {**WIDE, "tokens": 6, "pulse": 2, "reset": 3}, (START, "further state")),
    PACKED._replace(name="gradient-state", regimes=(START, "further state")),
)

#: Long calls with that first state, one of them packed, without silent tokens (VEC-27).
LONGER_STATES = tuple(
    Topic(f"{request['tokens']}-state", {**LONG, **request}, (START, "long", "further state"))
    for request in ({"tokens": 65}, {"tokens": 130, "reset": 50})
)


def _target(member: str, name: str, **parameters: Any) -> Target:
    fields = {"rule": RULE, "parameters": {"member": member} | parameters}
    grouped = () if MEMBERS[member].second == "A" else (GROUPS,)  # which certify does not have
    listed = (*SHORT, *grouped, PACKED)
    if MEMBERS[member].second:
        listed += (*STATES, *LONGER_STATES)
    if name in OF_HEADS:
        listed += HEADS
    # what an implementation without groups, resets and gradients can compute
    return Target(f"dplr-{name}", fields, listed, longer=(), later=True, always=("square",))


FORMULAS = (
    _target("kda", "kda-softplus", gate_formula="softplus", beta_formula="sigmoid"),
    _target("kda", "kda-bounded", gate_formula="bounded", gate_lower_bound=-5.0),
    _target(
        "gla",
        "gla-log_sigmoid",
        gate_formula="log_sigmoid",
        gate_normalizer=4.0,
        gate_least=-0.25,
    ),
    _target("gla", "gla-floored_sigmoid", gate_formula="floored_sigmoid"),
    _target("rwkv6", "rwkv6-exponential", gate_formula="exponential"),
    _target("gated_delta", "gated_delta-twice_sigmoid", beta_formula="twice_sigmoid"),
    _target("momentum_delta", "momentum_delta"),
    _target("precond_kda", "precond_kda"),
    _target("precond_gated_delta", "precond_gated_delta"),
)
