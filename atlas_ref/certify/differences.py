"""Derivatives from differences of values alone, to 30 digits.

They prove certified gradients without a backward (CERT-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flint import arb, ctx

from atlas_ref.certify.certified import DIRECTIONS, direction, exact, larger
from atlas_ref.certify.evaluate import WEIGHED, evaluate
from atlas_ref.certify.results import Certified
from atlas_ref.certify.rounding import rounded
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case

Array = np.ndarray[Any, Any]

#: Digits that a difference must have before it counts, and the bits that they are.
DIGITS = 30
ACCURACY = 100

#: A derivative below this power of two, at a step of its input's size, counts as 0.
NOTHING = -300


class Difference(NamedTuple):
    """A certified derivative beside the interval that differences of values allow.

    Attributes:
        name: grad/NAME.
        place: index of the entry, or (i,) for direction i of a larger case.
        certified: the value of `certify`.
        low, high: the float64 nearest to the ends of the interval.
        agrees: whether `certified` is one of them, or lies between them.
    """

    name: str
    place: tuple[int, ...]
    certified: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        return self.low <= self.certified <= self.high


def differences(
    case: Case, certified: Certified, *, max_bits: int = 16384, progress: Progress = unwatched
) -> Iterator[Difference]:
    """Prove every certified derivative of a case by differences of values.

    Of a case with more than 8 tokens or 4 dimensions only the derivatives along 8 directions are
    proved.

    Args:
        certified: with gradients.
        progress: called before each derivative with how many are proved, and how many there are.
    """
    arrays = exact(case)
    derivatives = list(_derivatives(case, certified))
    for number, (name, place, unit, value) in enumerate(derivatives):
        progress("derivatives by differences", number, len(derivatives))
        ends = rounded(
            derivative(case, arrays, "in/" + name.removeprefix("grad/"), unit, max_bits=max_bits)
        )
        yield Difference(name, place, value, *ends)


def _derivatives(
    case: Case, certified: Certified
) -> Iterator[tuple[str, tuple[int, ...], Array, float]]:
    """Name, place, direction and value of every derivative to prove."""
    if larger(case):
        for name, values in certified.directions.items():
            shape = certified.values[name].shape
            yield from (
                (name, (i,), direction(shape, i), float(values[i])) for i in range(DIRECTIONS)
            )
        return
    for name, value in certified.values.items():
        if name.startswith("grad/"):
            for place in np.ndindex(*value.shape):
                unit = np.zeros(value.shape)
                unit[place] = 1.0
                yield name, place, unit, float(value[place])


def derivative(
    case: Case, arrays: Mapping[str, Array], name: str, unit: Array, *, max_bits: int = 16384
) -> arb:
    """The derivative of <y, y_bar> + <M, M_bar> + <S, S_bar> along a direction of one input, as a
    ball.

        D(h) = (f(x + h u) - f(x - h u)) / (2 h),   f' = D(h/2) +- |D(h) - D(h/2)|

    D(h) = f' + c h^2 + O(h^4), so that D(h/2) is off by a third of |D(h) - D(h/2)| and terms that
    vanish beside it. The radius is the whole of it, plus the radii of the values. h is 2^-(bits/4),
    so that half of the bits remain for the difference.
    """
    bits = 512
    while True:
        with ctx.workprec(bits):
            h = arb(2) ** (-(bits // 4))
            wide, narrow = (_quotient(case, arrays, name, unit, step, bits) for step in (h, h / 2))
            ball: arb = narrow + abs(wide - narrow) * arb(0, 1)
            if (
                ball.rel_accuracy_bits() >= ACCURACY
                or abs(ball) < arb(2) ** NOTHING
                or bits >= max_bits
            ):
                return ball
        bits = min(2 * bits, max_bits)


def _quotient(
    case: Case, arrays: Mapping[str, Array], name: str, unit: Array, h: arb, bits: int
) -> arb:
    ahead, behind = (_pairing(case, arrays, {name: _along(unit, step)}, bits) for step in (h, -h))
    return (ahead - behind) / (2 * h)


def _along(unit: Array, h: arb) -> Array:
    moved = np.empty(unit.shape, dtype=object)
    for place in np.ndindex(*unit.shape):
        moved[place] = arb(float(unit[place])) * h
    return moved


def _pairing(case: Case, arrays: Mapping[str, Array], moved: Mapping[str, Array], bits: int) -> arb:
    """The sum of results times their cotangents, from values alone."""
    balls = evaluate(case.header, case.convention, arrays, bits=bits, moved=moved)
    total = arb(0)
    bars = [name for name in arrays if "_bar" in name]
    weighed = WEIGHED | {f"out/{name[3:]}".replace("_bar", "", 1): name for name in bars}
    for out, bar in weighed.items():
        if out in balls and bar in arrays:
            total += sum(
                (
                    x * arb(float(w))
                    for x, w in zip(np.ravel(balls[out]), np.ravel(arrays[bar]), strict=True)
                ),
                arb(0),
            )
    return total
