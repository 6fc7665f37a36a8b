"""The part of the JSON Schema about a TNT: keys, parameters and tensors (TNTCASE-2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from atlas_ref.oracle.subjects import tnt
from atlas_ref.oracle.tnt.parameters import KEYS, NAME, SET, Parameters
from atlas_ref.oracle.tnt.tensors import AXES, BAR, FIRST, HELD, SEQUENCE, STATE


def tnt_definitions() -> dict[str, Any]:
    """Definitions that the parameters refer to and no other key does."""
    found: dict[str, Any] = _schema()["$defs"]
    return {name: _without_text(each) for name, each in found.items()}


def _schema() -> dict[str, Any]:
    return Parameters.model_json_schema(by_alias=True)


def _without_text(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose description is its first paragraph, on one line."""
    text = " ".join(schema["description"].partition("\n\n")[0].split())
    return {**schema, "description": text}


def tnt_contract(keys: Iterable[str]) -> dict[str, Any]:
    """Constraints between the keys of a header, and the parameters (TNTCASE-2)."""
    parameters = {key: each for key, each in _schema().items() if key != "$defs"}
    some = [
        {"required": ["global"], "properties": {"global": {"type": "object"}}},
        {"required": ["locals"], "properties": {"locals": {"minItems": 1}}},
    ]
    own = {**_without_text(parameters), "anyOf": some}
    return {
        "if": {"properties": {"rule": {"const": NAME}}, "required": ["rule"]},
        "then": {
            "properties": {
                **dict.fromkeys((key for key in keys if key not in KEYS), False),
                "level": {"const": "projected"},
                "parameters": own,
                "convention": {"properties": dict.fromkeys(SET, False)},
            },
            "required": ["parameters"],
        },
    }


def tnt_table() -> dict[str, Any]:
    """Tensors of a TNT: axes, and what stands in when absent (TNTCASE-3)."""
    table = {f"in/{name}": {"axes": each.axes, "need": each.need} for name, each in AXES.items()}
    table |= {name: {"axes": each.axes, "need": each.need} for name, each in SEQUENCE.items()}
    table |= {
        f"in/MEMORY/{name}": {"axes": each.axes, "need": f"in/{name}"}
        for name, each in AXES.items()
    }
    for name, axes in FIRST.items():
        front = "leading axes in front broadcast against those of in/k"
        table[f"in/MEMORY/{name}"] = {"axes": f"{axes}; {front}", "need": "0"}
    for name, axes in HELD.items():
        table[f"{STATE}MEMORY/{name}"] = {"axes": axes, "need": "with in/state/position"}
    for name in ("M", "S"):
        table[f"{BAR}MEMORY/{name}"] = {"axes": HELD[name], "need": "0"}
    return {"inputs": table, "clauses": dict(tnt.CLAUSES)}
