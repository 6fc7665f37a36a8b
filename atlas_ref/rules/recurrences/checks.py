"""Checks that the recurrences share: logs of gates, shapes, and the tokens that write or start anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from atlas_ref.rules.checks import check_one_precision
from atlas_ref.types import Array, Dims, check_array, check_kind

#: Name of an array -> the shape that it needs.
Shapes = Mapping[str, tuple[int, ...]]


class Events(NamedTuple):
    """For each token whether it writes, and whether a packed sequence starts there (RECUR-1)."""

    active: Any
    reset: Any


def check_log(name: str, value: Any) -> None:
    """Refuse a log of a gate that is above 0 or no number; -inf is that of a gate of 0.

    Raises:
        ValueError: names the array and the rule.
    """
    logs = backend.host(check_kind(name, value))
    if not (np.real(logs) <= 0).all() or (np.imag(logs) * 0 != 0).any():
        raise ValueError(f"{name}: entries must be at most 0, -inf for a gate of 0")


def check_call(arrays: Mapping[str, Array], shapes: Shapes) -> None:
    """Match every array with the shape that it needs, and all of them with one precision.

    Raises:
        ValueError: names the array, its shape or precision, and what is needed.
    """
    for name, shape in shapes.items():
        if tuple(arrays[name].shape) != shape:
            raise ValueError(f"{name}: shape {tuple(arrays[name].shape)}, expected {shape}")
    first = next(iter(arrays.values()))
    check_one_precision({"k": first, **arrays})


def check_mask(name: str, mask: Any) -> None:
    """Refuse a mask that is no row of bool.

    Raises:
        ValueError: names the mask and its dtype.
    """
    if mask is not None and (getattr(mask, "dtype", None) != np.bool_ or mask.ndim != 1):
        raise ValueError(
            f"{name}: {getattr(mask, 'dtype', type(mask).__name__)}, expected bool (T,)"
        )


def events(tokens: Any, T: int) -> Events:
    """The masks of T tokens; without one every token writes, and none starts a sequence (RECUR-1).

    Raises:
        ValueError: a mask of another length.
    """
    for name in ("active", "reset"):
        mask = getattr(tokens, name)
        if mask is not None and mask.shape != (T,):
            raise ValueError(f"{name}: shape {mask.shape}, expected {(T,)}")
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
