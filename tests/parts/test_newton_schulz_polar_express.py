"""The table of polar_express: each step the odd quintic nearest to 1 (NS-5)."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table, newton_schulz
from atlas_ref.parts.newton_schulz.minimax import LIMIT, polar_express
from tests.support.close import ANALYTIC, assert_close
from tests.truth import minimax

BOUNDS = [1e-3, 0.05, 0.3, 0.5, 0.9, 0.99]


def p(row: tuple[float, float, float], x: Decimal) -> Decimal:
    a, b, c = (Decimal(each) for each in row)
    return x * (a + x * x * (b + c * x * x))


def extrema(row: tuple[float, float, float]) -> tuple[Decimal, Decimal]:
    """The positive zeros of p' = a + 3 b x^2 + 5 c x^4."""
    a, b, c = (Decimal(each) for each in row)
    root = (9 * b * b - 20 * a * c).sqrt()
    return ((-3 * b - root) / (10 * c)).sqrt(), ((-3 * b + root) / (10 * c)).sqrt()


def least_distance(points: list[Decimal]) -> Decimal:
    """A lower bound of every odd quintic on four points, in exact fractions.

    With y = x^2, the weights m_k = 1 / (x_k prod_j (y_k - y_j)) give sum m_k p(x_k) = 0 for every
    p, so max |1 - p(x_k)| >= |sum m_k| / sum |m_k|. Its error is of second order in that of the
    points.
    """
    x = [Fraction(point) for point in points]
    weights = []
    for k, own in enumerate(x):
        product = own
        for j, other in enumerate(x):
            if j != k:
                product *= own * own - other * other
        weights.append(1 / product)
    bound = abs(sum(weights)) / sum(abs(weight) for weight in weights)
    return Decimal(bound.numerator) / Decimal(bound.denominator)


@pytest.mark.clause("NS-5")
def test_the_printed_table_for_the_default_lower_bound() -> None:
    rows = [
        (8.470328803848, -25.108074706662, 18.629275599118, 0.991529696304),
        (4.182834183294, -3.108701109889, 0.580606681350, 0.964572013324),
        (3.961857278962, -2.954063746359, 0.562976117954, 0.859770700521),
        (3.286586217028, -2.464720134531, 0.507357693861, 0.545893283861),
        (2.273749994434, -1.644660367908, 0.416190927498, 0.113448457382),
        (1.888716197352, -1.265157225339, 0.376518925557, 0.000916472189),
    ]
    got = np.array(coefficient_table(NewtonSchulz(coefficients="polar_express", steps=6)))
    want = np.array(rows)
    assert np.abs(got - want[:, :3]).max() <= 5e-13 + 1e-15  # twelve printed decimals
    low = 1e-3
    for (a, b, c), error in zip(got, want[:, 3], strict=True):
        assert abs(1 - (a * low + b * low**3 + c * low**5) - error) <= 5e-13 + 1e-15
        low = a * low + b * low**3 + c * low**5  # p(l_i) = 1 - E_i = l_{i+1}


@pytest.mark.clause("NS-5")
@pytest.mark.parametrize("lower_bound", BOUNDS)
def test_each_row_equals_an_independent_minimax_computation(lower_bound: float) -> None:
    low = lower_bound
    for i, (row, want) in enumerate(
        zip(polar_express(lower_bound, 9), minimax.polar_express(lower_bound, 9), strict=True)
    ):
        # on shorter intervals float64 rounds the coefficients of the independent one
        if want.error > 1e-3:
            assert_close(f"row {i}", np.array(row), np.array(want.row), ANALYTIC)
        x = np.linspace(low, 2 - low if i else 1.0, 1001)
        values = [x * (a + x * x * (b + c * x * x)) for a, b, c in (row, want.row)]
        assert_close(f"polynomial {i}", values[0], values[1], ANALYTIC)
        low = 1 - abs(want.error) if want.error else low


@pytest.mark.clause("NS-5")
@pytest.mark.parametrize("lower_bound", [1e-12, 1e-6, *BOUNDS])
def test_no_odd_quintic_is_nearer_to_one_on_the_interval_that_the_steps_before_leave(
    lower_bound: float,
) -> None:
    with localcontext(prec=60):
        low, high = Decimal(lower_bound), Decimal(1)
        for row in polar_express(lower_bound, 26):
            if high - low < Decimal("1e-5"):
                assert row == LIMIT == (15 / 8, -10 / 8, 3 / 8)
                continue
            points = [low, *extrema(row), high]
            assert points == sorted(points)  # both extrema lie inside the interval
            distances = [1 - p(row, x) for x in points]  # 1 - E, 1 + E, 1 - E, 1 + E
            error = least_distance(points)
            rounding = Decimal(2**-52) * sum(
                abs(Decimal(each)) * high**n for each, n in zip(row, (1, 3, 5), strict=True)
            )
            for distance, sign in zip(distances, (1, -1, 1, -1), strict=True):
                assert abs(distance - sign * error) <= rounding
            low, high = 1 - error, 1 + error
        assert row == LIMIT


@pytest.mark.clause("NS-5")
def test_a_tiny_lower_bound_has_the_rows_of_a_small_one() -> None:
    # the interval is [0, 2] to thirty digits in all of them
    small = np.array(polar_express(1e-30, 12))
    for tiny in (1e-60, 1e-100, 5e-324):
        assert_close(f"{tiny}", np.array(polar_express(tiny, 12)), small, ANALYTIC)
    assert polar_express(1e-60, 110)[-1] == LIMIT  # each step multiplies it by at least 4


@pytest.mark.clause("NS-5")
def test_steps_after_convergence_are_the_limit_row() -> None:
    rows = polar_express(1e-3, 12)
    assert rows[6] != LIMIT
    assert rows[7:] == (LIMIT,) * 5
    assert polar_express(0.999995, 2) == (LIMIT,) * 2  # an interval of 5e-6 from the start
    a, b, c = LIMIT
    # p(1) = 1, p'(1) = p''(1) = 0
    assert (a + b + c, a + 3 * b + 5 * c, 6 * b + 20 * c) == (
        1.0,
        0.0,
        0.0,
    )


@pytest.mark.clause("NS-5")
def test_there_is_no_safety_factor() -> None:
    a, b, c = polar_express(1e-3, 1)[0]
    # the ends of [l_0, 1] are equally far from 1
    assert abs(1 - (a * 1e-3 + b * 1e-9 + c * 1e-15) - ((a + b + c) - 1)) <= 1e-15


@pytest.mark.clause("NS-5", "NS-15")
def test_five_steps_bring_every_singular_value_above_the_bound_near_one() -> None:
    x = np.geomspace(1e-3, 1, 20_001)
    # divides by 1
    settings = NewtonSchulz(coefficients="polar_express", eps=1.0, norm_factor=1e-300)
    found = newton_schulz(x.reshape(-1, 1, 1), settings)
    assert found.min() == pytest.approx(0.8866, abs=5e-5)
    assert found.max() == pytest.approx(1.1134, abs=5e-5)
