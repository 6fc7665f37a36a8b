"""The part of the JSON Schema about rules whose settings are parameters: keys and tensors.

Specified in DEEPCASE-2, TNTCASE-2, DPLRCASE-2, RECUR-5 and SCHED-7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atlas_ref.forms.dplr import FORMS
from atlas_ref.oracle.cases.header import SHARED_FORMS
from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.deep import parameters as of_deep
from atlas_ref.oracle.deep import tensors as deep
from atlas_ref.oracle.dplr import parameters as of_dplr
from atlas_ref.oracle.dplr import tensors as dplr
from atlas_ref.oracle.dplr.members import MEMBERS
from atlas_ref.oracle.recurrences import members as recurrences
from atlas_ref.oracle.recurrences import parameters as of_recurrence
from atlas_ref.oracle.serving import parameters as of_schedule
from atlas_ref.oracle.subjects import deep_memory
from atlas_ref.oracle.subjects import tnt as tnt_subject
from atlas_ref.oracle.tnt import parameters as of_tnt
from atlas_ref.oracle.tnt import tensors as tnt
from atlas_ref.rules.deep_memory.config import LEGAL

#: Parameters of one memory at least.
SOME = [
    {"required": ["global"], "properties": {"global": {"type": "object"}}},
    {"required": ["locals"], "properties": {"locals": {"minItems": 1}}},
]


def definitions() -> dict[str, Any]:
    """Definitions that the parameters of these rules refer to and no other key does."""
    own = of_deep.Parameters.model_json_schema()["$defs"]
    found = {name: own[name] for name in ("Bias", "DeepMomentum", "MemoryFunction", "Retention")}
    found |= of_tnt.Parameters.model_json_schema(by_alias=True)["$defs"]
    return {name: _in_one_line(each) for name, each in found.items()}


def contracts(keys: Iterable[str]) -> list[dict[str, Any]]:
    """Constraints between the keys of a header, and the parameters of each rule.

    Args:
        keys: of any header.
    """
    every = list(keys)
    axes = {axis: {"enum": list(values)} for axis, values in LEGAL.items() if axis != "argument"}
    newton_schulz = {"properties": {"argument": {"enum": list(LEGAL["argument"])}}}
    memories = {**_in_one_line(_parameters(of_tnt)), "anyOf": SOME}
    of_deep_memory = {
        "parameters": {"anyOf": [_in_one_line(_parameters(of_deep)), {"type": "null"}]},
        "convention": {"properties": {**axes, "newton_schulz": newton_schulz}},
    }
    of_memories = {
        "parameters": memories,
        "convention": {"properties": dict.fromkeys(of_tnt.SET, False)},
    }
    words = "settings of a case of rule dplr; what is left out is the member's"
    linear = {
        "form": {"enum": list(FORMS)},
        "parameters": {"anyOf": [_parameters(of_dplr) | {"description": words}, {"type": "null"}]},
    }
    words = "the member of rule recurrence, and its settings"
    member = {
        "form": {"const": "sequential"},
        "parameters": _parameters(of_recurrence) | {"description": words},
    }
    words = "the member of rule schedule, its sizes, and the steps of the server"
    served = {"parameters": _parameters(of_schedule) | {"description": words}}
    others = {"properties": {"form": {"enum": list(SHARED_FORMS)}}}
    return [
        _contract("deep_memory", every, of_deep.KEYS, of_deep_memory),
        _contract(of_tnt.NAME, every, of_tnt.KEYS, of_memories, required=True),
        {**_contract("dplr", every, of_dplr.KEYS, linear), "else": others},
        _contract("recurrence", every, of_recurrence.KEYS, member, required=True),
        _contract("schedule", every, of_schedule.KEYS, served, required=True),
    ]


def _contract(
    rule: str,
    keys: Iterable[str],
    own: Iterable[str],
    properties: Mapping[str, Any],
    *,
    required: bool = False,
) -> dict[str, Any]:
    """What a case of a rule has under its own keys, and nothing under others."""
    then: dict[str, Any] = {
        "properties": {
            **dict.fromkeys((key for key in keys if key not in own), False),
            "level": {"const": "projected"},
            **properties,
        }
    }
    return {
        "if": {"properties": {"rule": {"const": rule}}, "required": ["rule"]},
        "then": then | ({"required": ["parameters"]} if required else {}),
    }


def _parameters(of: Any) -> dict[str, Any]:
    schema: dict[str, Any] = of.Parameters.model_json_schema(by_alias=True)
    return {key: each for key, each in schema.items() if key != "$defs"}


def _in_one_line(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose description is its first paragraph, on one line."""
    text = " ".join(schema["description"].partition("\n\n")[0].split())
    return {**schema, "description": text}


def tables() -> dict[str, Any]:
    """Tensors of each of these rules: axes, and what stands in when one is absent."""
    names = {name: dplr.names(of_dplr.Parameters(member=name)) for name in MEMBERS}
    names["none"] = dplr.names(of_dplr.Parameters())
    members = {
        name: {"needs": sorted(needed), "may": sorted(free)}
        for name, (needed, free) in names.items()
    }
    return {
        "x-deep-memory": {"inputs": _deep(), "clauses": dict(deep_memory.CLAUSES)},
        "x-tnt": {"inputs": _memories(), "clauses": dict(tnt_subject.CLAUSES)},
        "x-dplr": {"inputs": rows(dplr.TENSORS), "members": members},
        "x-recurrence": {
            name: {
                "inputs": rows(member.program.tensors),
                "settings": [each.name for each in member.program.settings],
            }
            for name, member in recurrences.MEMBERS.items()
        },
    }


def rows(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Axes of each tensor, and what stands in when it is absent."""
    return {name: {"axes": each.axes, "need": each.need} for name, each in tensors.items()}


def _deep() -> dict[str, Any]:
    """Tensors of a deep memory; NAME is one of its function (DEEPCASE-3)."""
    own = {f"{deep.MEMORY}NAME": Tensor(deep.OWN)}
    for prefix, need in ((deep.STATE, "its beginning"), (deep.BAR, "0")):
        own |= {f"{prefix}{kind}/NAME": Tensor(deep.OF_ROWS, need) for kind in deep.KINDS}
    return rows({**deep.SEQUENCE, **own})


def _memories() -> dict[str, Any]:
    """Tensors of a TNT; MEMORY is one of them (TNTCASE-3)."""
    front = "leading axes in front broadcast against those of in/k"
    own = {f"in/MEMORY/{name}": Tensor(each.axes, f"in/{name}") for name, each in tnt.AXES.items()}
    own |= {
        f"in/MEMORY/{name}": Tensor(f"{axes}; {front}", "0") for name, axes in tnt.FIRST.items()
    }
    need = "with in/state/position"
    own |= {f"{tnt.STATE}MEMORY/{name}": Tensor(axes, need) for name, axes in tnt.HELD.items()}
    own |= {f"{tnt.BAR}MEMORY/{name}": Tensor(tnt.HELD[name], "0") for name in ("M", "S")}
    return rows({**tnt.SHARED, **own})
