"""States of models as named tensors and JSON, and back: any nest of frozen data.

Specified in specs/train.md (TRAIN-12).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.types import Frozen, read_only


def described(value: Any, tensors: dict[str, Any], place: str = "state") -> Any:
    """A nest as JSON, its arrays put into `tensors` by their places.

    Raises:
        ValueError: names the place of what is neither data nor a number.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, Frozen):
        return {"of": _name(value), "fields": _fields(vars(value), tensors, place)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"of": _name(value), "fields": _fields(value._asdict(), tensors, place)}
    if isinstance(value, dict):
        return {"dict": _fields(value, tensors, place)}
    if isinstance(value, tuple | list):
        word = "tuple" if isinstance(value, tuple) else "list"
        return {word: [described(each, tensors, f"{place}/{i}") for i, each in enumerate(value)]}
    if hasattr(value, "dtype"):
        tensors[place] = backend.of(value).to_host(value)
        return {"tensor": place}
    raise ValueError(f"{place}: {type(value).__name__} is no state")


def _fields(inside: Mapping[str, Any], tensors: dict[str, Any], place: str) -> dict[str, Any]:
    return {name: described(each, tensors, f"{place}/{name}") for name, each in inside.items()}


def _name(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def rebuilt(structure: Any, tensors: Mapping[str, Any]) -> Any:
    """The nest of `described`.

    Raises:
        ValueError: a structure of another program, or a tensor that is missing.
    """
    try:
        return _rebuilt(structure, tensors)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"state: not one of this version: {error}") from None


def _rebuilt(structure: Any, tensors: Mapping[str, Any]) -> Any:
    if "value" in structure:
        return structure["value"]
    if "tensor" in structure:
        return read_only(backend.current().from_host(np.array(tensors[structure["tensor"]])))
    for word, kind in (("tuple", tuple), ("list", list)):
        if word in structure:
            return kind(_rebuilt(each, tensors) for each in structure[word])
    if "dict" in structure:
        return {name: _rebuilt(each, tensors) for name, each in structure["dict"].items()}
    fields = {name: _rebuilt(each, tensors) for name, each in structure["fields"].items()}
    kind = _class(structure["of"])
    return kind.trusted(**fields) if issubclass(kind, Frozen) else kind(**fields)


def _class(name: str) -> Any:
    """A class of ours that is loaded already: a file names none that is not data."""
    module, _, own = name.partition(":")
    if module.partition(".")[0] != __name__.partition(".")[0]:
        raise KeyError(name)
    kind: Any = sys.modules[module]
    for part in own.split("."):
        kind = getattr(kind, part)
    if not isinstance(kind, type) or not (issubclass(kind, Frozen) or hasattr(kind, "_fields")):
        raise KeyError(name)
    return kind
