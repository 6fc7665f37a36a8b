"""Errors in three norms, formats and their units in the last place, for tolerances.

Source: TOL-1, TOL-2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from atlas_ref.types import Array

#: Formats that results may be in: their NumPy type, bits of the fraction, smallest exponent of a
#: normal number.
FORMATS: dict[str, tuple[Any, int, int]] = {
    "float64": (np.float64, 52, -1022),
    "float32": (np.float32, 23, -126),
    "bfloat16": (ml_dtypes.bfloat16, 7, -126),
    "float16": (np.float16, 10, -14),
}


class Norms(NamedTuple):
    """An error, or a size, as largest magnitude, root mean square and 99th percentile (TOL-1)."""

    max: float
    rms: float
    p99: float

    def over(self, bound: Norms) -> float:
        """The worst of the three quotients; an error of 0 gives 0 for every bound."""
        return max(_quotient(error, allowed) for error, allowed in zip(self, bound, strict=True))


def _quotient(error: float, allowed: float) -> float:
    if error == 0.0:
        return 0.0
    return error / allowed if allowed > 0.0 else math.inf


def norms(x: Array) -> Norms:
    """Largest magnitude, root mean square and 99th percentile of the magnitudes.

    Right at any scale, without overflow.
    """
    size = np.abs(np.asarray(x, np.float64)).ravel()
    if not size.size:
        return Norms(0.0, 0.0, 0.0)
    top = float(size.max())
    if top == 0.0 or not math.isfinite(top):
        return Norms(top, top, top)
    return Norms(
        top,
        top * float(np.sqrt(np.mean((size / top) ** 2))),
        float(np.partition(size, (rank := _rank(size.size)))[rank]),
    )


def _rank(count: int) -> int:
    """Index of the 99th percentile: 1 % of the entries, rounded down, are larger."""
    return count - 1 - count // 100


def largest(each: list[Norms]) -> Norms:
    """The largest error in each norm."""
    return Norms(*(max(column) for column in zip(*each, strict=True)))


def ulp(scale: float, dtype: str) -> float:
    """The unit in the last place of numbers of this size in a format (TOL-2)."""
    _, bits, least = FORMATS[dtype]
    if not math.isfinite(scale):
        return scale
    exponent = max(math.frexp(scale)[1] - 1, least) if scale else least
    return math.ldexp(1.0, max(exponent - bits, -1074))


def round_to(x: Array, dtype: str) -> Array:
    """The nearest numbers of a format, in the dtype of x.

    Tape variables pass their derivative through.
    """
    kind = FORMATS[dtype][0]
    if x.dtype == np.dtype(kind):
        return x
    if isinstance(x, np.ndarray):
        with np.errstate(over="ignore"):
            return x.astype(kind).astype(x.dtype)
    value = x.value
    return x + (round_to(value, dtype) - value)
