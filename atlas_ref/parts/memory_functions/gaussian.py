"""The normal distribution function, which is the share of gelu by the error function.

    Phi(a) = (1 + erf(a / sqrt 2)) / 2,    Phi'(a) = exp(-a^2 / 2) / sqrt(2 pi)

In float32 on the host it is 1/2 + sign(a) (1 - exp(-u(|a|))) / 2 with u a polynomial, by compiled
code or a run of numbers at a time: SciPy's function takes three times as long, which is most of a
memory's time (`benchmarks.deep`). Specified in specs/memory_functions.md (MEMFUN-5).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.types import Array
from tape.core import defvjp, primitive
from tape.elementwise import erf
from tape.shapes import fitted

ROOT_HALF = math.sqrt(0.5)
DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
MODULE = "atlas_ref.backend.compiled.gaussian"
#: Numbers from which on it is worth loading compiled code, which takes a second once a process.
WORK = 2**16
#: Numbers of a vector of compiled code.
WIDTH = {4: 16, 8: 8}
#: Numbers of a run, whose work space stays in the second cache.
NUMBERS = 2**15
SIGN = np.uint32(1 << 31)

#: u(y) = sum_i c_i y^i, i = 1..8, for exp(-u(y)) = 2 Phi(-y): Phi is within 8e-9 for every y, before
#: rounding. Least squares with weights that level the error.
LOGARITHM = (
    0.797885328,
    0.318298867,
    0.036387578,
    -0.00489598974,
    9.49170544e-05,
    0.000129050311,
    -2.72945359e-05,
    1.96501184e-06,
)
TABLE = np.array(LOGARITHM, np.float32)


@primitive
def normal(a: Array) -> Array:
    """Phi(a) of each entry, to 1e-7 in float32 (MEMFUN-5)."""
    if type(a) is not np.ndarray or a.dtype != np.float32:
        return 0.5 * (1.0 + erf(ROOT_HALF * a))
    a = np.ascontiguousarray(a)
    result = np.empty_like(a)
    fast = _loop("normal", a)
    if fast is not None:
        fast(TABLE, a.reshape(-1), result.reshape(-1))
    else:
        _by_runs(a.reshape(-1), result.reshape(-1))
    return result


@primitive
def density(a: Array) -> Array:
    """Phi'(a) of each entry (MEMFUN-5)."""
    fast = _loop("density", a)
    if fast is None:
        return DENSITY * np.exp(-0.5 * (a * a))
    a = np.ascontiguousarray(a)
    result = np.empty_like(a)
    fast(a.reshape(-1), result.reshape(-1))
    return result


@primitive
def slope_of_gelu(a: Array, G: Array) -> Array:
    """G + a Phi'(a), the derivative of a Phi(a) where G = Phi(a) (MEMFUN-5)."""
    y = density(a) * a
    y += G
    return y


defvjp(normal, lambda y, a: lambda g: g * density(a))
defvjp(density, lambda y, a: lambda g: -(g * (a * y)))
defvjp(
    slope_of_gelu,
    lambda y, a, G: fitted(a, lambda g: g * (density(a) * (1.0 - a * a))),
    lambda y, a, G: fitted(G, lambda g: g),
)


def _loop(name: str, a: Array) -> Any:
    """Compiled code for an array; None where NumPy is to compute."""
    if type(a) is not np.ndarray or a.size < WORK or a.size % WIDTH.get(a.itemsize, 1):
        return None
    return compiled.loop(MODULE, a.dtype, name) if compiled.available_for(a) else None


def _by_runs(a: np.ndarray[Any, Any], result: np.ndarray[Any, Any]) -> None:
    """Phi of float32 numbers in NumPy, where nothing but exp is slower than a product."""
    size = np.empty(min(NUMBERS, len(a)), np.float32)
    half, (*lower, highest) = np.float32(0.5), TABLE
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for first in range(0, len(a), NUMBERS):
            x, y = a[first : first + NUMBERS], result[first : first + NUMBERS]
            v = size[: len(x)]
            np.abs(x, out=v)
            np.multiply(v, -highest, out=y)
            for c in reversed(lower):
                y -= c
                y *= v
            np.exp(y, out=y)
            y *= -half
            y += half
            bits = y.view(np.uint32)  # the sign of x
            bits ^= x.view(np.uint32) & SIGN
            y += half
