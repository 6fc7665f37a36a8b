"""The published JSON Schema of a case's header, and the table of its tensors."""

from __future__ import annotations

from typing import Any, get_args

from atlas_ref.conventions import PRESETS, Convention
from atlas_ref.oracle.cases.files import KEY
from atlas_ref.oracle.cases.header import RESERVED, Header
from atlas_ref.oracle.cases.tensor_spec import BLOCK, SEQUENCE_KEYS, last_of
from atlas_ref.oracle.cases.tensors import COTANGENTS, RESULTS, bare
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schema import rules
from atlas_ref.oracle.schema.layers import layer_contracts, layer_tables
from atlas_ref.oracle.sequences.checks import TENSORS as OF_SEQUENCES
from atlas_ref.oracle.subjects.levels.learned import GATES
from atlas_ref.oracle.subjects.memory_tensors import COMPUTED_AT_TOKEN, PROJECTED, TOKEN, rules_with
from atlas_ref.oracle.subjects.subject import Subject
from atlas_ref.parts import feature_maps, window
from atlas_ref.rules import FAMILY, names_with


def case_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the header; `x-tensors` lists names, axes, need and range of the
    tensors.
    """
    header = Header.model_json_schema(by_alias=True)
    axes = Convention.model_json_schema()
    definitions = {**header.pop("$defs", {}), **axes.pop("$defs", {})}
    properties = {name: _without_default(field) for name, field in axes["properties"].items()}
    properties["newton_schulz"] = {"anyOf": [{"$ref": "#/$defs/NewtonSchulz"}, {"const": "none"}]}
    properties["query_scale"] = {"enum": [1, "1/sqrt(d_in)"]}
    definitions["Convention"] = {
        "type": "object",
        "additionalProperties": False,
        "description": "axes with values; `preset` says what they change",
        "properties": {"preset": {"enum": list(PRESETS)}, **properties},
    }
    for definition in (header, *definitions.values()):
        if "description" in definition:
            definition["description"] = _joined_lines(definition["description"])
    for definition in definitions.values():
        if "kind" in definition["properties"]:
            definition["required"] = ["kind", *definition.get("required", [])]
    definitions["Product"]["properties"]["of"]["minItems"] = 1
    definitions["NewtonSchulz"]["properties"]["coefficients"]["anyOf"][1]["minItems"] = 1
    convention = {
        "anyOf": [{"enum": list(PRESETS)}, {"$ref": "#/$defs/Convention"}],
        "default": "spec",
    }
    for own in (header, definitions["LevelHeader"]):
        own["properties"]["convention"] = convention
    definitions |= rules.definitions()
    definitions["LevelHeader"]["allOf"] = [_plain_rules(), _window_weights()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **header,
        "title": f"the JSON object under the metadata key {KEY!r} of a case file, schema 1",
        "allOf": _contracts(),
        "$defs": definitions,
        "x-tensors": tensor_table(),
        "x-layers": layer_tables(),
        **rules.tables(),
        "x-sequences": {
            "inputs": rules.rows(OF_SEQUENCES),
            "states": (
                "beside in/sequences, every first state, its gradient, every last state and its "
                "cotangent have N in front of their axes"
            ),
        },
        "x-levels": {
            "inputs": (
                "rule cms: in/levelN/NAME for every in/NAME that level N has at level token, but "
                "in/x, in/active, in/reset, in/y_bar"
            ),
            "results": (
                "rule cms: out/y, and out/levelN/NAME for every other out/NAME of level N; "
                "gradients likewise"
            ),
        },
    }


def _joined_lines(docstring: str) -> str:
    """A docstring with every paragraph, and every entry of its sections, on one line."""
    lines: list[str] = []
    for line in docstring.split("\n"):
        depth = len(line) - len(line.lstrip())
        within = lines and lines[-1].strip() and not lines[-1].endswith(":") and line.strip()
        if within and (depth == 0 or depth > 4):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return "\n".join(lines)


def _when(condition: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {
        "if": {"properties": condition, "required": list(condition)},
        "then": {"properties": properties},
    }


NO_NEWTON_SCHULZ: dict[str, Any] = {"properties": {"newton_schulz": {"const": "none"}}}
IDENTITY: dict[str, Any] = {"properties": {"kind": {"const": "identity"}}}


def _contracts() -> list[dict[str, Any]]:
    """Constraints between keys, as far as JSON Schema can state them (CASE-2, CASE-16, CASE-31)."""
    keys = [field.alias or name for name, field in Header.model_fields.items()]
    alone = {name: subject for name, subject in SUBJECTS.items() if not subject.has_tokens}
    parametrised = [name for name, subject in SUBJECTS.items() if subject.has_parameters]
    one = [name for name, each in SUBJECTS.items() if not each.has_levels and not each.keys]
    supported = {"rule": {"not": {"enum": [*RESERVED, *parametrised]}}}
    of_block = ("window", "span", "phase", "convention", "feature_map", "window_weights")
    return [
        _when(
            {"rule": {"enum": list(alone)}},
            **dict.fromkeys(SEQUENCE_KEYS, False),
        ),
        _plain_rules(),
        *(_without_tokens(subject) for subject in alone.values()),
        {
            "if": {
                "properties": {"window_weights": {"type": "object"}},
                "required": ["window_weights"],
            },
            "then": {"properties": {"level": {"const": "token"}}, "required": ["level"]},
        },
        _when({"level": {"const": "token"}}, gate_axis={"type": "null"}),
        _when(supported, parameters={"type": "null"}),
        *layer_contracts(),
        *rules.contracts(keys),
        _when(
            {"rule": {"enum": list(FAMILY)}},
            schedule={"anyOf": [{"type": "null"}, {"required": ["level"], **_of_one_level()}]},
        ),
        _when(
            {"rule": {"enum": one}},
            levels=False,
            combine=False,
            nested=False,
        ),
        {
            **_when({"rule": {"const": BLOCK}}),
            "then": {
                "properties": {
                    "level": {"const": "token"},
                    "levels": {"type": "array"},
                    "schedule": {"type": "object", "properties": {"level": {"type": "null"}}},
                    **dict.fromkeys(of_block, False),
                },
                "required": ["level", "levels", "schedule"],
            },
        },
        {
            **_when({"rule": {"const": BLOCK}, "combine": {"const": "masked"}}),
            "then": {
                "properties": {
                    "schedule": {
                        "properties": {
                            "periods": {"contains": {"const": 1}},
                            "learned": {"type": "null"},
                        }
                    }
                }
            },
        },
        _levels_constraint(),
    ]


def _levels_constraint() -> dict[str, Any]:
    """Constraint of nested levels: periods that differ, and no gates in their place (CASE-36)."""
    periods = {"minItems": 2, "uniqueItems": True}
    return _when(
        {"rule": {"const": BLOCK}, "nested": {"const": True}},
        schedule={"properties": {"periods": periods, "learned": {"type": "null"}}},
    )


def _without_tokens(subject: Subject) -> dict[str, Any]:
    """Constraint of a subject without tokens: no map, or no Newton-Schulz, or never without it."""
    some = {"not": {"type": "object", "required": ["newton_schulz"], **NO_NEWTON_SCHULZ}}
    return _when(
        {"rule": {"const": subject.name}},
        **({} if subject.has_feature_map else {"feature_map": IDENTITY}),
        convention=some if subject.needs_newton_schulz else NO_NEWTON_SCHULZ,
    )


def _of_one_level() -> dict[str, Any]:
    return {"properties": {"level": {"type": "integer"}, "learned": {"type": "null"}}}


def _plain_rules() -> dict[str, Any]:
    """Constraint of every rule but omega: one token, no map and no Newton-Schulz."""
    plain = {"rule": {"enum": [name for name, rule in FAMILY.items() if not rule.has_window]}}
    return _when(
        plain,
        window={"const": 1},
        feature_map=IDENTITY,
        convention=NO_NEWTON_SCHULZ,
        window_weights={"type": "null"},
    )


def _window_weights() -> dict[str, Any]:
    names = names_with("has_window")
    return _when(
        {"window_weights": {"type": "object"}},
        rule={"const": names[0]} if len(names) == 1 else {"enum": list(names)},
    )


def _without_default(field: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key != "default"}


def tensor_table() -> dict[str, dict[str, Any]]:
    """Every input tensor: its axes, the rules that have it, the level, what stands in when absent,
    its range.
    """
    table: dict[str, dict[str, Any]] = {}
    for level, entries in (("projected", PROJECTED), ("token", TOKEN)):
        for name, (fact, tensor) in entries.items():
            rules = fact if fact == "all" else " ".join(rules_with(fact))
            both = level == "projected" and name not in COMPUTED_AT_TOKEN
            axes = "... T, or ... T d_out" if tensor.axes == "gate" else tensor.axes
            table[name] = {
                "level": "projected, token" if both else level,
                "rules": rules,
                "axes": axes,
                "need": tensor.need,
            }
            table[name] |= {"dtype": "bool or uint8"} if tensor.mask else {}
            table[name] |= {
                key: value
                for key, value in (("least", tensor.low), ("greatest", tensor.high))
                if value is not None
            }
    for kind, names in window.TENSORS.items():
        for name, axes in names.items():
            table[f"in/param/{name}"] = {
                "level": "token",
                "rules": " ".join(names_with("has_window")),
                "axes": axes,
                "need": f"window_weights {kind}",
            }
    mapped = [name for name, subject in SUBJECTS.items() if subject.has_feature_map]
    for kind, names in feature_maps.TENSORS.items():
        for name, axes in names.items():
            key = "in/proj" if name == "proj" else f"in/phi/{name}"
            need = f"{table[key]['need']}, {kind}" if key in table else f"feature_map {kind}"
            table[key] = {
                "rules": " ".join(mapped),
                "axes": axes,
                "need": need,
            }
    table["in/logits"] = {"level": "token", "rules": BLOCK, "axes": "k", "need": "yes"}
    for name, axes in GATES.items():
        table[name] = {
            "level": "token",
            "rules": BLOCK,
            "axes": axes,
            "need": "schedule.learned",
        }
    for subject in SUBJECTS.values():
        for name, tensor in subject.tensors.items():
            if name in table:
                table[name]["rules"] += f" {subject.name}"
                table[name]["axes"] += f", or {tensor.axes} for {subject.name}"
            else:
                table[name] = {"rules": subject.name, "axes": tensor.axes, "need": tensor.need}
    for name in ("in/x", "in/reset", "in/y_bar"):
        table[name]["rules"] += f" {BLOCK}"
    return {
        name: {"dtype": "float64, float32, bfloat16 or float16", **entry}
        for name, entry in table.items()
    }


def result_names() -> set[str]:
    """Every result that some case has: `out/...`, and `grad/...` of every floating input but the
    cotangents.
    """
    inputs = {
        name.removeprefix("in/")
        for name, entry in tensor_table().items()
        if "bool" not in entry["dtype"] and name not in COTANGENTS
    }
    return {f"out/{name}" for name in RESULTS} | {f"grad/{name}" for name in inputs}


def is_result(name: str) -> bool:
    """Whether some case has a result of this name, in a level of a block too."""
    name = last_of(name)
    own = (subject.results for subject in SUBJECTS.values())
    return bare(name) in result_names() or any(each and each.fullmatch(name) for each in own)


def axis_values(axis: str) -> list[str]:
    """The legal values of a convention axis in words, the default first."""
    numbers = {
        "gradient_scale": ["1", "any number", "2/d_out"],
        "query_scale": ["1", "1/sqrt(d_in)"],
        "norm_eps": ["1e-06", "any number from 1e-15"],
        "memory_ceiling": ["none", "any number above 0"],
        "retain_bounds": ["none", "[least, greatest] within [0, 1]"],
        "step_bounds": ["none", "[least, greatest] from 0"],
    }
    if axis in numbers:
        return numbers[axis]
    if axis == "newton_schulz":
        rules = ", ".join(names_with("has_newton_schulz"))
        return [f"an object with settings ({rules})", "none (the other rules)"]
    return [str(value) for value in get_args(Convention.model_fields[axis].annotation)]
