"""What tensors tell of a public model's settings, and what our settings tell, as tables.

Specified in specs/language_model.md (MODEL-12).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Tensors = Mapping[str, Any]

#: A setting that is left to the arguments and the defaults.
UNTOLD: Any = object()


class Tell(NamedTuple):
    """A setting that a tensor tells by an axis, or by being there (MODEL-12).

    Attributes:
        tensor: its name, with the words of `facts` in braces; one that ends in a dot stands for all
            that begin so.
        axes: how many it has; 0 where its presence alone tells.
        axis: whose length tells.
        setting: (length or presence, settings so far, name of the tensor) -> the setting.
        absent: the setting where the tensor is missing; UNTOLD refuses that.
    """

    tensor: str
    axes: int = 0
    axis: int = 0
    setting: Callable[[Any, Mapping[str, Any], str], Any] = lambda value, known, name: value
    absent: Any = UNTOLD


class Fact(NamedTuple):
    """What tensors tell of a setting, and the tensor whose shape does; "" for none."""

    value: Any
    tensor: str = ""


#: Setting -> what tells it: a tensor, or a function of all tensors and of the settings so far.
Tells = Mapping[str, Tell | Callable[[Tensors, Mapping[str, Any]], Any]]


def facts(
    rows: Tells,
    tensors: Tensors,
    known: Mapping[str, Fact] | None = None,
    *,
    why: str = "its shape tells the settings",
    **words: str,
) -> dict[str, Fact]:
    """What tensors tell, row after row; contradictions are found by name afterwards (MODEL-12).

    Args:
        known: facts of other tables.
        why: a tensor is needed.
        words: that names of tensors have in braces.

    Raises:
        ValueError: a tensor that must tell a setting and is missing, or has other axes.
    """
    found = dict(known or {})
    for setting, row in rows.items():
        values = {name: fact.value for name, fact in found.items()}
        if not isinstance(row, Tell):
            fact = Fact(row(tensors, values))
        else:
            name = row.tensor.format(**words)
            if not row.axes:
                fact = Fact(row.setting(present(name, tensors), values, name))
            elif row.absent is not UNTOLD and name not in tensors:
                fact = Fact(row.absent)
            else:
                length = shape(tensors, name, row.axes, why)[row.axis]
                fact = Fact(row.setting(length, values, name), name)
        if fact.value is not UNTOLD:
            found[setting] = fact
    return found


def present(name: str, tensors: Tensors) -> bool:
    """Whether a tensor is there; with a dot at its end, whether one begins so."""
    return name in tensors or (name[-1] == "." and any(each.startswith(name) for each in tensors))


def layers(start: str) -> Callable[[Tensors, Mapping[str, Any]], int]:
    """The number of layers, as names of tensors that begin so have them."""
    number = re.compile(rf"{re.escape(start)}(\d+)\.")
    return lambda tensors, known: len(
        {found[1] for name in tensors if (found := number.match(name))}
    )


def shape(tensors: Tensors, name: str, axes: int, why: str) -> tuple[int, ...]:
    """The shape of a tensor that tells a setting.

    Raises:
        ValueError: it is missing, has other axes, or an empty one.
    """
    if name not in tensors:
        raise ValueError(f"{name}: missing; {why}")
    found = tuple(int(size) for size in tensors[name].shape)
    if len(found) != axes or 0 in found:
        raise ValueError(f"{name}: shape {found}, expected {axes} axes, none of them empty")
    return found


class Near(NamedTuple):
    """A setting that our settings tell (MODEL-12).

    Attributes:
        path: its place in our settings as JSON, with dots; of several, with a space between them,
            the first that is there.
        setting: (value there, all settings) -> the setting.
        absent: the setting where no such place is; UNTOLD leaves the default.
    """

    path: str
    setting: Callable[[Any, Any], Any] = lambda value, described: value
    absent: Any = UNTOLD


def read_off(rows: Mapping[str, Near], described: Any) -> dict[str, Any]:
    """The settings that our settings, as `checkpoint.described` has them, tell (MODEL-12)."""
    found = {}
    for name, row in rows.items():
        values = (value_at(described, path) for path in row.path.split())
        value = next((each for each in values if each is not UNTOLD), UNTOLD)
        value = row.absent if value is UNTOLD else row.setting(value, described)
        if value is not UNTOLD:
            found[name] = value
    return found


def value_at(described: Any, path: str) -> Any:
    """The value at a place of settings as JSON; UNTOLD where there is none, or null on the way."""
    for key in path.split("."):
        try:
            described = described[int(key) if key.isdigit() else key]
        except (KeyError, IndexError, TypeError):
            return UNTOLD
    return described
