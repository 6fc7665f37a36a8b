"""Coefficients of Polar Express: of each step the odd quintic that is nearest to 1.

Specified in specs/newton_schulz.md (NS-5).
"""

from __future__ import annotations

import functools
from decimal import Decimal, localcontext

LIMIT = (15 / 8, -10 / 8, 3 / 8)
DIGITS = 80

Coefficients = tuple[float, float, float]


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
