"""Activations of a memory function as a G(a), and their derivatives.

    silu       G = sigmoid(a)
    gelu       G = (1 + erf(a / sqrt 2)) / 2
    gelu_tanh  G = (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2

Specified in specs/memory_functions.md (MEMFUN-5).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from atlas_ref.parts.memory_functions.gaussian import normal, slope_of_gelu
from atlas_ref.types import Array
from tape import ops

CUBIC = 0.044715
SLOPE = math.sqrt(2.0 / math.pi)


def share(kind: str, a: Array) -> Array:
    """G(a), the share of a that passes (MEMFUN-5)."""
    return _SHARES[kind](a)


def slope(kind: str, a: Array, G: Array) -> Array:
    """d (a G(a)) / da = G + a G', with G = share(kind, a) (MEMFUN-5)."""
    return slope_of_gelu(a, G) if kind == "gelu" else G + a * _SLOPES[kind](a, G)


def _tanh_share(a: Array) -> Array:
    return 0.5 * (1.0 + ops.tanh(SLOPE * (a + CUBIC * (a * a * a))))


def _tanh_slope(a: Array, G: Array) -> Array:
    # (1 - tanh^2) / 2 = 2 G (1 - G)
    return 2.0 * (G * (1.0 - G)) * (SLOPE * (1.0 + 3.0 * CUBIC * (a * a)))


_SHARES: dict[str, Callable[[Array], Array]] = {
    "silu": ops.sigmoid,
    "gelu": normal,
    "gelu_tanh": _tanh_share,
}
_SLOPES: dict[str, Callable[[Array, Array], Array]] = {
    "silu": lambda a, G: G * ops.sigmoid(-a),
    "gelu_tanh": _tanh_slope,
}
