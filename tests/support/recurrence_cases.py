"""Cases of every member of rule recurrence, of every kind that its programs tell apart."""

from __future__ import annotations

import functools
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.recurrences.members import MEMBERS

#: Settings under which a case is no other member's, and levels and mini-batches end inside it.
PARAMETERS: dict[str, dict[str, Any]] = {
    "gsa": {},
    "hgrn": {},
    "mesa": {},
    "ttt_linear": {"mini_batch": 2, "norm_eps": 0.01},
    "log_linear": {"position": 3, "groups": 2},
    "short_conv": {"activation": "silu"},
}

#: Kind -> what a case of it has beside first states and cotangents.
KINDS: dict[str, dict[str, Any]] = {
    "masks": {"tokens": 8, "pulse": 2, "reset": 3, "d_in": 3, "d_out": 3},
    "long": {"tokens": 11, "reset": 5, "d_in": 4, "d_out": 2},
    "transposed": {"tokens": 6, "d_in": 2, "d_out": 3, "layout": True},
    "batch": {"tokens": 5, "batch": 2, "pulse": 2, "d_in": 3, "d_out": 2},
    "empty": {"tokens": 7, "packed": True, "d_in": 3, "d_out": 2, "state": False},
    "short": {"tokens": 2, "d_in": 5, "d_out": 3},
    "silent": {"tokens": 2, "pulse": 3, "d_in": 2, "d_out": 3},
}


@functools.cache
def case(member: str, kind: str) -> Case:
    """The case of a member of this kind."""
    request = dict(KINDS[kind])
    parameters = {"member": member, **PARAMETERS[member]}
    if request.pop("layout", False) and MEMBERS[member].program.matrices:
        parameters["state_layout"] = "(d_in, d_out)"
    fields = {"rule": "recurrence", "heads": 2, "seed": 3, "cotangent": True, **request}
    return new(Request(parameters=parameters, **fields), name=f"{member}-{kind}")


EVERY = [(member, kind) for member in MEMBERS for kind in KINDS]
