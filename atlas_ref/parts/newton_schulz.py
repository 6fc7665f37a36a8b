"""Newton-Schulz: an odd polynomial of the singular values by matrix products alone.

Specified in specs/newton_schulz.md.

Its action on singular values, its cost and its derivative: NS-10 to NS-18, NS-22 to NS-24.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from atlas_ref.backend import on_host
from atlas_ref.backend.scratch import scratch
from atlas_ref.backend.threads import in_threads, processors
from atlas_ref.parts import compiled_steps
from atlas_ref.types import Array, Frozen
from tape import opaque, ops

MUON = (3.4445, -4.7750, 2.0315)
CUBIC = (1.5, -0.5, 0.0)
LIMIT = (15 / 8, -10 / 8, 3 / 8)
DIGITS = 80

Coefficients = tuple[float, float, float]
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


@functools.lru_cache(maxsize=64)
def polar_express(lower_bound: float, steps: int) -> tuple[Coefficients, ...]:
    """Rows of odd quintics, each minimax for 1 on the image of the interval under those before
    (NS-5).

        p_i = argmin max_{x in [l_i, u_i]} |1 - p(x)|,   l_0 = lower_bound, u_0 = 1,
        [l_{i+1}, u_{i+1}] = [1 - E_i, 1 + E_i]

    Source: Amsel et al., The Polar Express (2505.16932), without its safety factor.
    """
    rows: list[Coefficients] = []
    low, high = Decimal(lower_bound), Decimal(1)
    # ill-conditioned on short intervals; 1 - E holds a tiny lower bound
    with localcontext(prec=DIGITS - low.adjusted()):
        for _ in range(steps):
            if high - low < Decimal("1e-5"):
                rows.append(LIMIT)
                continue
            (a, b, c), error = _minimax(low, high)
            rows.append((float(a), float(b), float(c)))
            low, high = 1 - error, 1 + error
    return tuple(rows)


def _minimax(low: Decimal, high: Decimal) -> tuple[tuple[Decimal, Decimal, Decimal], Decimal]:
    """The odd quintic that equioscillates about 1 at low < q < r < high, and its error.

    They are computed by exchange of q and r.
    """
    q, r = (3 * low + high) / 4, (low + 3 * high) / 4
    while True:
        # p = 1 - E, 1 + E, 1 - E, 1 + E at the four points
        points = zip(
            (low, q, r, high), (Decimal(1), Decimal(-1), Decimal(1), Decimal(-1)), strict=True
        )
        a, b, c, error = _solve([[x, x**3, x**5, sign, Decimal(1)] for x, sign in points])
        root = (9 * b * b - 20 * a * c).sqrt()  # of p'(x) = a + 3 b x^2 + 5 c x^4
        before = q, r
        q, r = ((-3 * b - root) / (10 * c)).sqrt(), ((-3 * b + root) / (10 * c)).sqrt()
        # not E, which barely moves where low is tiny
        if abs(q - before[0]) + abs(r - before[1]) <= Decimal("1e-40"):
            return (a, b, c), error


def _solve(rows: list[list[Decimal]]) -> list[Decimal]:
    """Gauss-Jordan elimination with row exchange on an augmented system."""
    n = len(rows)
    for i in range(n):
        pivot = max(range(i, n), key=lambda j: abs(rows[j][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(n):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
    return [row[n] for row in rows]


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


# -- the opaque block: in place, in groups that stay near a processor, over threads ----------------

# of smaller groups threads contend for the GIL, which every call needs at its end
GROUP_BYTES = 2**20
KEPT_BYTES = 5 * 2**20  # of all iterates that a group keeps for its backward
# multiply-adds of one step below which a second thread costs more than it saves
THREAD_WORK = 2**22
# multiply-adds of one product above which the BLAS starts threads, which would contend with ours
BLAS_WORK = 2**20


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
            _polynomial_steps(X[group], table)
            return
        for one in steps(group):  # not finite, of which NumPy warns
            X[one] = _oriented(_normalised(matrices[one], settings), settings)
            _polynomial_steps(X[one], table)

    _in_groups(part, X, GROUP_BYTES, blas=steps is None)
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


def _polynomial_steps(X: Array, table: tuple[Coefficients, ...]) -> None:
    """Run all steps on one group of matrices, in place, in reused work space."""
    with scratch.frame():
        square = (*X.shape[:-1], X.shape[-2])
        A, B, Y = scratch.empty(square, X), scratch.empty(square, X), scratch.empty(X.shape, X)
        for a, b, c in table:
            _gram(X, A)
            if c == 0:  # a cubic does without A^2
                A *= b
            else:
                np.matmul(A, A, out=B)
                B *= c
                A *= b
                A += B
            np.matmul(A, X, out=Y)
            X *= a
            X += Y


def _gram(X: Array, out: Array) -> None:
    """Compute X X^T into `out`.

    A small product is twice as fast with a contiguous right side. A large one the BLAS computes on
    several threads, and only half of it, since the result is symmetric.
    """
    if X.shape[-2] ** 2 * X.shape[-1] > BLAS_WORK:
        np.matmul(X, X.swapaxes(-1, -2), out=out)
        return
    with scratch.frame():
        np.matmul(X, scratch.transposed(X), out=out)


def _in_groups(
    work: Callable[[slice], None], X: Array, size_of_group: int, *, blas: bool = True
) -> None:
    """Run `work` over groups of matrices of at most `size_of_group` bytes, on several threads where
    that pays.

    Every matrix is computed alone, so the result does not depend on groups or threads.

    Args:
        blas: whether products are the BLAS's, which shares out large ones itself.
    """
    count, rows, columns = X.shape
    if not on_host(X):  # a device takes all matrices at once
        work(slice(None))
        return
    product = rows * rows * columns
    pays = (product <= BLAS_WORK or not blas) and count * product >= THREAD_WORK
    threads = min(processors(), max(1, count)) if pays else 1
    size = max(1, min(size_of_group // max(1, rows * columns * X.itemsize), -(-count // threads)))
    groups = [slice(i, i + size) for i in range(0, count, size)]

    def share(first: int) -> None:
        for group in groups[first::threads]:
            work(group)

    in_threads([functools.partial(share, first) for first in range(threads)])


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
            _backward_steps(X[group], D[group], table)
            return
        for one in steps(group):  # not finite, of which NumPy warns
            start(one)
            _backward_steps(X[one], D[one], table)

    kept = KEPT_BYTES // max(1, len(table)) if steps is None else GROUP_BYTES
    _in_groups(part, X, min(GROUP_BYTES, kept), blas=steps is None)
    dS = _normalised_backward(S, _unflat(D, S, settings), settings)
    norm = _frobenius(S)
    if settings.scale == "norm":
        safe = np.where(ops.equal(norm, 0.0), 1.0, norm)
        dS = dS + np.sum(g * _unflat(X, S, settings), axis=(-2, -1), keepdims=True) * S / safe
    if settings.guard == "return":
        dS = np.where(ops.less(norm, settings.eps), g, dS)
    return dS


def _backward_steps(X: Array, D: Array, table: tuple[Coefficients, ...]) -> None:
    """Recompute the steps of one group in place in X, and run their backwards in place in D.

    D holds the cotangent of the last iterate, then that of the first.
    """
    arguments = []
    for row in table:
        arguments.append(X.copy())
        _polynomial_steps(X, (row,))
    A, B, dA, other = (np.empty_like(X, shape=(*X.shape[:-1], X.shape[-2])) for _ in range(4))
    Y, x_T = np.empty_like(X), np.empty_like(X, shape=(*X.shape[:-2], X.shape[-1], X.shape[-2]))
    for (a, b, c), x in zip(reversed(table), reversed(arguments), strict=True):
        # a product with a contiguous factor is faster, and there are two
        x_T[...] = x.swapaxes(-1, -2)
        np.matmul(x, x_T, out=A)
        np.matmul(D, x_T, out=B)  # dB
        np.matmul(B, A, out=dA)
        dA += np.matmul(A, B, out=other)
        dA *= c
        B *= b
        dA += B
        np.add(dA, dA.swapaxes(-1, -2), out=other)
        np.matmul(A, A, out=B)
        B *= c
        A *= b
        B += A
        np.matmul(B, D, out=Y)
        D *= a
        D += Y
        D += np.matmul(other, x, out=Y)


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
