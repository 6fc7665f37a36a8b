"""bfloat16 as storage: two bytes a number on the device, float32 arithmetic, by operations on whole
numbers alone.

A bfloat16 is the upper half of a float32. That half is stored as a uint16, so no library needs to
know the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Array = Any


def narrowed(x: Array) -> Array:
    """float32 -> its nearest bfloat16, ties to even, as uint16; finite numbers only."""
    bits = x.view("uint32")
    return ((bits + (((bits >> 16) & 1) + 0x7FFF).astype("uint32")) >> 16).astype("uint16")


def widened(stored: Array) -> Array:
    """The float32 that a stored bfloat16 is."""
    return (stored.astype("uint32") << 16).view("float32")


#: Inputs stored in it: all but the gates that are multiplied over many tokens.
STORED = ("k", "v", "q", "step_size", "step_size_memory")


def opened(held: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by name, with those that are stored as bfloat16 in float32."""
    return {name: widened(array) if name in STORED else array for name, array in held.items()}


def stored(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by name, with those that the format applies to as bfloat16."""
    return {name: narrowed(array) if name in STORED else array for name, array in arrays.items()}
