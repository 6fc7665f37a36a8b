"""Newton-Schulz on balls, and the coefficients of Polar Express from their equations.

Source: NS-1 to NS-9, NS-21.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flint import arb, arb_mat, ctx

from atlas_ref.certify.functions import inverse
from atlas_ref.certify.matrix import Matrix, norm, sane, scaled, unknown
from atlas_ref.certify.rounding import rounded

Row = tuple[float, float, float]

#: NS-3: each constant is the float64 nearest to the printed decimal.
NAMED: dict[str, Row] = {"muon": (3.4445, -4.7750, 2.0315), "cubic": (1.5, -0.5, 0.0)}


def newton_schulz(S: Matrix, settings: Any) -> Matrix:
    """NS(S), in the orientation of S.

        X_0 = S / (f ||S|| + eps),   A = X X^T,   X <- a X + (b A + c A^2) X

    Where guard `return` cannot be decided, since the ball of the norm holds eps, the result is
    `unknown`.
    """
    length = norm(S)
    eps = arb(settings.eps)
    if settings.guard == "return" and not length.value[0, 0] >= eps:
        return S if length.value[0, 0] < eps else unknown(S)
    if settings.eps == 0 and length.value[0, 0].is_zero():
        X = S  # the divisor counts as 1, for the cotangent too (NS-7, NS-21)
    else:
        N = _divisor(length.times(arb(settings.norm_factor)), eps, settings.guard)
        X = scaled(inverse(N), S)
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
    """f ||S|| + eps, or max(f ||S||, eps), of a slope in [0, 1] where balls cannot compare."""
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


# -- coefficients of Polar Express (NS-5), enclosed by an interval Newton step ---------------------

#: NS-5: from here on the row of the limit.
SHORT = 1e-5
LIMIT: Row = (15 / 8, -10 / 8, 3 / 8)

#: Signs of p - 1 at the four points l, x1, x2, u, in units of E.
SIGNS = (-1, 1, -1, 1)


@functools.lru_cache(maxsize=64)
def polar_express(lower_bound: float, steps: int) -> list[Row]:
    """Rows (a, b, c) of every step, each coefficient the float64 nearest to the exact one."""
    bits = 512
    while True:
        with ctx.workprec(bits):
            rows = _table(arb(lower_bound), steps)
        if rows is not None:
            return rows
        bits *= 2


def _table(lower_bound: arb, steps: int) -> list[Row] | None:
    """The rows, None where this precision does not fix them."""
    low, high = lower_bound, arb(1)
    rows: list[Row] = []
    for _ in range(steps):
        gap = high - low
        if gap < arb(SHORT):
            rows.append(LIMIT)
            continue
        if not gap >= arb(SHORT):
            return None
        solution = _enclosed(low, high)
        if solution is None:
            return None
        ends = [rounded(x) for x in solution[:3]]
        if not all(each.unique for each in ends):
            return None
        rows.append((ends[0].low, ends[1].low, ends[2].low))
        low, high = 1 - solution[3], 1 + solution[3]
    return rows


def _enclosed(low: arb, high: arb) -> list[arb] | None:
    """Balls for a, b, c, E, x1, x2 that hold the solution, or None.

    A Newton step that maps a box into itself proves that the box holds the one solution.
    """
    guess = _exchanged(low.mid(), high.mid())
    if guess is None:
        return None
    size = arb(1) / arb(2) ** (ctx.prec // 4)
    box = [x + abs(x) * arb(0, 1) * size for x in guess]
    step = _jacobian(box, low, high).solve(_equations(guess, low, high))
    image = [x - step[i, 0] for i, x in enumerate(guess)]
    return (
        image if all(whole.contains(part) for whole, part in zip(box, image, strict=True)) else None
    )


def _exchanged(low: arb, high: arb) -> list[arb] | None:
    """A guess at the solution by exchange of points.

    Each step solves for a, b, c, E at four points, and moves the inner two to the extrema of p.
    """
    inner = [(3 * low + high) / 4, (low + 3 * high) / 4]
    for _ in range(200):
        points = [low, *inner, high]
        rows = [[x, x**3, x**5, arb(-sign)] for x, sign in zip(points, SIGNS, strict=True)]
        try:
            solution = arb_mat(rows).solve(arb_mat(4, 1, [arb(1)] * 4))
        except ZeroDivisionError:
            return None
        a, b, c, error = (solution[i, 0].mid() for i in range(4))
        root = (9 * b * b - 20 * a * c).sqrt()
        moved = [
            ((-3 * b - root) / (10 * c)).sqrt().mid(),
            ((-3 * b + root) / (10 * c)).sqrt().mid(),
        ]
        if not all(x.is_finite() for x in moved):
            return None
        change = sum((abs(x - y) for x, y in zip(inner, moved, strict=True)), arb(0))
        inner = moved
        if change < arb(1) / arb(2) ** (ctx.prec // 2):
            return [a, b, c, error, *inner]
    return None


def _equations(unknowns: Sequence[arb], low: arb, high: arb) -> arb_mat:
    """p(x) - 1 -+ E at l, x1, x2, u, and p'(x1), p'(x2): all 0 at the solution."""
    a, b, c, error, first, second = unknowns
    values = [
        a * x + b * x**3 + c * x**5 - 1 - sign * error
        for x, sign in zip((low, first, second, high), SIGNS, strict=True)
    ]
    return arb_mat(6, 1, [*values, *(a + 3 * b * x**2 + 5 * c * x**4 for x in (first, second))])


def _jacobian(unknowns: Sequence[arb], low: arb, high: arb) -> arb_mat:
    a, b, c, _, first, second = unknowns
    zero = arb(0)
    rows = []
    for place, (x, sign) in enumerate(zip((low, first, second, high), SIGNS, strict=True)):
        slope = a + 3 * b * x**2 + 5 * c * x**4
        rows.append(
            [
                x,
                x**3,
                x**5,
                arb(-sign),
                slope if place == 1 else zero,
                slope if place == 2 else zero,
            ]
        )
    for place, x in enumerate((first, second)):
        bend = 6 * b * x + 20 * c * x**3
        rows.append(
            [
                arb(1),
                3 * x**2,
                5 * x**4,
                zero,
                bend if place == 0 else zero,
                bend if place == 1 else zero,
            ]
        )
    return arb_mat(rows)
