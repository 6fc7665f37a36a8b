"""The part of the JSON Schema about deep memories: keys, parameters and tensors (DEEPCASE-2)."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.cases.header import Header
from atlas_ref.oracle.deep.parameters import KEYS, Parameters
from atlas_ref.oracle.deep.tensors import BAR, KINDS, MEMORY, OF_ROWS, OWN, SEQUENCE, STATE
from atlas_ref.oracle.subjects import deep_memory
from atlas_ref.rules.deep_memory.config import LEGAL


def deep_definitions() -> dict[str, Any]:
    """Definitions that the parameters refer to and no other key does."""
    own = Parameters.model_json_schema()["$defs"]
    return {
        name: _without_text(own[name])
        for name in ("Bias", "DeepMomentum", "MemoryFunction", "Retention")
    }


def _without_text(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose description is its first paragraph, on one line."""
    text = " ".join(schema["description"].partition("\n\n")[0].split())
    return {**schema, "description": text}


def deep_contract() -> dict[str, Any]:
    """Constraints between the keys of a deep memory, and its parameters (DEEPCASE-2)."""
    keys = [field.alias or name for name, field in Header.model_fields.items()]
    parameters = {
        key: each for key, each in Parameters.model_json_schema().items() if key != "$defs"
    }
    axes = {axis: {"enum": list(values)} for axis, values in LEGAL.items() if axis != "argument"}
    newton_schulz = {"properties": {"argument": {"enum": list(LEGAL["argument"])}}}
    return {
        "if": {
            "properties": {"rule": {"const": deep_memory.SUBJECT.name}},
            "required": ["rule"],
        },
        "then": {
            "properties": {
                **dict.fromkeys((key for key in keys if key not in KEYS), False),
                "level": {"const": "projected"},
                "parameters": {"anyOf": [_without_text(parameters), {"type": "null"}]},
                "convention": {"properties": {**axes, "newton_schulz": newton_schulz}},
            }
        },
    }


def deep_table() -> dict[str, dict[str, Any]]:
    """Tensors of a deep memory: axes, and what stands in when absent (DEEPCASE-3)."""
    table = {name: {"axes": each.axes, "need": each.need} for name, each in SEQUENCE.items()}
    table[f"{MEMORY}NAME"] = {"axes": OWN, "need": "yes"}
    for prefix, need in ((STATE, "its beginning"), (BAR, "0")):
        for kind in KINDS:
            table[f"{prefix}{kind}/NAME"] = {"axes": OF_ROWS, "need": need}
    return {"inputs": table, "clauses": dict(deep_memory.CLAUSES)}
