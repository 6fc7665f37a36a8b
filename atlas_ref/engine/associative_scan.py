"""Associative scans of y_t = a_t y_{t-1} + b_t, numbers or matrices, in logarithmic depth.

Plain twin: `_plain_scalar` and `_plain_affine`, the same recurrences in tape ops. Specified in
specs/scan.md (SCAN-1 to SCAN-16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.types import Array
from tape import opaque, ops
from tape.shapes import unbroadcast


class Action(NamedTuple):
    """The action of a step's coefficient on a value, and the coefficient of two steps together.

    Attributes:
        act: the ufunc (value, coefficient) -> value; of an earlier and a later coefficient it makes
            that of both.
        adjoint: coefficients -> those of the transposed steps.
    """

    act: Any
    adjoint: Callable[[Array], Array]


SCALAR = Action(np.multiply, lambda a: a)


AFFINE = Action(np.matmul, lambda A: A.swapaxes(-1, -2))


def scan(a: Array, b: Array, *, axis: int = 0, initial: Array = None) -> Array:
    """Every value of a scalar linear recurrence, inclusive, in O(log T) steps (SCAN-1, SCAN-3).

        y_t = a_t y_{t-1} + b_t,    y_0 = initial

    Args:
        a (..., T, ...): coefficients, any numbers; of the shape of b, or broadcastable to it, with
            all T along `axis`.
        b (..., T, ...): the term that each step adds.
        axis: that of time, of b (a has it at the same place from the end).
        initial: y_0, of the shape of b without `axis`, or broadcastable to it; None for zero.

    Returns:
        y, of the shape of b.

    Raises:
        ValueError: no step, or shapes that do not fit.

    Source: Atlas (2505.23735) Eq 34; SCAN-1, gradient SCAN-15.
    """
    back = axis - b.ndim if axis >= 0 else axis
    rest = tuple(n for place, n in enumerate(b.shape) if place != b.ndim + back)
    if (
        not -b.ndim <= back < 0
        or b.shape[back] == 0
        or not _fits(a.shape, b.shape)
        or a.shape[back:][:1] != b.shape[back:][:1]
    ):
        raise ValueError(
            f"scan: a {a.shape} and b {b.shape} do not fit along axis {axis}; both need the "
            "same steps there, at least one"
        )
    if initial is None:
        initial = ops.zeros_like(b, shape=rest)
    elif not _fits(initial.shape, rest):
        raise ValueError(f"scan: initial {initial.shape}, expected {rest}")
    y = _scalar(
        ops.moveaxis(_aligned(a, b.ndim), back, 0),
        ops.moveaxis(b, back, 0),
        ops.broadcast_to(initial, rest),
    )
    return ops.moveaxis(y, 0, back)


def affine_scan(A: Array, B: Array, *, initial: Array = None) -> Array:
    """Every value of an affine recurrence of matrices, inclusive, in O(log T) steps (SCAN-2,
    SCAN-3).

        X_t = X_{t-1} A_t + B_t,    X_0 = initial

    Args:
        A (..., T, n, n): maps that act from the right; leading axes of B, or broadcastable to them.
        B (..., T, rows, n): the term that each step adds.
        initial (..., rows, n): X_0; None for zero.

    Returns:
        X (..., T, rows, n).

    Raises:
        ValueError: no step, or shapes that do not fit.

    Source: Atlas (2505.23735) Eq 11, SCAN-2, gradient SCAN-15.
    """
    steps, n = B.shape[-3:-2], B.shape[-1:]
    if (
        B.ndim < 3
        or A.shape[-3:] != (*steps, *n, *n)
        or steps == (0,)
        or not _fits(A.shape[:-3], B.shape[:-3])
    ):
        raise ValueError(
            f"affine_scan: A {A.shape} and B {B.shape}, expected (..., T, n, n) and (..., T, "
            "rows, n) with T at least 1"
        )
    first = (*B.shape[:-3], *B.shape[-2:])
    if initial is None:
        initial = ops.zeros_like(B, shape=first)
    elif not _fits(initial.shape, first):
        raise ValueError(f"affine_scan: initial {initial.shape}, expected {first}")
    X = _affine(
        ops.moveaxis(_aligned(A, B.ndim), -3, 0),
        ops.moveaxis(B, -3, 0),
        ops.broadcast_to(initial, first),
    )
    return ops.moveaxis(X, 0, -3)


def _fits(shape: tuple[int, ...], into: tuple[int, ...]) -> bool:
    """Whether an array of this shape broadcasts to `into`."""
    return len(shape) <= len(into) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(into), strict=False)
    )


def _aligned(a: Array, ndim: int) -> Array:
    return a if a.ndim == ndim else ops.reshape(a, (*(1,) * (ndim - a.ndim), *a.shape))


def _values(kind: Action, a: Array, b: Array, initial: Array) -> Array:
    """y_t = y_{t-1} a_t + b_t for every t, from y_0 = initial."""
    y = np.empty_like(b, dtype=np.result_type(a, b, initial))
    _fill(kind, a, b, initial, y)
    return y


def _fill(kind: Action, a: Array, b: Array, initial: Array, y: Array) -> None:
    """Every second value by the scan of the pairs between them, then the others in one step
    (SCAN-3).

    The first step takes the initial value in, so no product of coefficients reaches back to the
    start.
    """
    _step(kind, initial, a[0], b[0], y[0, ...])
    if len(b) > 2:
        _fill(kind, *_pairs(kind, a[1:], b[1:]), y[0], y[2::2])
    _step(kind, y[:-1:2], a[1::2], b[1::2], y[1::2])


def _step(kind: Action, before: Array, a: Array, b: Array, out: Array) -> None:
    kind.act(before, a, out=out)
    out += b


def _pairs(kind: Action, a: Array, b: Array) -> tuple[Array, Array]:
    """(a_1 a_2, b_1 a_2 + b_2) of steps by twos, without a last step that has no partner."""
    end = len(b) - len(b) % 2
    first, then = slice(0, end, 2), slice(1, end, 2)
    both = kind.act(b[first], a[then])
    both += b[then]
    return kind.act(a[first], a[then]), both


def _adjoint_values(kind: Action, a: Array, g: Array) -> Array:
    """lambda_t = g_t + a_{t+1}^T lambda_{t+1}: the same scan from the end (SCAN-15)."""
    adjoints = np.empty_like(g, dtype=np.result_type(a, g))
    adjoints[-1] = g[-1]
    if len(g) > 1:
        adjoints[-2::-1] = _values(kind, kind.adjoint(a[:0:-1]), g[-2::-1], g[-1])
    return adjoints


def _before(y: Array, initial: Array) -> Array:
    """y_{t-1} for every t."""
    return np.concatenate([initial[None], y[:-1]])


def _plain_scalar(a: Array, b: Array, initial: Array) -> Array:
    y = [initial]
    for t in range(b.shape[0]):
        y.append(a[t] * y[-1] + b[t])
    return ops.stack(y[1:])


def _scalar_forward(a: Array, b: Array, initial: Array) -> tuple[Array, Any]:
    y = _values(SCALAR, a, b, initial)
    return y, (a, initial, y)


def _scalar_backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    a, initial, y = kept
    adjoints = _adjoint_values(SCALAR, a, g)
    return unbroadcast(adjoints * _before(y, initial), a.shape), adjoints, a[0] * adjoints[0]


def _plain_affine(A: Array, B: Array, initial: Array) -> Array:
    X = [initial]
    for t in range(B.shape[0]):
        X.append(X[-1] @ A[t] + B[t])
    return ops.stack(X[1:])


def _affine_forward(A: Array, B: Array, initial: Array) -> tuple[Array, Any]:
    X = _values(AFFINE, A, B, initial)
    return X, (A, initial, X)


def _affine_backward(kept: Any, g: Array) -> tuple[Array, Array, Array]:
    A, initial, X = kept
    adjoints = _adjoint_values(AFFINE, A, g)
    dA = _before(X, initial).swapaxes(-1, -2) @ adjoints
    return unbroadcast(dA, A.shape), adjoints, adjoints[0] @ A[0].swapaxes(-1, -2)


_scalar = opaque(_plain_scalar, _scalar_forward, _scalar_backward)


_affine = opaque(_plain_affine, _affine_forward, _affine_backward)
