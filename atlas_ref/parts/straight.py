"""The straight-through substitute: a value whose cotangent goes to another value as it is."""

from __future__ import annotations

from atlas_ref.types import Array
from tape import opaque, ops


def _carried(source: Array, value: Array) -> Array:
    return source + ops.stop_gradient(value - source)


#: (source, value) -> the value; its cotangent goes to the source as it is (DEEP-20, CONV-67).
straight = opaque(
    _carried,
    lambda source, value: (value, None),
    lambda kept, g: (g, None),
    value=lambda source, value: value,
)
