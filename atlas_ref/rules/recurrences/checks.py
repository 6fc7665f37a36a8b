"""Checks that the recurrences share: shapes, masks, finite numbers, and which tokens write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.rules.checks import check_one_precision, check_shapes, check_state_shape
from atlas_ref.types import Array, Dims, check_array

#: Name of an array -> the shape that it needs.
Shapes = Mapping[str, tuple[int, ...]]

MASKS = ("active", "reset")


class Events(NamedTuple):
    """For each token whether it writes, and whether a packed sequence starts there (RECUR-1)."""

    active: Any
    reset: Any


def check_call(tokens: Any, state: Any, T: int, *, needed: Shapes, states: Shapes) -> None:
    """Match arrays and masks of T tokens and the state with their shapes, in one precision.

    Args:
        needed, states: shapes of the arrays and of the state; the first array sets the precision.

    Raises:
        ValueError: names the array, its shape or precision, and what is needed.
    """
    shapes = {name: (shape,) for name, shape in needed.items()}
    arrays = check_shapes(tokens, shapes | dict.fromkeys(MASKS, ((T,),)))
    for name, shape in states.items():
        check_state_shape(name, getattr(state, name), shape)
    numbers = {name: value for name, value in arrays.items() if name not in MASKS}
    numbers |= {f"state.{name}": getattr(state, name) for name in states}
    check_one_precision(numbers, of=next(iter(needed)))


def of_last_axes(x: Array, lead: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The shape that parameters of heads need: a width, behind as many last axes of L as they have."""
    own = min(max(x.ndim - 1, 0), len(lead))
    return (*lead[len(lead) - own :], width)


def check_masks(tokens: Any) -> None:
    """Refuse a mask that is no row of bool.

    Raises:
        ValueError: names the mask and its dtype.
    """
    for name in MASKS:
        mask = getattr(tokens, name)
        if mask is not None and (getattr(mask, "dtype", None) != np.bool_ or mask.ndim != 1):
            found = getattr(mask, "dtype", type(mask).__name__)
            raise ValueError(f"{name}: {found}, expected bool (T,)")


def events(tokens: Any, T: int) -> Events:
    """The masks of T tokens; without one every token writes, and none starts a sequence (RECUR-1)."""
    return Events(
        np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active),
        np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset),
    )


def check_finite(tokens: Any, names: tuple[str, ...]) -> None:
    """Refuse a field that is no finite array.

    Raises:
        ValueError: names the field and what was found.
    """
    for name in names:
        check_array(name, getattr(tokens, name), Dims("..."))
