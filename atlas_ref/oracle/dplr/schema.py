"""The part of the JSON Schema about rule dplr: keys, parameters and tensors (DPLRCASE-2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.forms.dplr import FORMS
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.dplr.parameters import KEYS, Parameters
from atlas_ref.oracle.dplr.tensors import TENSORS, names


def dplr_contract(keys: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """Constraints between the keys of a case of rule dplr, and its parameters (DPLRCASE-2).

    Args:
        keys: of any header.
        others: forms of other rules.
    """
    parameters = Parameters.model_json_schema()
    parameters["description"] = "settings of a case of rule dplr; what is left out is the member's"
    return {
        "if": {"properties": {"rule": {"const": "dplr"}}, "required": ["rule"]},
        "then": {
            "properties": {
                **dict.fromkeys((key for key in keys if key not in KEYS), False),
                "level": {"const": "projected"},
                "form": {"enum": list(FORMS)},
                "parameters": {"anyOf": [parameters, {"type": "null"}]},
            }
        },
        "else": {"properties": {"form": {"enum": list(others)}}},
    }


def dplr_table() -> dict[str, Any]:
    """Tensors of rule dplr, and by member those that it needs and may have (DPLRCASE-4)."""
    of = {name: names(Parameters(member=name)) for name in MEMBERS} | {"none": names(Parameters())}
    return {
        "inputs": {name: {"axes": each.axes, "need": each.need} for name, each in TENSORS.items()},
        "members": {
            name: {"needs": sorted(needed), "may": sorted(free)}
            for name, (needed, free) in of.items()
        },
    }
