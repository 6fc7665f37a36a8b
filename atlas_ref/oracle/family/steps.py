"""The steps of the family, one function each, in any legal arithmetic, for the tolerance rule
(TOL-3).

Written from the clauses of specs/omega.md, in vector form, with the factors of a convention as
arrays, so that one call can carry many tokens, heads or conventions in front. Everything takes
arrays and tape variables.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table
from atlas_ref.parts.newton_schulz.minimax import Coefficients
from atlas_ref.parts.straight import straight
from atlas_ref.types import Array
from tape import opaque, ops


def times(factor: Array, x: Array) -> Array:
    """factor * x, where None stands for 1."""
    return x if factor is None else factor * x


def transposed(x: Array) -> Array:
    """The matrix transposed."""
    return x.swapaxes(-1, -2)


def residual(
    way: Arithmetic, M_ref: Array, keys: Array, values: Array, *, plus: bool = False
) -> Array:
    """Residuals e_j = M_ref phi_j - v_j for the rows of a window (OMEGA-4, CONV-10).

    Keys are (..., c, d_phi), values (..., c, d_out).
    """
    predicted = way.matmul(keys, transposed(M_ref))
    return predicted + values if plus else predicted - values


def gradient(
    way: Arithmetic, weights: Array, residual: Array, keys: Array, *, scale: Array = None
) -> Array:
    """g = scale * sum_j w_j e_j phi_j^T, weights (..., c, 1) (OMEGA-5)."""
    if way.early:
        return way.matmul(transposed(times(scale, times(weights, residual))), keys)
    return times(scale, way.matmul(transposed(residual), times(weights, keys)))


def momentum(way: Arithmetic, m: Array, S: Array, a: Array, gradient: Array) -> Array:
    """S_t = m S + a g; m None for no momentum, a None for 1 (OMEGA-6)."""
    step = times(a, gradient)
    if m is None:
        return step
    return (
        way.scaled_sum(a, gradient, m * S)
        if way.early and a is not None
        else way.scaled_sum(m, S, step)
    )


def memory(way: Arithmetic, r: Array, M: Array, b: Array, U: Array) -> Array:
    """M_t = r M - b U; r, b None for 1 (OMEGA-10)."""
    if way.early and b is not None:
        return way.scaled_sum(-b, U, times(r, M))
    change = times(b, U)
    return M - change if r is None else way.scaled_sum(r, M, -change)


def held(way: Arithmetic, M: Array, ceiling: Any) -> Array:
    """M min(1, ceiling / ||M||), whose cotangent is that of M (CONV-67).

    Args:
        ceiling: a number or an array (..., 1, 1); "none" or None for no ceiling.
    """
    if ceiling is None or isinstance(ceiling, str):
        return M
    value = ops.stop_gradient(M)
    bare = np.real(value)
    length = frobenius(way, bare)
    longer, one = length > ceiling, np.ones_like(length)
    shortened = bare * np.where(longer, ceiling / np.where(longer, length, one), one)
    return straight(M, shortened + (value - bare) if np.iscomplexobj(value) else shortened)


def read(way: Arithmetic, M: Array, q: Array) -> Array:
    """y = M q (OMEGA-12)."""
    return way.matmul(M, ops.expand_dims(q, -1))[..., 0]


def normalised(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
    """X_0 = S / (f ||S|| + eps), by the guard (NS-1, NS-6)."""
    norm = settings.norm_factor * frobenius(way, S)
    size = ops.maximum(norm, settings.eps) if settings.guard == "clamp" else norm + settings.eps
    safe = ops.where(ops.equal(size, 0.0), 1.0, size)
    return S * (1.0 / safe) if way.early else S / safe


def frobenius(way: Arithmetic, S: Array) -> Array:
    """||S|| with its axes kept, scaled so that squares neither overflow nor vanish."""
    top = ops.maximum(ops.stop_gradient(_largest(S)), 1e-300 if S.dtype.itemsize > 4 else 1e-30)
    part = S / top
    total = way.total(part * part)
    return (
        ops.where(
            ops.equal(total, 0.0), 0.0, ops.sqrt(ops.where(ops.equal(total, 0.0), 1.0, total))
        )
        * top
    )


def _largest(S: Array) -> Array:
    top = ops.absolute(S)
    while top.shape[-1] > 1:
        n = top.shape[-1]
        top = ops.maximum(top[..., : (n + 1) // 2], top[..., n // 2 :])
    top = transposed(top)
    while top.shape[-1] > 1:
        n = top.shape[-1]
        top = ops.maximum(top[..., : (n + 1) // 2], top[..., n // 2 :])
    return top


def polynomial(way: Arithmetic, X: Array, row: Coefficients) -> Array:
    """One step of Newton-Schulz: a X + (b A + c A^2) X with A = X X^T (NS-1, NS-8).

    X^T X from the right gives the same.
    """
    a, b, c = row
    if way.transposed:
        return transposed(polynomial(way._replace(transposed=False), transposed(X), row))
    A = way.matmul(X, transposed(X))
    if way.early:  # a X + A (b X + c A X)
        inner = b * X + c * way.matmul(A, X) if c else b * X
        return a * X + way.matmul(A, inner)
    return a * X + way.matmul(b * A + c * way.matmul(A, A) if c else b * A, X)


def newton_schulz(way: Arithmetic, S: Array, settings: NewtonSchulz, *, X: Array = None) -> Array:
    """NS(S) with scale and guard, or their result for a given X_n (NS-1, NS-6, NS-9)."""
    return _block(way, settings)(S) if X is None else _finished(way, S, X, settings)


def _finished(way: Arithmetic, S: Array, X: Array, settings: NewtonSchulz) -> Array:
    """Scale and guard after the last step."""
    if settings.scale == "norm":
        X = X * frobenius(way, S)
    elif settings.scale == "sqrt":
        X = X * _root(S)
    if settings.guard == "return":
        X = ops.where(ops.less(frobenius(way, S), settings.eps), S, X)
    return X


def _root(S: Array) -> float:
    return math.sqrt(max(1.0, S.shape[-2] / S.shape[-1]))


@functools.lru_cache(maxsize=256)
def _block(way: Arithmetic, settings: NewtonSchulz) -> Callable[[Array], Array]:
    """Newton-Schulz as one entry on the tape, whose steps would be most of a gradient's cost."""

    def plain(S: Array) -> Array:
        return _finished(
            way,
            S,
            iterates(way, normalised(way, S, settings), coefficient_table(settings)),
            settings,
        )

    def forward(S: Array) -> tuple[Array, Array]:
        return plain(S), S

    def backward(S: Array, g: Array) -> tuple[Array]:
        if way.transposed:
            return (
                transposed(
                    _backward(
                        way._replace(transposed=False),
                        transposed(S),
                        transposed(g),
                        settings,
                        _root(S),
                    )
                ),
            )
        return (_backward(way, S, g, settings, _root(S)),)

    plain.__name__ = "newton_schulz"
    return opaque(plain, forward, backward)


def _backward(way: Arithmetic, S: Array, g: Array, settings: NewtonSchulz, root: float) -> Array:
    """Cotangent of S from that of the result, step by step (NS-20, NS-21)."""
    norm = frobenius(way, S)
    safe = np.where(norm == 0.0, np.ones_like(norm), norm)
    path = [normalised(way, S, settings)]
    for row in coefficient_table(settings):
        path.append(polynomial(way, path[-1], row))
    D = g * norm if settings.scale == "norm" else g * root if settings.scale == "sqrt" else g
    for (a, b, c), X in zip(
        reversed(coefficient_table(settings)), reversed(path[:-1]), strict=True
    ):
        A, H = way.matmul(X, transposed(X)), way.matmul(D, transposed(X))
        K = b * H + c * (way.matmul(H, A) + way.matmul(A, H)) if c else b * H
        D = (
            a * D
            + way.matmul(b * A + c * way.matmul(A, A) if c else b * A, D)
            + way.matmul(K + transposed(K), X)
        )
    length = settings.norm_factor * norm
    size = np.maximum(length, settings.eps) if settings.guard == "clamp" else length + settings.eps
    moves = length >= settings.eps if settings.guard == "clamp" else length >= 0.0
    size = np.where(size == 0.0, np.ones_like(size), size)
    along = np.where(moves, settings.norm_factor * way.total(D * S) / size, np.zeros_like(size))
    S_bar = (D - along * (S / safe)) / size
    if settings.scale == "norm":
        S_bar = S_bar + way.total(g * path[-1]) * (S / safe)
    return np.where(norm < settings.eps, g, S_bar) if settings.guard == "return" else S_bar


def iterates(way: Arithmetic, X: Array, table: Sequence[Coefficients]) -> Array:
    """X_n from X_0."""
    for row in table:
        X = polynomial(way, X, row)
    return X
