"""The steps of the family, one function each, in any legal arithmetic (TOL-3, REPLAY-3).

    e[t,j] = R_t phi_{t-j} - v_{t-j}        residual
    g_t    = s sum_j gamma[t,j] e[t,j] phi_{t-j}^T
    S_t    = m_t S_{t-1} + a_t g_t
    X_0 .. X_n, U_t                         Newton-Schulz
    M_t    = r_t M_{t-1} - b_t U_t
    y_t    = M phi_q

Written from the clauses of specs/omega.md, in vector form, with the factors of a convention as
arrays, so that one call can carry many tokens, heads or conventions in front. Everything takes
arrays and tape variables. An arithmetic that is `printed` keeps the order of the clauses, which
traces have to the last bit; the others keep that from which published tolerances were measured.
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


def transpose(x: Array) -> Array:
    """The matrix transposed."""
    return x.swapaxes(-1, -2)


def residual(
    way: Arithmetic, M_ref: Array, keys: Array, values: Array, *, plus: bool = False
) -> Array:
    """Residuals e_j = M_ref phi_j - v_j for the rows of a window (OMEGA-4, CONV-10).

    Keys are (..., c, d_phi), values (..., c, d_out).
    """
    predicted = way.matmul(keys, transpose(M_ref))
    return predicted + values if plus else predicted - values


def gradient(
    way: Arithmetic, weights: Array, residual: Array, keys: Array, scale: Array = None
) -> Array:
    """g = scale * sum_j w_j e_j phi_j^T, weights (..., c, 1) (OMEGA-5)."""
    if way.printed:
        if weights is None and scale is None:  # of one pair without an error (HEBBIAN-2)
            return ops.outer(residual[..., 0, :], keys[..., 0, :])
        if way.early or weights is None:
            product = way.matmul(transpose(times(weights, residual)), keys)
            return times(scale, product)
        return way.matmul(transpose(times(times(scale, weights), residual)), keys)
    weights = scale if weights is None else times(scale, weights)
    if way.early:
        return way.matmul(transpose(times(weights, residual)), keys)
    return way.matmul(transpose(residual), times(weights, keys))


def momentum(
    way: Arithmetic, m: Array, S: Array, a: Array, gradient: Array, share: Array = None
) -> Array:
    """S_t = m S + share a g; m None for no momentum, a, share None for 1 (OMEGA-6, CONV-64)."""
    step = times(share, times(a, gradient))
    if m is None:
        return step
    if way.early and not way.printed and a is not None:
        return way.scaled_sum(times(share, a), gradient, m * S)
    return way.scaled_sum(m, S, step)


def window_sum(way: Arithmetic, weights: Array, momenta: Array) -> Array:
    """P = sum_j w_j Z_j; weights (..., c, 1), momenta (..., c, d_out, d_phi) (OMEGA-11)."""
    c, rows, columns = momenta.shape[-3:]
    if way.printed:
        flat = ops.reshape(momenta, (*momenta.shape[:-3], c, rows * columns))
        total = way.matmul(transpose(weights), flat)
        return ops.reshape(total, (*momenta.shape[:-3], rows, columns))
    total = None  # term after term
    for j in reversed(range(c)) if way.order == "reverse" else range(c):
        weight, Z = weights[..., j, :, None], momenta[..., j, :, :]
        total = weight * Z if total is None else way.scaled_sum(weight, Z, total)
    return total


def memory(way: Arithmetic, r: Array, M: Array, b: Array, U: Array, ceiling: Any = None) -> Array:
    """M_t = r M - b U, within its ceiling; r, b None for 1 (OMEGA-10, CONV-67)."""
    if way.early and not way.printed and b is not None:
        return under_ceiling(way, way.scaled_sum(-b, U, times(r, M)), ceiling)
    change = times(b, U)
    return under_ceiling(way, M - change if r is None else way.scaled_sum(r, M, -change), ceiling)


def under_ceiling(way: Arithmetic, M: Array, ceiling: Any) -> Array:
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


def normalise(way: Arithmetic, S: Array, settings: NewtonSchulz) -> Array:
    """X_0 = S / (f ||S|| + eps), by the guard (NS-1, NS-6)."""
    norm = settings.norm_factor * _length(way, S)
    size = ops.maximum(norm, settings.eps) if settings.guard == "clamp" else norm + settings.eps
    safe = ops.where(ops.equal(size, 0.0), 1.0, size)
    return S * (1.0 / safe) if way.early and not way.printed else S / safe


def _length(way: Arithmetic, S: Array) -> Array:
    """||S|| as Newton-Schulz computes it: as printed, or so that no square overflows."""
    return _root(way.total(S * S)) if way.printed else frobenius(way, S)


def _root(squares: Array) -> Array:
    """sqrt, with derivative 0 at 0."""
    zero = ops.equal(squares, 0.0)
    return ops.where(zero, 0.0, ops.sqrt(ops.where(zero, 1.0, squares)))


def frobenius(way: Arithmetic, S: Array) -> Array:
    """||S|| with its axes kept, scaled so that squares neither overflow nor vanish."""
    top = ops.maximum(ops.stop_gradient(_largest(S)), 1e-300 if S.dtype.itemsize > 4 else 1e-30)
    part = S / top
    return _root(way.total(part * part)) * top


def _largest(S: Array) -> Array:
    top = ops.absolute(S)
    while top.shape[-1] > 1:
        n = top.shape[-1]
        top = ops.maximum(top[..., : (n + 1) // 2], top[..., n // 2 :])
    top = transpose(top)
    while top.shape[-1] > 1:
        n = top.shape[-1]
        top = ops.maximum(top[..., : (n + 1) // 2], top[..., n // 2 :])
    return top


def polynomial(way: Arithmetic, X: Array, row: Coefficients, tall: bool = False) -> Array:
    """One step of Newton-Schulz: a X + (b A + c A^2) X with A = X X^T (NS-1, NS-8).

    X^T X from the right gives the same, and is what a `tall` matrix has.
    """
    if way.transposed == tall:
        return _polynomial(way, X, row)
    way = way if way.printed else way._replace(transposed=False)
    return transpose(_polynomial(way, transpose(X), row))


def _polynomial(way: Arithmetic, X: Array, row: Coefficients) -> Array:
    if way.printed:
        return _printed_polynomial(way, X, row)
    a, b, c = row
    A = way.matmul(X, transpose(X))
    if way.early:  # a X + A (b X + c A X)
        inner = b * X + c * way.matmul(A, X) if c else b * X
        return a * X + way.matmul(A, inner)
    return a * X + way.matmul(b * A + c * way.matmul(A, A) if c else b * A, X)


def _printed_polynomial(way: Arithmetic, X: Array, row: Coefficients) -> Array:
    """The same, each product alone.

    With `expanded` it is a X + b A X + c A X X^T X.
    """
    a, b, c = (np.asarray(each, dtype=X.dtype) for each in row)
    A = way.matmul(X, transpose(X))
    if not way.expanded:
        B = b * A if c == 0 else way.scaled_sum(b, A, c * way.matmul(A, A))
        return way.scaled_sum(a, X, way.matmul(B, X))
    cubed = way.matmul(A, X)
    X_next = way.scaled_sum(a, X, b * cubed)
    if c == 0:
        return X_next
    return way.scaled_sum(c, way.matmul(way.matmul(cubed, transpose(X)), X), X_next)


def newton_schulz(way: Arithmetic, S: Array, settings: NewtonSchulz, *, X: Array = None) -> Array:
    """NS(S) with scale and guard, or their result for a given X_n (NS-1, NS-6, NS-9)."""
    return _block(way, settings)(S) if X is None else image(way, S, X, settings)


def image(way: Arithmetic, S: Array, X: Array, settings: NewtonSchulz) -> Array:
    """NS(S) from the last iterate: times the scale, or S where the guard returns it (NS-6, NS-9)."""
    if settings.scale == "norm":
        X = X * _length(way, S)
    elif settings.scale == "sqrt":
        X = X * _shape_factor(S)
    if settings.guard == "return":
        X = ops.where(ops.less(_length(way, S), settings.eps), S, X)
    return X


def _shape_factor(S: Array) -> float:
    return math.sqrt(max(1.0, S.shape[-2] / S.shape[-1]))


@functools.lru_cache(maxsize=256)
def _block(way: Arithmetic, settings: NewtonSchulz) -> Callable[[Array], Array]:
    """Newton-Schulz as one entry on the tape, whose steps would be most of a gradient's cost."""

    def plain(S: Array) -> Array:
        return image(
            way,
            S,
            iterates(way, normalise(way, S, settings), coefficient_table(settings)),
            settings,
        )

    def forward(S: Array) -> tuple[Array, Array]:
        return plain(S), S

    def backward(S: Array, g: Array) -> tuple[Array]:
        if way.transposed:
            return (
                transpose(
                    _backward(
                        way._replace(transposed=False),
                        transpose(S),
                        transpose(g),
                        settings,
                        _shape_factor(S),
                    )
                ),
            )
        return (_backward(way, S, g, settings, _shape_factor(S)),)

    plain.__name__ = "newton_schulz"
    return opaque(plain, forward, backward)


def _backward(way: Arithmetic, S: Array, g: Array, settings: NewtonSchulz, root: float) -> Array:
    """Cotangent of S from that of the result, step by step (NS-20, NS-21)."""
    norm = frobenius(way, S)
    safe = np.where(norm == 0.0, np.ones_like(norm), norm)
    path = [normalise(way, S, settings)]
    for row in coefficient_table(settings):
        path.append(polynomial(way, path[-1], row))
    D = g * norm if settings.scale == "norm" else g * root if settings.scale == "sqrt" else g
    for (a, b, c), X in zip(
        reversed(coefficient_table(settings)), reversed(path[:-1]), strict=True
    ):
        A, H = way.matmul(X, transpose(X)), way.matmul(D, transpose(X))
        K = b * H + c * (way.matmul(H, A) + way.matmul(A, H)) if c else b * H
        D = (
            a * D
            + way.matmul(b * A + c * way.matmul(A, A) if c else b * A, D)
            + way.matmul(K + transpose(K), X)
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
