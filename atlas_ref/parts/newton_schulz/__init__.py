"""Newton-Schulz: an odd polynomial of the singular values by matrix products alone.

Specified in specs/newton_schulz.md.

Its action on singular values, its cost and its derivative: NS-10 to NS-18, NS-22 to NS-24.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from atlas_ref.backend import on_host
from atlas_ref.parts.newton_schulz import compiled_steps, numpy_steps
from atlas_ref.parts.newton_schulz.minimax import Coefficients, polar_express
from atlas_ref.types import Array, Frozen
from tape import opaque, ops

MUON = (3.4445, -4.7750, 2.0315)
CUBIC = (1.5, -0.5, 0.0)

Number = Annotated[float, Field(allow_inf_nan=False)]


class NewtonSchulz(Frozen):
    """Settings of Newton-Schulz; each key is part of the contract, since variants differ by 25 to
    50 % (NS-2, NS-15).

    Attributes:
        coefficients: muon, cubic, polar_express, or explicit rows (a, b, c), one a step, the last
            repeated.
        steps: number of polynomial steps, 1 to 1000 (for none, set `newton_schulz` to none).
        eps: added to, or floor of, the norm, see guard.
        norm_factor: factor of the norm that divides.
        guard: add (norm + eps), clamp (max(norm, eps)), return (the input itself below eps, else
            add).
        transpose: tall (work on the transpose where rows exceed columns) or never; the same
            function.
        scale: factor of the result: "1", "sqrt" of max(1, rows/columns), "norm" of the input.
        argument: what the rule passes in and keeps: S, nesterov, written_back, accumulated
            (OMEGA-8).
        lower_bound: smallest relative singular value that polar_express is made for.
    """

    coefficients: (
        Literal["muon", "cubic", "polar_express"] | tuple[tuple[Number, Number, Number], ...]
    ) = "muon"
    steps: Annotated[int, Field(ge=1, le=1000)] = 5
    eps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-7
    norm_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    guard: Literal["add", "clamp", "return"] = "add"
    transpose: Literal["tall", "never"] = "tall"
    scale: Literal["1", "sqrt", "norm"] = "1"
    argument: Literal["S", "nesterov", "written_back", "accumulated"] = "S"
    lower_bound: Annotated[float, Field(gt=0, lt=1)] = 1e-3

    @field_validator("coefficients", mode="before")
    @classmethod
    def _rows(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            if not value:
                raise ValueError("explicit coefficients need at least one row [a, b, c]")
            return tuple(tuple(row) if isinstance(row, list) else row for row in value)
        return value

    def __hash__(self) -> int:  # type: ignore[override]  # no arrays inside
        return hash(tuple(self.__dict__.values()))


@functools.lru_cache(maxsize=256)
def coefficient_table(settings: NewtonSchulz) -> tuple[Coefficients, ...]:
    """The rows (a, b, c) of every step, settings.steps of them (NS-3, NS-4, CONV-18)."""
    if settings.coefficients == "muon":
        return (MUON,) * settings.steps
    if settings.coefficients == "cubic":
        return (CUBIC,) * settings.steps
    if settings.coefficients == "polar_express":
        return polar_express(settings.lower_bound, settings.steps)
    rows = settings.coefficients
    return tuple(rows[min(i, len(rows) - 1)] for i in range(settings.steps))


def newton_schulz(S: Array, settings: NewtonSchulz) -> Array:
    """Apply Newton-Schulz to each matrix of a batch (CONV-17, CONV-19, NS-19).

        X_0 = S / (norm_factor ||S||_F + eps),   A = X X^T,   X <- a X + (b A + c A^2) X

    It is an odd polynomial p of the singular values, NS(S) = U p(sigma / (||S|| + eps)) V^T, not
    the polar factor.

    Args:
        S (..., d_out, d_phi): matrices.

    Returns:
        (..., d_out, d_phi), in the orientation of S. Zero where S is zero.

    Source: Jordan et al., Muon; Atlas (2505.23735) Eq 32. NS-1 to NS-9; gradient NS-20, NS-21.
    """
    return _block(settings)(S)


def iterates(S: Array, settings: NewtonSchulz) -> list[Array]:
    """X_0 .. X_n in the orientation of S, before scale and guard, in tape ops (NS-1)."""
    rows, columns = S.shape[-2:]
    tall = settings.transpose == "tall" and rows > columns
    X = _normalised(S, settings)
    X = ops.transpose(X) if tall else X
    sequence = [X]
    for a, b, c in coefficient_table(settings):
        A = X @ ops.transpose(X)
        X = a * X + (b * A + c * (A @ A)) @ X
        sequence.append(X)
    return [ops.transpose(X) for X in sequence] if tall else sequence


def plain_newton_schulz(S: Array, settings: NewtonSchulz) -> Array:
    """Newton-Schulz in tape ops: the plain twin of the opaque block, and its second derivative."""
    X = iterates(S, settings)[-1] * _scale(S, settings)
    if settings.guard == "return":
        X = ops.where(ops.less(_frobenius(S), settings.eps), S, X)
    return X


def _frobenius(S: Array) -> Array:
    return ops.norm(S, axis=(-2, -1), keepdims=True)


def _normalised(S: Array, settings: NewtonSchulz) -> Array:
    """S over its norm, with eps and the guard (CONV-19, CONV-20)."""
    norm = settings.norm_factor * _frobenius(S)
    size = ops.maximum(norm, settings.eps) if settings.guard == "clamp" else norm + settings.eps
    return S / ops.where(ops.equal(size, 0.0), 1.0, size)


def _scale(S: Array, settings: NewtonSchulz) -> Array:
    """The factor of the result (CONV-21)."""
    if settings.scale == "norm":
        return _frobenius(S)
    return math.sqrt(max(1.0, S.shape[-2] / S.shape[-1])) if settings.scale == "sqrt" else 1.0


# -- the opaque block ------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _block(settings: NewtonSchulz) -> Callable[[Array], Array]:
    def plain(S: Array) -> Array:
        return plain_newton_schulz(S, settings)

    def forward(S: Array) -> tuple[Array, Array]:
        return _forward(S, settings), S

    def backward(S: Array, g: Array) -> tuple[Array]:
        return (_backward(S, g, settings),)

    plain.__name__ = "newton_schulz"
    return opaque(plain, forward, backward)


def _forward(S: Array, settings: NewtonSchulz) -> Array:
    table, X, matrices = coefficient_table(settings), _room(S, settings), _matrices(S)
    steps = compiled_steps.forward(X, table)

    def part(group: slice) -> None:
        X[group] = _oriented(_normalised(matrices[group], settings), settings)
        if steps is None:
            numpy_steps.forward(X[group], table)
            return
        for one in steps(group):  # not finite, of which NumPy warns
            X[one] = _oriented(_normalised(matrices[one], settings), settings)
            numpy_steps.forward(X[one], table)

    numpy_steps.in_groups(part, X, numpy_steps.GROUP_BYTES, blas=steps is None)
    X = _unflat(X, S, settings)
    if settings.scale != "1":
        X = X * _scale(S, settings)
    if settings.guard == "return":
        X = np.where(ops.less(_frobenius(S), settings.eps), S, X)
    return X


def _matrices(S: Array) -> Array:
    """S with one leading axis, contiguous: norms are summed in one order in every group."""
    x = S.reshape(math.prod(S.shape[:-2]), *S.shape[-2:])
    return x.copy() if on_host(x) and not x.flags.c_contiguous else x


def _oriented(x: Array, settings: NewtonSchulz) -> Array:
    """A view of matrices in the orientation of the steps (CONV-21, CONV-50)."""
    return x.swapaxes(-1, -2) if settings.transpose == "tall" and x.shape[-2] > x.shape[-1] else x


def _room(S: Array, settings: NewtonSchulz) -> Array:
    """An empty array for matrices with one leading axis, in the orientation of the steps."""
    lead, shape = S.shape[:-2], _oriented(S, settings).shape[-2:]
    kind = np.result_type(S.dtype, 0.5)  # integers become floating numbers
    return np.empty_like(S, dtype=kind, order="C", shape=(math.prod(lead), *shape))


def _unflat(x: Array, S: Array, settings: NewtonSchulz) -> Array:
    """Matrices in the orientation and with the leading axes of S."""
    shape = S.shape[:-2], _oriented(S, settings).shape[-2:]
    x = x.reshape(*shape[0], *shape[1])
    return x if shape[1] == S.shape[-2:] else x.swapaxes(-1, -2)


def _backward(S: Array, g: Array, settings: NewtonSchulz) -> Array:
    """Cotangent of S: the steps are recomputed, then their backwards run one by one (NS-20, NS-21).

    B = b A + c A^2,  dB = dY X^T,  dA = b dB + c (dB A + A dB),
    dX = a dY + B dY + (dA + dA^T) X,  dS = dX / n - (norm_factor / n^2) <dX, S> S / ||S||
    """
    table, X, D = coefficient_table(settings), _room(S, settings), _room(S, settings)
    matrices = _matrices(S)
    cotangents = _oriented((g * _scale(S, settings)).reshape(matrices.shape), settings)
    steps = compiled_steps.backward(X, D, table, settings.scale == "norm")

    def start(group: slice) -> None:
        X[group] = _oriented(_normalised(matrices[group], settings), settings)
        D[group] = cotangents[group]

    def part(group: slice) -> None:  # X ends as the last iterate where that is used
        start(group)
        if steps is None:
            numpy_steps.backward(X[group], D[group], table)
            return
        for one in steps(group):  # not finite, of which NumPy warns
            start(one)
            numpy_steps.backward(X[one], D[one], table)

    size = numpy_steps.GROUP_BYTES
    if steps is None:
        size = min(size, numpy_steps.KEPT_BYTES // max(1, len(table)))
    numpy_steps.in_groups(part, X, size, blas=steps is None)
    dS = _normalised_backward(S, _unflat(D, S, settings), settings)
    norm = _frobenius(S)
    if settings.scale == "norm":
        safe = np.where(ops.equal(norm, 0.0), 1.0, norm)
        dS = dS + np.sum(g * _unflat(X, S, settings), axis=(-2, -1), keepdims=True) * S / safe
    if settings.guard == "return":
        dS = np.where(ops.less(norm, settings.eps), g, dS)
    return dS


def _normalised_backward(S: Array, D: Array, settings: NewtonSchulz) -> Array:
    norm = _frobenius(S)
    f: Array = settings.norm_factor
    size = f * norm + settings.eps
    if settings.guard == "clamp":
        size = ops.maximum(f * norm, settings.eps)
        f = ops.where(ops.less(f * norm, settings.eps), 0.0, f)
    size = np.where(ops.equal(size, 0.0), 1.0, size)
    safe = np.where(ops.equal(norm, 0.0), 1.0, norm)
    along = np.sum(D * S, axis=(-2, -1), keepdims=True)
    return (D - (f * along / size) * (S / safe)) / size
