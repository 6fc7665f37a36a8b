"""The part of the JSON Schema about rule recurrence: keys, parameters and tensors (RECUR-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.oracle.recurrences.members import MEMBERS
from atlas_ref.oracle.recurrences.parameters import KEYS, Parameters


def recurrence_contract(keys: Sequence[str]) -> dict[str, Any]:
    """Constraints between the keys of a case of rule recurrence, and its parameters (RECUR-5).

    Args:
        keys: of any header.
    """
    parameters = Parameters.model_json_schema()
    parameters["description"] = "the member of rule recurrence, and its settings"
    return {
        "if": {"properties": {"rule": {"const": "recurrence"}}, "required": ["rule"]},
        "then": {
            "properties": {
                **dict.fromkeys((key for key in keys if key not in KEYS), False),
                "level": {"const": "projected"},
                "form": {"const": "sequential"},
                "parameters": parameters,
            },
            "required": ["parameters"],
        },
    }


def recurrence_table() -> dict[str, Any]:
    """Tensors of each member, and the settings that it has (RECUR-6)."""
    return {
        name: {
            "inputs": {
                key: {"axes": each.axes, "need": each.need}
                for key, each in member.program.tensors.items()
            },
            "settings": [each.name for each in member.program.settings],
        }
        for name, member in MEMBERS.items()
    }
