"""The ops of one token, one function each, as the rules define them.

A trace records them and a replay evaluates them again.

    e[t,j] = R_t phi_{t-j} - v_{t-j}        residual
    g_t    = s sum_j gamma[t,j] e[t,j] phi_{t-j}^T
    S_t    = m_t S_{t-1} + a_t g_t
    X_0 .. X_n, U_t                         Newton-Schulz
    M_t    = r_t M_{t-1} - b_t U_t
    y_t    = M phi_q

Every product, sum and multiply-add goes through an `Arithmetic`, so that one text serves the truth
and every legal way to round. Matrices are d_out x d_phi here under either layout of the case.
Specified in specs/replay.md (REPLAY-3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.family.steps import held
from atlas_ref.oracle.family.steps import read as read
from atlas_ref.oracle.family.steps import times as times
from atlas_ref.parts.momentum import faded
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table
from atlas_ref.types import Array
from tape import ops


def scale_of(config: Any) -> float:
    """s, the factor of the gradient (CONV-6)."""
    s = config.convention.gradient_scale
    return 2.0 / config.d_out if isinstance(s, str) else float(s)


def rates(config: Any, step_size: Array, step_size_memory: Array) -> tuple[Array, Array]:
    """(a, b): the factor of the gradient in S and of the update in M; None stands for 1.

    Source: OMEGA-7.
    """
    rate = config.convention.rate
    a = step_size if rate in ("momentum", "both", "split") else None
    b = step_size if rate in ("memory", "both") else step_size_memory if rate == "split" else None
    return a, b


def residual(
    config: Any, way: Arithmetic, reference: Array, retain: Array, keys: Array, values: Array
) -> Array:
    """Residuals (..., c, d_out) of window pairs under a reference, None for the zero one.

    Source: OMEGA-4, TITANS-2, DELTA-2.
    """
    target = -values if config.convention.value_sign == "minus" else values
    if reference is None:
        return target
    if config.convention.decay == "before_error":
        reference = times(retain, reference)
    return way.matmul(keys, ops.swapaxes(reference, -1, -2)) + target


def gradient(config: Any, way: Arithmetic, residuals: Array, weights: Array, keys: Array) -> Array:
    """g (..., d_out, d_phi) from residuals, weights and keys of a window (OMEGA-5).

    Residuals are (..., c, d_out), weights (..., c, 1) or None for 1, keys (..., c, d_phi).
    """
    s = scale_of(config)
    if way.early or weights is None:
        weighed = times(weights, residuals)
        return times(None if s == 1.0 else s, way.matmul(ops.swapaxes(weighed, -1, -2), keys))
    weighed = times(times(None if s == 1.0 else s, weights), residuals)
    return way.matmul(ops.swapaxes(weighed, -1, -2), keys)


def momentum(
    config: Any, way: Arithmetic, before: Array, g: Array, a: Array, factor: Array
) -> Array:
    """S_t = m_t S_{t-1} +- a_t g_t (OMEGA-6, TITANS-3); `factor` is m_t, None for 0."""
    change = times(a, g)
    if config.convention.momentum_kind == "average" and factor is not None:
        change = (1.0 - factor) * change
    if config.convention.momentum_kind == "delta_momentum" and factor is not None:
        factor = faded(factor, g, way.total)
    signed = change if config.convention.momentum_sign == "plus" else -change
    return signed if factor is None else way.scaled_sum(factor, before, signed)


def window_sum(way: Arithmetic, weights: Array, momenta: Array) -> Array:
    """P_t = sum_j gamma[t,j] Z_{t-j} over momenta (..., c, d_out, d_phi) and weights (..., c, 1).

    Source: OMEGA-11.
    """
    c, rows, columns = momenta.shape[-3:]
    flat = ops.reshape(momenta, (*momenta.shape[:-3], c, rows * columns))
    total = way.matmul(ops.swapaxes(weights, -1, -2), flat)
    return ops.reshape(total, (*momenta.shape[:-3], rows, columns))


def argument(config: Any, way: Arithmetic, S: Array, g: Array, factor: Array) -> Array:
    """The argument of Newton-Schulz at a write: S, or under nesterov +-g_t + m_t S_t (OMEGA-8)."""
    if config.convention.argument != "nesterov":
        return S
    signed = g if config.convention.momentum_sign == "plus" else -g
    return signed if factor is None else way.scaled_sum(factor, S, signed)


def corrected(
    config: Any, way: Arithmetic, M: Array, step: Array, b: Array, retain: Array
) -> Array:
    """M_t = r_t M_{t-1} -+ b_t a_t g_t, without momentum (DELTA-3); `step` is a_t g_t.

    Source: CONV-67 for its ceiling.
    """
    change = times(b, step)
    ascends = config.convention.direction == "ascent"
    M = way.scaled_sum(retain, M, change if ascends else -change)
    return held(way, M, config.convention.memory_ceiling)


def added(config: Any, way: Arithmetic, M: Array, k: Array, v: Array, retain: Array) -> Array:
    """M_t = r_t M_{t-1} + v k^T, without an error (HEBBIAN-2); CONV-67 for its ceiling."""
    return held(way, way.scaled_sum(retain, M, ops.outer(v, k)), config.convention.memory_ceiling)


def moved(config: Any, way: Arithmetic, M: Array, U: Array, b: Array, retain: Array) -> Array:
    """M_t = r_t M_{t-1} -+ b_t U_t, with the sign of momentum_sign and direction.

    Source: OMEGA-10, TITANS-4; CONV-67 for its ceiling.
    """
    change = times(b, U)
    convention = config.convention
    adds = (convention.momentum_sign == "minus") != (convention.direction == "ascent")
    M = way.scaled_sum(retain, M, change if adds else -change)
    return held(way, M, convention.memory_ceiling)


# -- Newton-Schulz ---------------------------------------------------------------------------------


def norm(way: Arithmetic, S: Array) -> Array:
    """||S||_F (..., 1, 1), with derivative 0 where S is 0."""
    squares = way.total(S * S)
    zero = ops.equal(squares, 0.0)
    return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, squares)))


def normalised(settings: NewtonSchulz, way: Arithmetic, S: Array) -> Array:
    """X_0 = S / N, N the divisor of the guard (NS-1, NS-6, NS-7)."""
    length = settings.norm_factor * norm(way, S)
    size = ops.maximum(length, settings.eps) if settings.guard == "clamp" else length + settings.eps
    return S / ops.where(ops.equal(size, 0.0), 1.0, size)


def iterate(settings: NewtonSchulz, way: Arithmetic, X: Array, step: int) -> Array:
    """One step of Newton-Schulz (NS-1, NS-8).

        X_{i+1} = a X_i + (b A + c A^2) X_i    with A = X_i X_i^T

    or the same on the transpose.
    """
    a, b, c = (np.asarray(each, dtype=X.dtype) for each in coefficient_table(settings)[step])
    tall = (settings.transpose == "tall" and X.shape[-2] > X.shape[-1]) != way.transposed
    X = ops.swapaxes(X, -1, -2) if tall else X
    if way.expanded:
        X = _expanded(way, X, (a, b, c))
        return ops.swapaxes(X, -1, -2) if tall else X
    A = way.matmul(X, ops.swapaxes(X, -1, -2))
    B = b * A if c == 0 else way.scaled_sum(b, A, c * way.matmul(A, A))
    X = way.scaled_sum(a, X, way.matmul(B, X))
    return ops.swapaxes(X, -1, -2) if tall else X


def _expanded(way: Arithmetic, X: Array, row: Sequence[Array]) -> Array:
    """a X + b X X^T X + c X X^T X X^T X, products from left to right."""
    a, b, c = row
    Xt = ops.swapaxes(X, -1, -2)
    cubed = way.matmul(way.matmul(X, Xt), X)
    X_next = way.scaled_sum(a, X, b * cubed)
    if c == 0:
        return X_next
    return way.scaled_sum(c, way.matmul(way.matmul(cubed, Xt), X), X_next)


def finished(settings: NewtonSchulz, way: Arithmetic, X: Array, S: Array) -> Array:
    """NS(S) from the last iterate: times the scale, or S itself where the guard returns it.

    Source: NS-6, NS-9.
    """
    if settings.scale == "norm":
        X = norm(way, S) * X
    elif settings.scale == "sqrt":
        X = math.sqrt(max(1.0, S.shape[-2] / S.shape[-1])) * X
    if settings.guard == "return":
        X = ops.where(ops.less(norm(way, S), settings.eps), S, X)
    return X
