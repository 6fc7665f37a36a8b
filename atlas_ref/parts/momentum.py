"""One step of a momentum, of every kind.

Specified in specs/conventions.md (CONV-8, CONV-64, CONV-70).
"""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.types import Array
from tape import ops

#: How near the factor of delta momentum comes to 0 and to 1.
MARGIN = 1e-6


def accumulated(
    S: Array, gradient: Array, entering: Array, momentum: Array, *, kind: str, sign: str
) -> Array:
    """S_t = m_t S_{t-1} + a_t g_t in one of its kinds (OMEGA-6, TITANS-3, CONV-8, CONV-64).

    Args:
        S (..., d_out, d_phi): S_{t-1}.
        gradient, entering (..., d_out, d_phi): g_t and a_t g_t.
        momentum (..., 1 or d_out, 1): m_t; None for no momentum.
        kind: momentum_kind.
        sign: momentum_sign.
    """
    signed = entering if sign == "plus" else -entering
    if momentum is None:
        return signed
    if kind == "average":
        signed = (1.0 - momentum) * signed
    return (faded(momentum, gradient) if kind == "delta_momentum" else momentum) * S + signed


def _all_entries(x: Array) -> Array:
    return ops.sum(x, axis=(-2, -1), keepdims=True)


def faded(
    momentum: Array, gradient: Array, total: Callable[[Array], Array] = _all_entries
) -> Array:
    """clamp(m - |g|^2, 1e-6, 1 - 1e-6), the factor of S in delta momentum (CONV-70).

    The derivative is 0 where the clamp acts.

    Args:
        momentum (..., 1 or d_out, 1): the gate.
        gradient (..., d_out, d_phi): g, before the step size.
        total: the sum over both axes of a matrix, which are kept.
    """
    inner = momentum - total(gradient * gradient)
    low, high = ops.less(inner, MARGIN), ops.greater(inner, 1.0 - MARGIN)
    return ops.where(low, MARGIN, ops.where(high, 1.0 - MARGIN, inner))
