"""The JSON Schema of manifest.json, which knows every key: for readers in any language (VEC-8)."""

from __future__ import annotations

from typing import Any

WORD: dict[str, Any] = {"type": "string"}
WORDS = {"type": "array", "items": WORD}
NAME = {"type": "string", "pattern": "^[a-z0-9_]+(-[a-z0-9_]+)*$"}
COUNT = {"type": "integer", "minimum": 1}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(properties),
        "properties": properties,
    }


def _step(op: str, **properties: Any) -> dict[str, Any]:
    return _object(op={"const": op}, **properties)


PLACE = {"type": "array", "items": {"type": "integer", "minimum": 0}}
HEX = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
STEP = {
    "oneOf": [
        _step("set", key=WORD, value={}),
        _step("unset", key=WORD),
        _step(
            "put",
            tensor=WORD,
            dtype=WORD,
            shape=PLACE,
            values={"type": "array", "items": {"type": ["number", "boolean"]}},
        ),
        _step("drop", tensor=WORD),
        _step("entry", tensor=WORD, at=PLACE, value={"type": "number"}),
        _step("append", hex=HEX),
        _step("bytes", at={"type": "integer", "minimum": 0}, hex=HEX),
    ]
}


def manifest_schema() -> dict[str, Any]:
    """A JSON Schema, draft 2020-12."""
    vector = _object(
        name=NAME,
        file={**WORD, "description": "below this folder"},
        rule=WORD,
        target={**NAME, "description": "the rule under one convention"},
        topic={**NAME, "description": "shape and regime"},
        seed={"type": "integer", "minimum": 0},
        grad={"type": "boolean", "description": "whether gradients are recorded"},
        properties={**WORDS, "description": "what the numbers are able to show"},
        forms={
            "type": "array",
            "items": _object(form=WORD, chunk=COUNT),
            "description": "parallel forms with the same results",
        },
        splits={
            "type": "array",
            "items": COUNT,
            "description": "tokens before which the call may be cut in two",
        },
        kills=_object(float32=WORDS, bfloat16=WORDS)
        | {"description": "mutants that the vector rejects"},
    )
    negative = _object(
        name=NAME,
        file=WORD,
        code={**WORD, "description": "what is wrong"},
        about={**WORD, "description": "the tensor or key that a message names"},
        repair={
            "type": "array",
            "items": STEP,
            "minItems": 1,
            "description": "the least change that makes it a case that passes",
        },
    )
    schema = _object(
        format={"const": 1},
        set=NAME,
        version={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        values={"const": "certified"},
        vectors={"type": "array", "items": vector},
        negative={"type": "array", "items": negative},
        large={"type": "array", "items": _object(name=NAME, file=WORD, rule=WORD)},
        mutants={
            "type": "object",
            "additionalProperties": WORD,
            "description": "what somebody did who made the mistake",
        },
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a set of atlas-ref vectors",
        **schema,
    }
