"""Points of a search as a header, an option and a reader have them.

Source: IDENT-6, IDENT-9.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atlas_ref.conventions import AXES
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.lattice import PREFIX


def as_header(name: str, changes: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """A preset's name and changes as the `convention` of a header."""
    if name == lattice.OWN:
        own = case.header.convention
        header: dict[str, Any] = {"preset": own} if isinstance(own, str) else dict(own)
    else:
        header = {"preset": name.removesuffix(lattice.WITHOUT)}
        header |= {"newton_schulz": "none"} if name.endswith(lattice.WITHOUT) else {}
    return with_changes(header, changes)


def with_changes(header: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A convention of a header with the changes of a point, keys of Newton-Schulz in its object."""
    inner = {
        axis.removeprefix(PREFIX): value
        for axis, value in changes.items()
        if axis.startswith(PREFIX)
    }
    header |= {axis: value for axis, value in changes.items() if axis in AXES and value != "object"}
    if inner or changes.get("newton_schulz") == "object":
        before = header.get("newton_schulz")
        header["newton_schulz"] = {**(before if isinstance(before, Mapping) else {}), **inner}
    return header


def says_nothing_new(changes: Mapping[str, Any], fits: set[frozenset[tuple[str, str]]]) -> bool:
    """Whether a combination of changes says nothing new.

    Without those of its changes that fit alone, nothing or another fit remains.
    """
    whole = frozenset((axis, repr(value)) for axis, value in changes.items())
    rest = frozenset(each for each in whole if frozenset([each]) not in fits)
    return len(whole) > 1 and rest != whole and (not rest or rest in fits)


def setting(changes: Mapping[str, Any]) -> str:
    """A convention or changes of one, as the option --convention takes them."""
    return " ".join(_option(axis, value) for axis, value in changes.items()) or "spec"


def _option(axis: str, value: Any) -> str:
    if axis == "preset":
        return str(value)
    if isinstance(value, Mapping):
        return (
            " ".join(f"{axis}.{key}={show_value(each)}" for key, each in value.items())
            or f"{axis}={{}}"
        )
    return f"{axis}={show_value(value)}"


def show_value(value: Any) -> str:
    """A value as an option takes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
