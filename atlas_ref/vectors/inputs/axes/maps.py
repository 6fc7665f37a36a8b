"""Targets of feature maps that came after the first sets (VEC-25)."""

from __future__ import annotations

from typing import Any

from atlas_ref.vectors.inputs.axes.memories import LINEAR, WITHOUT
from atlas_ref.vectors.inputs.target import Target
from atlas_ref.vectors.inputs.topics import ROWS

SKETCH: dict[str, Any] = {"kind": "tensor_sketch"}
FROZEN: dict[str, Any] = {"kind": "random_fourier", "learned": False}

#: Buckets of a sketch and columns of its projection; features of the other map.
FEATURES = 4


def _of_map(name: str, settings: dict[str, Any]) -> Target:
    fields = {"rule": "feature_map", "feature_map": settings, "features": FEATURES}
    return Target(f"feature_map-{name}", fields, ROWS, longer=(), later=True, always=("rows",))


def _of_memory(name: str, settings: dict[str, Any]) -> Target:
    fields = {"rule": "omega", "window": 2, "convention": LINEAR, "feature_map": settings}
    more = {"features": FEATURES}
    return Target(f"omega-{name}", fields | more, without=WITHOUT, longer=(), later=True)


MAPS = (
    _of_map("tensor_sketch", SKETCH),
    _of_map("tensor_sketch-3", SKETCH | {"degree": 3}),
    _of_map("tensor_sketch-frozen", SKETCH | {"learned": False}),
    _of_map("random_fourier-frozen", FROZEN),
    _of_memory("tensor_sketch", SKETCH),
    _of_memory("random_fourier-frozen", FROZEN),
)
