"""Rounding of a ball to the one float64 nearest to every number in it.

Specified in specs/certify.md, CERT-4 and CERT-5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from flint import arb

#: float64: significand bits, exponents of a subnormal's last place and of the first beyond range.
DIGITS, LOWEST, BEYOND = 53, -1074, 1024


class Rounded(NamedTuple):
    """The float64 nearest to the ends of a ball; the same where the ball has one."""

    low: float
    high: float

    @property
    def unique(self) -> bool:
        return self.low == self.high


def rounded(ball: arb) -> Rounded:
    """Both ends of a ball, each to the nearest float64, ties to even; an exact ball has one end.

    Zero carries no sign. What is beyond the largest float64 by half its last place or more becomes
    an infinity, as IEEE 754 has it.
    """
    if not ball.is_finite():
        return Rounded(-math.inf, math.inf)
    middle, exponent = (int(each) for each in ball.mid().man_exp())
    radius, scale = (int(each) for each in ball.rad().man_exp())
    if radius == 0:
        both = nearest(middle, exponent)
        return Rounded(both, both)
    if middle == 0:
        exponent = scale
    least = min(exponent, scale)
    # the smaller of the two is nowhere near a float64 beside the other
    if max(exponent, scale) - least > 1 << 20:
        return _far_apart(middle, exponent, radius, scale)
    middle, radius = middle << (exponent - least), radius << (scale - least)
    return Rounded(nearest(middle - radius, least), nearest(middle + radius, least))


def _far_apart(middle: int, exponent: int, radius: int, scale: int) -> Rounded:
    """Ends of a ball whose midpoint and radius are too many powers of two apart for a shift."""
    if scale > exponent:
        return Rounded(-math.inf, math.inf)
    # one unit far below the midpoint's last place decides ties just as the true radius does
    middle, exponent = middle << 4096, exponent - 4096
    return Rounded(nearest(middle - 1, exponent), nearest(middle + 1, exponent))


def nearest(integer: int, exponent: int) -> float:
    """integer * 2^exponent as the nearest float64, ties to even."""
    size, sign = abs(integer), -1.0 if integer < 0 else 1.0
    if size == 0:
        return 0.0
    top = size.bit_length() + exponent  # size * 2^exponent is below 2^top and at least half of it
    if top > BEYOND:
        return sign * math.inf
    if top < LOWEST:
        return 0.0
    last = max(top - DIGITS, LOWEST)  # exponent of the last place
    shift = last - exponent
    if shift > 0:
        quotient, rest = size >> shift, size & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        quotient += rest > half or (rest == half and quotient & 1)
    else:
        quotient = size << -shift
    if quotient.bit_length() + last > BEYOND:
        return sign * math.inf
    return sign * math.ldexp(quotient, last) if quotient else 0.0
