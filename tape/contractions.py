"""Ops that contract axes: means and norms, softmax, matrix products and solves."""

from __future__ import annotations

import contextlib

import numpy as np

from tape.core import Binary, Pullback, defvjp, primitive
from tape.elementwise import equal, exp, sqrt, where
from tape.shapes import Axes, expand_dims, fitted, squeeze, sum, tril, triu
from tape.variable import Array, TapeError, plain, shape

__all__ = ["mean", "vdot", "norm", "softmax", "logsumexp", "matmul", "outer"]
__all__ += ["solve_triangular", "solve"]


def mean(x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
    """Arithmetic mean over `axis`, or over all entries."""
    total = sum(x, axis=axis, keepdims=keepdims)
    return total / (np.size(plain(x)) // max(1, np.size(plain(total))))


def vdot(a: Array, b: Array) -> Array:
    """Sum of a * b over all entries; unlike np.vdot it does not conjugate."""
    return sum(a * b)


def norm(x: Array, axis: Axes = None, keepdims: bool = False) -> Array:
    """sqrt(sum x^2), with derivative 0 where x is 0 (the derivative there does not exist)."""
    squares = sum(x * x, axis=axis, keepdims=keepdims)
    zero = equal(squares, 0.0)
    return where(zero, 0.0, sqrt(where(zero, 1.0, squares)))


def softmax(x: Array, axis: Axes = -1) -> Array:
    """exp(x) / sum(exp(x)) along `axis`, with the largest real part subtracted first."""
    e = exp(x - np.max(np.real(plain(x)), axis=axis, keepdims=True))
    return e / sum(e, axis=axis, keepdims=True)


@primitive
def _logsumexp(x: Array, axis: Axes) -> Array:
    """log(sum(exp(x))) as top + log(m) + log1p(rest / m), for m entries at the top.

    The rest is the sum of exp(x - top) over the other entries. An entry at the top counts as
    1 + expm1(x - top), so that a small rest keeps its relative precision, and so does a complex
    step.
    """
    top = np.max(np.real(x), axis=axis, keepdims=True)
    peak = np.real(x) == top
    m = np.sum(peak, axis=axis, keepdims=True, dtype=top.dtype)
    rest = np.sum(np.where(peak, np.expm1(x - top), np.exp(x - top)), axis=axis, keepdims=True)
    return top + np.log(m) + np.log1p(rest / m)


defvjp(_logsumexp, lambda y, x, axis: lambda g: g * softmax(x, axis))


def logsumexp(x: Array, axis: Axes = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) along `axis`."""
    y = _logsumexp(x, axis=axis)
    return y if keepdims else squeeze(y, axis)


matmul = primitive(np.matmul, kind=Binary)


def _mT(x: Array) -> Array:
    # the method, of arrays and variables alike, costs a third of the function
    return x.swapaxes(-1, -2)


def _matmul_left(y: Array, a: Array, b: Array) -> Pullback:
    if b.ndim == 1:  # a (..., n, k) or (k,), b (k,)
        return fitted(a, lambda g: expand_dims(g, -1) * b)
    right = _mT(b)
    if a.ndim == 1:  # a (k,), b (..., k, m)
        return fitted(a, lambda g: squeeze(matmul(expand_dims(g, -2), right), -2))
    return (lambda g: matmul(g, right)) if y.ndim == 2 else fitted(a, lambda g: matmul(g, right))


def _matmul_right(y: Array, a: Array, b: Array) -> Pullback:
    if a.ndim == 1 and b.ndim == 1:
        return lambda g: g * a
    if a.ndim == 1:  # a (k,), b (..., k, m)
        return fitted(b, lambda g: expand_dims(a, -1) * expand_dims(g, -2))
    left = _mT(a)
    if b.ndim == 1:  # a (..., n, k), b (k,)
        return fitted(b, lambda g: squeeze(matmul(left, expand_dims(g, -1)), -1))
    return (lambda g: matmul(left, g)) if y.ndim == 2 else fitted(b, lambda g: matmul(left, g))


defvjp(matmul, _matmul_left, _matmul_right)


def outer(a: Array, b: Array) -> Array:
    """a_i b_j over the last axes: (..., m), (..., n) -> (..., m, n)."""
    return expand_dims(a, -1) * expand_dims(b, -2)


@primitive
def _solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    n = a.shape[-1]
    full = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
    x = np.broadcast_to(b, full).astype(np.result_type(a, b))
    for i in range(n) if lower else range(n - 1, -1, -1):
        done = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= np.matmul(a[..., i, None, done], x[..., done, :])[..., 0, :]
        if not unit:
            x[..., i, :] /= a[..., i, i, None]
    return x


def _solved_matrix(y: Array, a: Array, b: Array, lower: bool, unit: bool) -> Pullback:
    def pullback(g: Array) -> Array:
        part = -(solve_triangular(_mT(a), g, lower=not lower, unit=unit) @ _mT(y))
        return tril(part, -1 if unit else 0) if lower else triu(part, 1 if unit else 0)

    return fitted(a, pullback)


def _solved_right(y: Array, a: Array, b: Array, lower: bool, unit: bool) -> Pullback:
    return fitted(b, lambda g: solve_triangular(_mT(a), g, lower=not lower, unit=unit))


defvjp(_solve_triangular, _solved_matrix, _solved_right)


def solve_triangular(a: Array, b: Array, lower: bool = True, unit: bool = False) -> Array:
    """Solve a x = b by substitution over rows, batched: a (..., n, n), b (..., n, m).

    Args:
        lower: which triangle of a; the other one is not read.
        unit: whether the diagonal is taken as ones, and not read.

    Raises:
        TapeError: a that is not square, or b with another number of rows.
    """
    _check_system("solve_triangular", a, b)
    return _solve_triangular(a, b, lower=lower, unit=unit)


def _check_system(name: str, a: Array, b: Array) -> None:
    if shape(a)[-2:-1] != shape(a)[-1:] or shape(a)[-1:] != shape(b)[-2:-1]:
        raise TapeError(
            f"ops.{name}: a {shape(a)} must be square and match the rows of b "
            f"{shape(b)}; write b as (..., n, m)"
        )


@primitive
def _solve(a: Array, b: Array) -> Array:
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    kind = np.result_type(a, b)
    wide = np.result_type(kind, np.float32)  # the narrowest that LAPACK has
    a = np.broadcast_to(a, (*lead, *a.shape[-2:])).astype(wide)
    b = np.broadcast_to(b, (*lead, *b.shape[-2:])).astype(wide)
    try:
        return np.linalg.solve(a, b).astype(kind)
    except np.linalg.LinAlgError:  # one of them is singular, and the others have a solution
        return _solved_one_by_one(a, b).astype(kind)


def _solved_one_by_one(a: Array, b: Array) -> Array:
    x = np.full_like(b, np.nan)
    for at in np.ndindex(b.shape[:-2]):
        with contextlib.suppress(np.linalg.LinAlgError):
            x[at] = np.linalg.solve(a[at], b[at])
    return x


defvjp(
    _solve,
    lambda y, a, b: fitted(a, lambda g: -(solve(_mT(a), g) @ _mT(y))),
    lambda y, a, b: fitted(b, lambda g: solve(_mT(a), g)),
)


def solve(a: Array, b: Array) -> Array:
    """Solve a x = b by elimination with row exchanges, batched: a (..., n, n), b (..., n, m).

    Formats narrower than float32 are solved in float32. The solution of a singular matrix is
    NaN, and with CuPy not finite.

    Raises:
        TapeError: a that is not square, or b with another number of rows.
    """
    _check_system("solve", a, b)
    return _solve(a, b)
