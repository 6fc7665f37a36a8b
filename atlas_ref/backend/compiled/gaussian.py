"""The normal distribution and its density by compiled code, one pass over numbers; plain twins:
those of `atlas_ref.parts.memory_functions.gaussian`.

Target: a neural memory in at most 0.7 of the time of titans-pytorch (`benchmarks.deep`), of which
it takes 0.8 without these loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from atlas_ref.backend.compiled.lanes import on_disk
from atlas_ref.backend.compiled.rows import by_sign, exponential, part_of, put_part
from atlas_ref.types import Array

DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def compiled_for(kind: np.dtype[Any], name: str) -> Callable[..., None]:
    """The function of that name for a dtype, normal for float32 alone."""
    number = numba.from_dtype(kind)
    x = numba.types.Array(number, 1, "C", readonly=True)
    to = numba.types.Array(number, 1, "C")
    if name == "normal":
        return on_disk(normal, (x, x, to))
    return on_disk(density, (x, to))


def normal(c: Array, a: Array, y: Array) -> None:
    """exp(-u) / 2 where a is below 0, else 1 - exp(-u) / 2, with u = sum_i c_i |a|^i.

    Args:
        c (8,): c_1 to c_8.
        a, y (n,): n a multiple of a vector's numbers.
    """
    for at in range(0, len(a), 64 // a.itemsize):
        x = part_of(a, at)
        v = by_sign(x, x * -1, x)
        u = v * c[7]
        for i in range(6, -1, -1):
            u = (u + c[i]) * v
        half = exponential(u * -1) * 0.5
        put_part(y, at, by_sign(x, half, half * -1 + 1))


def density(a: Array, y: Array) -> None:
    """exp(-a^2 / 2) / sqrt(2 pi) of a, y (n,)."""
    for at in range(0, len(a), 64 // a.itemsize):
        x = part_of(a, at)
        put_part(y, at, exponential(x * x * -0.5) * DENSITY)
