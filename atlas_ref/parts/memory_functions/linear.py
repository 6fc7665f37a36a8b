"""The linear memory, M(x) = W x.

Specified in specs/memory_functions.md (MEMFUN-1).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from atlas_ref.parts.memory_functions.function import MemoryFunction
from atlas_ref.parts.memory_functions.products import outer_sum, rows
from atlas_ref.types import Array


def tensors(f: MemoryFunction, d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    return {"W": (d_out, d_in)}


def fast(f: MemoryFunction) -> tuple[str, ...]:
    return ("W",)


def initial(
    f: MemoryFunction, name: str, shape: tuple[int, ...], draw: np.random.Generator
) -> Array:
    return np.zeros(shape)


def forward(f: MemoryFunction, p: Any, x: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    return {"y": rows(p["W"], x)}, {}


def inside(f: MemoryFunction, p: Any, x: Array) -> tuple[dict[str, Array], dict[str, Array]]:
    return {}, {}


def gradient(
    f: MemoryFunction,
    p: Any,
    x: Array,
    gy: Array,
    wanted: Set[str],
    needs_input: bool,
    value: Any,
    kept: Any,
) -> tuple[dict[str, Array], Array | None]:
    found = {"W": outer_sum(gy, x)} if "W" in wanted else {}
    return found, (gy @ p["W"] if needs_input else None)
