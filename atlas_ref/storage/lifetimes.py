"""Parameters, states and contexts in one file format: tensors, and their structure as JSON.

Specified in specs/lifetimes.md.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref import backend
from atlas_ref.messages import first_problem, meant, shown
from atlas_ref.storage import files
from atlas_ref.storage.json_text import DEEPEST, LONGEST, decoded
from atlas_ref.types import Frozen, read_only
from tape import plain

#: Metadata key of the JSON object, and its version (LIFE-3).
KEY, SCHEMA = "atlas_ref_lifetimes", 1

#: Kinds of data by how long they live (LIFE-1).
KINDS = ("params", "state", "context")

#: Packages of ours whose data a file may hold; none of them does anything when it is imported.
PACKAGES = re.compile(
    r"atlas_ref\.(parts|rules|forms|levels|layers|blocks|models|optim)(\.[a-z]\w*)*"
)


class Held(NamedTuple):
    """What one file holds, by how long it lives (LIFE-1); None for what it does not hold.

    Attributes:
        params: outer parameters, which an outer step alone changes.
        state: inner state, which tokens change, of one sequence.
        context: all that one call hands to the next.
    """

    params: Any = None
    state: Any = None
    context: Any = None


def save(path: str | os.PathLike[str], held: Held) -> None:
    """Write parameters, a state, a context whole or not at all (LIFE-2 to LIFE-4).

    Raises:
        ValueError: nothing to write, what is no data, or a place that cannot be written.
    """
    try:
        if all(each is None for each in held):
            raise ValueError(f"one of {', '.join(KINDS)} is needed, found none")
        header, tensors = packed(held)
        files.write(path, sealed(header, tensors), tensors)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def load(path: str | os.PathLike[str]) -> Held:
    """What a file holds, checked as when it was made (LIFE-5).

    Checkpoints of training are such files too (TRAIN-12).

    Raises:
        ValueError: names the file, and the key, part or tensor that is wrong.
    """
    try:
        metadata, tensors = files.read(
            path, "is a folder, a file of parameters or states is needed"
        )
        parts = header_of(metadata, tensors)["parts"]
        return Held(**{kind: rebuilt(parts[kind], tensors, kind) for kind in parts})
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def packed(held: Held) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON object of some data, and its tensors by name (LIFE-2, LIFE-3).

    Raises:
        ValueError: names the place of what is neither data nor a number, or what `load` would not
            read.
    """
    tensors: dict[str, Any] = {}
    try:
        parts = {
            kind: described(value, tensors, kind)
            for kind, value in held._asdict().items()
            if value is not None
        }
        header = {"schema": SCHEMA, "parts": parts}
        decoded(json.dumps(header))
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from None
    return header, tensors


def sealed(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a file: its JSON object with the digest (LIFE-4)."""
    return {KEY: json.dumps({**header, "digest": digest(header, tensors)})}


def header_of(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a file, without its digest (LIFE-3, LIFE-5).

    Raises:
        ValueError: no such object, one of another version, or not what was written.
    """
    if KEY not in metadata:
        raise ValueError(f"metadata key {KEY!r}: missing, it says what the tensors are")
    header = decoded(metadata[KEY])
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        found = header.get("schema") if isinstance(header, dict) else header
        raise ValueError(f"schema: {SCHEMA} is needed, found {shown(found)}")
    if header.pop("digest", None) != digest(header, tensors):
        raise ValueError("digest: not that of what is in the file, which was damaged or changed")
    parts = header.get("parts")
    if not isinstance(parts, dict) or not parts:
        raise ValueError(f"parts: an object is needed, found {shown(parts)}")
    for kind in parts:
        if kind not in KINDS:
            raise ValueError(
                f"parts.{kind}: one of {', '.join(KINDS)} is needed{meant(kind, KINDS)}"
            )
    return header


def digest(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> str:
    """SHA-256 of a file's JSON object and tensors, by name (LIFE-4, TRAIN-12)."""
    seen = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        seen.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        seen.update(array.reshape(-1).view(np.uint8).data)
    return seen.hexdigest()


# -- structure -------------------------------------------------------------------------------------


def described(value: Any, tensors: dict[str, Any], place: str) -> Any:
    """A nest as JSON, its arrays put into `tensors` by their places (LIFE-2).

    Raises:
        ValueError: names the place of what is neither data nor a number.
    """
    return _described(value, tensors, place, "/")


def _described(value: Any, tensors: dict[str, Any], place: str, mark: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        _check_number(value, place)
        return {"value": value}

    def below(name: str, each: Any) -> Any:
        return _described(each, tensors, f"{place}{mark}{name}", ".")

    if isinstance(value, Frozen):
        return {"of": _name(value, place), "fields": _fields(vars(value), below)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"of": _name(value, place), "fields": _fields(value._asdict(), below)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{place}: key {shown(key)}, a word is needed")
        return {"dict": _fields(value, below)}
    if isinstance(value, tuple | list):
        word = "tuple" if isinstance(value, tuple) else "list"
        return {word: [below(str(i), each) for i, each in enumerate(value)]}
    if isinstance(getattr(value := plain(value), "dtype", None), np.dtype):
        if place in tensors:
            raise ValueError(f"{place}: two tensors have this name, a key must have no dot")
        tensors[place] = files.storable(place, backend.of(value).to_host(value))
        return {"tensor": place}
    raise ValueError(f"{place}: {type(value).__name__} is no data")


def _check_number(value: Any, place: str) -> None:
    """Refuse a number that JSON does not have, or that no reader takes (LIFE-2)."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place}: {value}, a finite number is needed")
    if isinstance(value, int) and not -(10 ** (LONGEST - 1)) < value < 10**LONGEST:
        raise ValueError(f"{place}: a whole number of at most {LONGEST} digits is needed")


def _fields(inside: Mapping[str, Any], below: Callable[[str, Any], Any]) -> dict[str, Any]:
    return {name: below(name, each) for name, each in inside.items()}


def _name(value: Any, place: str) -> str:
    kind = type(value)
    if not PACKAGES.fullmatch(kind.__module__):
        raise ValueError(f"{place}: {kind.__module__}.{kind.__qualname__} is no data of a memory")
    return f"{kind.__module__}:{kind.__qualname__}"


def rebuilt(structure: Any, tensors: Mapping[str, Any], place: str) -> Any:
    """The nest of `described`, each part of it checked as when it was made (LIFE-5).

    Raises:
        ValueError: names the place of a structure of another version, or of what contradicts
            itself.
    """
    try:
        return _rebuilt(structure, tensors, place)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{place}: not one of this version: {error}") from None


def _rebuilt(structure: Any, tensors: Mapping[str, Any], place: str) -> Any:
    if "value" in structure:
        return structure["value"]
    if "tensor" in structure:
        name = structure["tensor"]
        if name not in tensors:
            raise ValueError(f"{name}: no such tensor in the file")
        return read_only(backend.current().from_host(np.array(tensors[name])))
    for word, kind in (("tuple", tuple), ("list", list)):
        if word in structure:
            own = enumerate(structure[word])
            return kind(_rebuilt(each, tensors, f"{place}.{i}") for i, each in own)
    inside = structure["dict"] if "dict" in structure else structure["fields"]
    fields = {name: _rebuilt(each, tensors, f"{place}.{name}") for name, each in inside.items()}
    if "dict" in structure:
        return fields
    try:
        return _class(structure["of"])(**fields)
    except ValidationError as error:
        raise ValueError(f"{place}.{first_problem(error)}") from None


def _class(name: str) -> Any:
    """A class of ours that is data; nothing else is ever called (LIFE-5)."""
    module, _, own = name.partition(":")
    if not PACKAGES.fullmatch(module):
        raise KeyError(name)
    try:
        kind: Any = importlib.import_module(module)
    except ImportError:
        raise KeyError(name) from None
    for part in own.split("."):
        kind = getattr(kind, part)
    is_data = isinstance(kind, type) and (
        issubclass(kind, Frozen) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
    if not is_data or kind.__module__ != module:
        raise KeyError(name)
    return kind
