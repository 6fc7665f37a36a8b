"""Norms of keys and queries, right also where squares of their entries would overflow.

Specified in specs/conventions.md (CONV-24) and specs/norm.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atlas_ref.backend import on_host
from atlas_ref.types import Array
from tape import ops

NORM_EPS = 1e-6

#: Bytes of a number -> the power of two that brings its largest value to where squares are safe.
REDUCTIONS = {8: 2.0**-640, 4: 2.0**-80}


def normalised(x: Array, kind: str, *, eps: float = NORM_EPS, guard: str = "root") -> Array:
    """x / sqrt(n^2 + eps) with n^2 = sum x^2 (l2) or mean x^2 (rms); none: x (CONV-24, NORM-5).

    Guard add divides by n + eps. Guard clamp divides by max(n, eps), a constant where it is eps
    (NORM-6). A row of zeros has n = 0 with the derivative 0.

    A row whose squares would overflow is multiplied by a power of two first, and the eps by its
    square, so that x stands in the quotient as it is; every other row has the bits of the formula.
    """
    if kind == "none":
        return x
    s = reduction(x)  # (..., 1), or 1 for all rows
    x = x if isinstance(s, float) else s * x
    total = ops.sum(x * x, axis=-1, keepdims=True)
    squares = total if kind == "l2" else total * (1.0 / x.shape[-1])
    if guard == "clamp":
        floor = eps * s
        small = ops.less(squares, floor * floor)
        return x / ops.where(small, floor, ops.sqrt(ops.where(small, 1.0, squares)))
    if guard == "add":
        nothing = ops.equal(squares, 0.0)
        length = ops.where(nothing, 0.0, ops.sqrt(ops.where(nothing, 1.0, squares)))
        return x / (length + eps * s)
    return x / ops.sqrt(squares + eps * s * s)


def keys_normalised(x: Array, kind: str, convention: Any) -> Array:
    """Keys or queries by the norm, eps and guard of a convention (CONV-24)."""
    return normalised(x, kind, eps=convention.norm_eps, guard=convention.norm_guard)


def key_of_gates(k: Array, convention: Any) -> Array:
    """The key that gates and a learned residual read: after a norm that precedes phi (GATES-6)."""
    before = convention.norm_place == "before_phi"
    return keys_normalised(k, convention.k_norm, convention) if before else k


def reduction(x: Array) -> Any:
    """Factor of each row: 1, or the power of two where a sum of squares could overflow.

    The quotient does not depend on it, so it has no derivative.
    """
    bare = np.real(ops.stop_gradient(x))
    if bare.dtype.itemsize not in REDUCTIONS:
        return 1.0  # no arithmetic of the oracle
    if squares_fit(bare):
        return 1.0  # no row needs it, as nearly always
    safe = _safe(bare)
    large = np.max(np.abs(bare), axis=-1, keepdims=True) > safe
    return np.where(large, REDUCTIONS[bare.dtype.itemsize], 1.0).astype(bare.dtype)


def squares_fit(x: Array, share: float = 1.0) -> bool:
    """Whether all entries of an array of the host lie within that share of what is safe to square."""
    safe = share * _safe(x)
    return bool(on_host(x) and x.size and np.max(x) <= safe and np.min(x) >= -safe)


def _safe(x: Array) -> float:
    """A number up to which no sum of squares of a row overflows."""
    return 0.5 * math.sqrt(float(np.finfo(x.dtype).max) / x.shape[-1])
