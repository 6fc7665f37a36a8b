"""Conversion of balls to float64, against Python's correctly rounded fractions."""

import math
from fractions import Fraction

import pytest
from flint import arb, ctx
from hypothesis import example, given
from hypothesis import strategies as st

from atlas_ref.certify.rounding import nearest, rounded
from tests.support.strategies import repeatable

HALF = Fraction(1, 2**1075)  # of the smallest subnormal


def ball(middle: Fraction, radius: Fraction = Fraction(0)) -> arb:
    """An exact ball of dyadic numbers."""
    with ctx.workprec(20000):
        parts = [arb(each.numerator) / arb(each.denominator) for each in (middle, radius)]
        made = parts[0] + arb(0, 1) * parts[1]
        assert made.mid() * 1 == parts[0]
    return made


@pytest.mark.clause("CERT-4")
@repeatable
@given(st.integers(-(2**80), 2**80), st.integers(-1200, 900))
@example(0, 0)
@example(1, -1075)
@example(-1, -1075)
@example(3, -1075)
@example(2**53 + 1, 0)
@example(2**53 + 3, -1100)
@example(2**54 - 1, 969)
def test_the_nearest_float64_is_that_of_a_fraction(integer, exponent):
    exact = Fraction(integer) * Fraction(2) ** exponent
    try:
        want = float(exact)
    except OverflowError:
        want = math.copysign(math.inf, integer)
    got = nearest(integer, exponent)
    assert got == want
    assert got != 0 or math.copysign(1.0, got) == 1.0


@pytest.mark.clause("CERT-4")
def test_what_is_beyond_the_largest_float64_by_half_a_place_is_infinite():
    largest = 2**53 - 1
    assert nearest(2 * largest, 970) == 1.7976931348623157e308
    assert nearest(2 * largest + 1, 970) == math.inf  # a tie, whose even neighbour is beyond
    assert nearest(4 * largest + 1, 969) == 1.7976931348623157e308
    assert nearest(-1, 100_000) == -math.inf
    assert nearest(1, -100_000) == 0.0


@pytest.mark.clause("CERT-5")
def test_an_exact_tie_goes_to_even_and_a_ball_around_it_has_two_ends():
    tie = 1 + Fraction(1, 2**53)
    assert rounded(ball(tie)) == (1.0, 1.0)
    assert rounded(ball(tie + Fraction(2, 2**53))) == (1.0 + 2**-51, 1.0 + 2**-51)
    wide = rounded(ball(tie, Fraction(1, 2**3000)))
    assert wide == (1.0, 1.0 + 2**-52)
    assert not wide.unique
    assert rounded(ball(-tie, Fraction(1, 2**3000))) == (-1.0 - 2**-52, -1.0)


@pytest.mark.clause("CERT-4")
def test_zero_has_no_sign_and_small_balls_around_it_are_zero():
    assert str(rounded(ball(Fraction(0))).low) == "0.0"
    near = rounded(ball(Fraction(0), HALF * Fraction(9, 10)))
    assert near.unique
    assert [str(each) for each in near] == ["0.0", "0.0"]
    assert rounded(ball(Fraction(0), HALF * Fraction(11, 10))) == (-5e-324, 5e-324)
    assert [str(each) for each in rounded(ball(-HALF / 2))] == ["0.0", "0.0"]


@pytest.mark.clause("CERT-4")
def test_subnormals_have_their_own_last_place():
    assert rounded(ball(3 * HALF)) == (1e-323, 1e-323)  # a tie between 1 and 2 units, to even
    assert rounded(ball(5 * HALF)) == (1e-323, 1e-323)
    assert rounded(ball(5 * HALF, HALF / 8)) == (1e-323, 1.5e-323)


@pytest.mark.clause("CERT-7")
def test_a_ball_without_bounds_has_infinite_ends():
    for unbounded in (arb.nan(), arb.pos_inf(), arb(1) / arb(0, 1), arb(0, 1) * arb(2) ** (2**70)):
        assert rounded(unbounded) == (-math.inf, math.inf)


def test_a_radius_far_below_the_midpoint_still_tells_on_which_side_of_a_tie_the_ball_may_be():
    tiny = arb(0, 1) * arb(2) ** -(2**40)
    with ctx.workprec(200):
        tie = arb(1) + arb(2) ** -53
        assert rounded(arb(1) + tiny) == (1.0, 1.0)
        assert rounded(tie + tiny) == (1.0, 1.0 + 2**-52)
