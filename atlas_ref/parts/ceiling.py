"""A ceiling of the memory's length, which the backward does not see (CONV-67).

Specified in specs/conventions.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.parts.straight import straight
from atlas_ref.types import Array
from tape import ops


def held(M: Array, ceiling: Any) -> Array:
    """M, shortened to the ceiling where its Frobenius norm is greater (CONV-67).

        M min(1, ceiling / ||M||),    whose cotangent is that of M

    The imaginary part of a complex step stays as it is, since the derivative is that of M.

    Args:
        M (..., d_out, d_phi): a memory after its write; each matrix has a norm of its own.
        ceiling: a number above 0, or "none".

    Source: NL_Hecate 4746606, m_norm_max; CONV-67.
    """
    if ceiling == "none":
        return M
    value = ops.stop_gradient(M)
    bare = np.real(value)
    shortened = factor(bare, ceiling) * bare
    return straight(M, shortened + (value - bare) if np.iscomplexobj(value) else shortened)


def factor(M: Array, ceiling: Any) -> Array:
    """min(1, ceiling / ||M||) of each plain matrix, (..., 1, 1); no square overflows or vanishes."""
    top = np.max(np.abs(M), axis=(-2, -1), keepdims=True)
    top = np.where(top == 0.0, np.ones_like(top), top)
    length = top * np.sqrt(np.sum((M / top) ** 2, axis=(-2, -1), keepdims=True))
    longer, one = length > ceiling, np.ones_like(length)
    return np.where(longer, ceiling / np.where(longer, length, one), one)
