"""The inverse by recursive halves, against substitution and where sums of powers fail.

Sizes that halves do not divide are among them.
"""

from __future__ import annotations

import numpy as np
import pytest

from atlas_ref.engine.group.triangular import inverse_unit_lower
from tests.support.close import ANALYTIC, assert_close, assert_differs


def substituted(strict: np.ndarray) -> np.ndarray:
    """(I + N)^{-1} row by row."""
    n = len(strict)
    inverse = np.eye(n)
    for i in range(n):
        for j in range(i):
            inverse[i] -= strict[i, j] * inverse[j]
    return inverse


@pytest.mark.clause("EXACT-4")
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13, 16, 31, 64])
def test_equals_substitution_at_every_size(n: int) -> None:
    strict = np.tril(np.random.default_rng(n).standard_normal((3, n, n)), -1) / np.sqrt(n)
    noise = np.triu(np.full((n, n), np.nan))  # what is on and above the diagonal is not read
    got = inverse_unit_lower(strict + np.where(np.isnan(noise), 1e300, 0.0))
    assert_close("inverse", got, np.stack([substituted(each) for each in strict]), ANALYTIC)
    assert np.array_equal(np.triu(got, 1), np.zeros_like(got))
    assert np.array_equal(np.diagonal(got, axis1=-2, axis2=-1), np.ones((3, n)))


@pytest.mark.clause("EXACT-4", "EXACT-5")
@pytest.mark.parametrize("step", [0.5, 1.0, 1.5, 1.9])
def test_64_equal_keys(step: float) -> None:
    """A triangle whose every entry is the step size.

    Substitution keeps all digits, the sum of powers loses them.
    """
    strict = np.tril(np.full((64, 64), step), -1)
    want = substituted(strict)
    assert_close("by halves", inverse_unit_lower(strict), want, ANALYTIC)
    power, total = np.eye(64), np.eye(64)
    for _ in range(63):
        power = -power @ strict
        total = total + power
    if step >= 1.0:
        assert_differs("sum of powers", total, want, 1e-3)


@pytest.mark.clause("EXACT-4")
def test_complex_steps_pass_through() -> None:
    random = np.random.default_rng(0)
    strict, direction = (np.tril(random.standard_normal((6, 6)), -1) for _ in range(2))
    moved = inverse_unit_lower(strict + 1e-30j * direction).imag / 1e-30
    inverse = substituted(strict)
    assert_close("derivative", moved, -inverse @ direction @ inverse, ANALYTIC)


@pytest.mark.clause("EXACT-4")
def test_an_infinity_reaches_only_the_columns_that_its_row_of_the_inverse_takes_from_it() -> None:
    strict = np.tril(np.random.default_rng(0).standard_normal((8, 8)), -1)
    want = substituted(strict)
    strict[5, 2] = np.inf
    with np.errstate(all="ignore"):
        found = inverse_unit_lower(strict)
    assert np.isinf(found[5, 2])
    assert_close("rows before it", found[:5], want[:5], ANALYTIC)
    assert_close("columns behind it", found[5, 3:], want[5, 3:], ANALYTIC)


@pytest.mark.clause("EXACT-4")
@pytest.mark.host("NumPy reports overflow")
def test_an_inverse_that_overflows_says_so() -> None:
    with np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        inverse_unit_lower(np.tril(np.full((8, 8), 1e200), -1))
