"""The part of the JSON Schema about layers: their keys, parameters and tensors (LAYER-2, LAYER-3)."""

from __future__ import annotations

from typing import Any

from atlas_ref.models.atlas_rnn import Called
from atlas_ref.oracle.cases.header import Header
from atlas_ref.oracle.cases.tensor_spec import LAYER, Tensor
from atlas_ref.oracle.subjects.layer import ENTRIES, KEYS, table
from atlas_ref.oracle.subjects.layers import Entry

#: Tokens of each call, of a layer that may be called several times.
CALLS: dict[str, Any] = {
    "anyOf": [
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
        {"type": "null"},
    ],
    "description": "tokens of each call; one call where absent",
}


def layer_contracts() -> list[dict[str, Any]]:
    """Constraints between the keys of a layer, and its parameters (LAYER-2)."""
    keys = [field.alias or name for name, field in Header.model_fields.items()]
    is_layer = {"properties": {"rule": {"const": LAYER}}, "required": ["rule"]}
    return [
        {
            "if": is_layer,
            "then": {
                "required": ["layer", "parameters"],
                "properties": {
                    **dict.fromkeys((key for key in keys if key not in KEYS), False),
                    "layer": {"type": "string"},
                    "parameters": {"type": "object"},
                },
            },
            "else": {"properties": {"layer": False}},
        },
        *(
            {
                "if": {
                    "properties": {"rule": {"const": LAYER}, "layer": {"const": name}},
                    "required": ["rule", "layer"],
                },
                "then": {"properties": {"parameters": _parameters(entry)}},
            }
            for name, entry in ENTRIES.items()
        ),
    ]


def _parameters(entry: Entry) -> dict[str, Any]:
    """JSON Schema of constructor arguments, and of how the layer was called."""
    own = entry.module.settings.model_json_schema()
    own["description"] = " ".join(own["description"].partition("\n\n")[0].split())
    if issubclass(entry.module.settings, Called):
        own["properties"]["calls"] = CALLS
    return own


def layer_tables() -> dict[str, dict[str, Any]]:
    """Tensors and results of every layer: axes, and what stands in when absent (LAYER-3)."""
    return {
        name: {
            "inputs": {
                key: {"axes": each.axes, "need": each.need} for key, each in _inputs(entry).items()
            },
            "clauses": dict(entry.clauses),
        }
        for name, entry in ENTRIES.items()
    }


def _inputs(entry: Entry) -> dict[str, Tensor]:
    return table(entry, None)
