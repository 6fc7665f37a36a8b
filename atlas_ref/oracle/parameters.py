"""Checks of the header of a rule whose settings stand in the key `parameters`.

Specified in specs/deep_memory_cases.md (DEEPCASE-2), for other such rules too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from atlas_ref.messages import first_problem, meant


def check_keys(header: Any, keys: Iterable[str], moved: Mapping[str, str] = {}) -> None:
    """Refuse keys of other rules, and another level than projected.

    Args:
        keys: those that the rule has.
        moved: a key of ordinary cases -> where its value stands here.

    Raises:
        ValueError: names the key, and what stands in its place or which keys there are.
    """
    known = tuple(keys)
    for key in header.model_fields_set:
        name = key.rstrip("_")
        if name not in known:
            where = moved.get(name, f"it has {', '.join(known)}")
            raise ValueError(f"{name}: the rule {header.rule} has none; {where}")
    if header.level != "projected":
        raise ValueError(f"level: the rule {header.rule} has projected alone, found {header.level}")


def check_names(header: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """The parameters of a case, each of a name that its rule has.

    Raises:
        ValueError: names the parameter, and those that there are.
    """
    given: Mapping[str, Any] = header.parameters or {}
    known = tuple(names)
    for key in given:
        if key not in known:
            raise ValueError(
                f"parameters.{key}: the rule {header.rule} has none; it has {', '.join(known)}"
                f"{meant(key, known)}"
            )
    return given


def validate(model: type[BaseModel], given: Mapping[str, Any]) -> Any:
    """Parameters as a model has them, validated one by one.

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    try:
        return model.model_validate_json(json.dumps(given))
    except ValidationError as error:
        raise ValueError(f"parameters.{first_problem(error)}") from None
