"""Newton-Schulz on balls, and the coefficients of Polar Express from their equations (NS-1 to NS-9, NS-21)."""

from __future__ import annotations

from typing import Any

from flint import arb, arb_mat

from atlas_ref.certify.functions import inverse
from atlas_ref.certify.matrix import Matrix, norm, sane, scaled, unknown, zeros
from atlas_ref.certify.polar_express import polar_express

Row = tuple[float, float, float]

#: NS-3: each constant is the float64 nearest to the printed decimal.
NAMED: dict[str, Row] = {"muon": (3.4445, -4.7750, 2.0315), "cubic": (1.5, -0.5, 0.0)}


def newton_schulz(S: Matrix, settings: Any) -> Matrix:
    """NS(S), in the orientation of S.

        X_0 = S / (f ||S|| + eps),   A = X X^T,   X <- a X + (b A + c A^2) X

    Where guard `return` cannot be decided, since the ball of the norm holds eps, nothing is known of the result.
    """
    length = norm(S)
    eps = arb(settings.eps)
    if settings.eps == 0 and length.value[0, 0].is_zero():
        return zeros(S.rows, S.columns)
    if settings.guard == "return" and not length.value[0, 0] >= eps:
        return S if length.value[0, 0] < eps else unknown(S)
    X = scaled(inverse(_divisor(length.times(arb(settings.norm_factor)), eps, settings.guard)), S)
    tall = S.rows > S.columns  # the function is the same either way (NS-8); this is the cheaper one
    X = X.T if tall else X
    for row in coefficient_rows(settings):
        X = sane(_step(X, *row))
    X = X.T if tall else X
    if settings.scale == "sqrt":
        return X.times((arb(max(S.rows, S.columns)) / S.columns).sqrt())
    return scaled(length, X) if settings.scale == "norm" else X


def _step(X: Matrix, a: float, b: float, c: float) -> Matrix:
    A = X @ X.T
    P = A.times(arb(b))
    if c != 0:
        P = P + (A @ A).times(arb(c))
    return X.times(arb(a)) + P @ X


def _divisor(length: Matrix, eps: arb, guard: str) -> Matrix:
    """f ||S|| + eps, or max(f ||S||, eps), whose slope lies in [0, 1] where nobody knows which is larger."""
    size = length.value[0, 0]
    if guard != "clamp":
        return length.plus(eps)
    if size >= eps:
        return length
    slope = arb(0) if size < eps else arb(0.5, 0.5)
    return Matrix(arb_mat(1, 1, [size.max(eps)]), (length, lambda g: g * slope))


def coefficient_rows(settings: Any) -> list[Row]:
    """(a, b, c) of every step (NS-3 to NS-5)."""
    named = settings.coefficients
    if named == "polar_express":
        return polar_express(settings.lower_bound, settings.steps)
    rows = [NAMED[named]] if isinstance(named, str) else [tuple(each) for each in named]
    return [rows[min(i, len(rows) - 1)] for i in range(settings.steps)]
