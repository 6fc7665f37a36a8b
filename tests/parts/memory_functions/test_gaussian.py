"""The normal distribution in float32 by a polynomial, and its derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atlas_ref.backend import compiled
from atlas_ref.parts.memory_functions import gaussian
from tape import grad, ops
from tests.support.close import ANALYTIC, EXACT, assert_close

pytestmark = pytest.mark.host("compiled code and float32 of the host")


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compiled code for any number of vectors, or none at all."""
    if request.param == "compiled" and not compiled.wanted():
        pytest.skip("Numba is not installed (extra fast)")
    monkeypatch.setattr(gaussian, "WORK", 0)
    monkeypatch.setattr(compiled, "wanted", lambda: request.param == "compiled")
    return str(request.param)


def numbers(kind: Any = np.float32) -> Any:
    """16 tens of thousands from -12 to 12, not a multiple of the numbers of a run."""
    return np.linspace(-12.0, 12.0, 160_000, dtype=kind)


def truth(a: Any) -> Any:
    return np.array([0.5 * math.erfc(-float(x) / math.sqrt(2.0)) for x in a])


@pytest.mark.clause("MEMFUN-5")
def test_the_polynomial_is_the_distribution_to_1e_7(way: str) -> None:
    a = numbers()
    y = gaussian.normal(a.reshape(400, 400)).reshape(-1)
    assert y.dtype == np.float32
    assert np.max(np.abs(y - truth(a))) < 1e-7
    assert np.min(y) >= 0.0
    assert np.max(y) <= 1.0


@pytest.mark.clause("MEMFUN-5")
def test_numbers_at_the_ends_keep_their_values(way: str) -> None:
    a = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38] * 2, np.float32)
    want = np.array([0.5, 0.5, 1.0, 0.0, np.nan, 1.0, 0.0, 0.5] * 2, np.float32)
    assert_close("Phi", gaussian.normal(a), want, EXACT)


@pytest.mark.clause("MEMFUN-5")
def test_other_layouts_and_lengths_are_taken(way: str) -> None:
    a = np.random.default_rng(0).standard_normal((33, 17)).astype(np.float32)
    for given in (a, a.T, a[::2, 1:], a[:0], a[0, 0]):
        for function, want in ((gaussian.normal, truth(np.ravel(given))), (gaussian.density, None)):
            y = function(given)
            assert y.shape == given.shape
            if want is not None:
                assert np.allclose(np.ravel(y), want, rtol=0.0, atol=1e-7)


@pytest.mark.clause("MEMFUN-5")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_density_is_its_formula(way: str, kind: Any) -> None:
    a = numbers(kind)
    want = np.exp(-0.5 * np.float64(a) ** 2) / np.sqrt(2.0 * np.pi)
    bound = 1e-7 if kind is np.float32 else 1e-15
    assert np.max(np.abs(gaussian.density(a) - want)) < bound


@pytest.mark.clause("MEMFUN-5")
def test_derivatives_are_those_of_the_complex_step(way: str) -> None:
    a, g = np.random.default_rng(0).standard_normal((2, 4, 8))
    for function in (gaussian.normal, gaussian.density):
        stepped = np.imag(function(a + 1e-40j)) / 1e-40
        first = grad(lambda x, f=function: ops.sum(f(x) * g))(a)
        assert_close("first", first, g * stepped, ANALYTIC)
        second = grad(lambda x, f=function: ops.sum(grad(lambda z: ops.sum(f(z)))(x) * g))(a)
        factor = -a if function is gaussian.normal else a * a - 1.0
        assert_close("second", second, g * factor * gaussian.density(a), ANALYTIC)
