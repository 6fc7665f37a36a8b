"""Targets of the axes of a matrix memory that came after the first sets (VEC-25)."""

from __future__ import annotations

from typing import Any

from atlas_ref.rules import names_with
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import SQUARE, TOKENS, TOPICS, Topic

LINEAR = {"newton_schulz": "none"}

#: Bounds within the gates that are drawn: some gates are outside, some on a bound, some inside.
BOUNDS = {"retain_bounds": [0.75, 0.90625], "step_bounds": [0.125, 0.3125]}
FORGET_BOUNDS = {"retain_bounds": [0.09375, 0.25], "step_bounds": [0.125, 0.3125]}

#: The same of gates that are computed.
TOKEN_BOUNDS = {"retain_bounds": [0.125, 0.375], "step_bounds": [0.25, 0.625]}

#: A factor of the momentum that some gradients make smaller, and others clamp.
FADING = {"momentum_kind": "delta_momentum"}

#: A ceiling that some memories reach and others do not.
CEILING = {"memory_ceiling": 2.0}

SURROGATE = {"reference": "surrogate"}

#: Topics that a target without Newton-Schulz does not have: they are about other things.
WITHOUT = ("repeated", "zero", "one", "cancelling", "cancelling-square", "tiny")

#: Gates that are exactly on both of their bounds, and the targets whose gates are given.
AT_BOUNDS = Topic("gradient-bounds", {**SQUARE, "tokens": 8, "heads": 1}, ("on bounds",), grad=True)
ON_BOUNDS = ("titans_lmm-bounds", "delta-bounds")


def _target(
    name: str, convention: dict[str, Any], without: tuple[str, ...] = WITHOUT, **request: Any
) -> Target:
    rule = name.partition("-")[0]
    window = {"window": 3} if rule in names_with("has_window") else {}
    fields = {"rule": rule, "convention": convention} | window | request
    listed: tuple[Topic, ...] = TOKENS if request.get("level") == "token" else TOPICS
    if convention.get("momentum_kind") == "delta_momentum":
        listed = tuple(each._replace(regimes=(*each.regimes, "gentle")) for each in listed)
    if name in ON_BOUNDS:
        listed = (*listed, AT_BOUNDS)
    return Target(name, fields, listed, without, longer=(), later=True)


MEMORIES = (
    _target("titans_lmm-average", {"momentum_kind": "average"}),
    _target("omega-average", {"momentum_kind": "average"}, ()),
    _target(
        "omega-average-momenta",
        LINEAR | {"momentum_kind": "average", "order": "momentum_then_window"},
    ),
    _target("titans_lmm-delta-momentum", FADING),
    _target("omega-delta-momentum", LINEAR | FADING),
    _target("titans_lmm-bounds", BOUNDS),
    _target("delta-bounds", FORGET_BOUNDS | {"gate": "forget", "decay": "before_error"}),
    _target("titans_lmm-bounds-token", TOKEN_BOUNDS, level="token", d_model=3),
    _target("delta-ceiling", CEILING),
    _target("titans_lmm-ceiling", CEILING),
    _target("omega-ceiling", LINEAR | CEILING),
    _target("titans_lmm-surrogate", SURROGATE),
    _target("omega-surrogate", LINEAR | SURROGATE),
)
