"""First and second derivatives of Newton-Schulz, and false ones (NS-20 to NS-24)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz, plain_newton_schulz
from tape import checkpoint, grad, hvp, ops, vjp
from tests.support.close import (
    ANALYTIC,
    EXACT,
    FINITE_DIFFERENCE,
    assert_close,
    assert_differs,
    reordered,
)
from tests.truth import spectral
from tests.truth.spectral import SETTINGS, assert_near, map_of, natural_size

STEP = 1e-30

each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def pullback(
    settings: NewtonSchulz, S: Any, G: Any, form: Callable[..., Any] = newton_schulz
) -> Any:
    return vjp(lambda x: form(x, settings), S)[1](G)[0]


def cosine(a: Any, b: Any) -> float:
    return float(np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b)))


# -- first derivative ------------------------------------------------------------------------------


@pytest.mark.sample(8)
@each_setting
@pytest.mark.clause("NS-20", "NS-21", "NS-23")
def test_the_pullback_is_the_derivative_through_the_singular_values(
    settings: dict[str, Any],
) -> None:
    m = map_of(settings)
    for name, S in spectral.arguments(seed=3):
        G = gaussian(*S.shape, seed=4)
        size = natural_size(m, S, 1) * np.linalg.norm(G)
        assert_near(
            name,
            pullback(NewtonSchulz(**settings), S, G),
            spectral.spectral_pullback(m, S, G),
            size,
        )


@pytest.mark.sample(6)
@each_setting
@pytest.mark.clause("NS-20", "NS-21")
def test_the_pullback_is_that_of_its_definition(settings: dict[str, Any]) -> None:
    m = map_of(settings)
    for name, S in spectral.arguments(seed=5):
        G = gaussian(*S.shape, seed=6)
        size = natural_size(m, S, 1) * np.linalg.norm(G)
        assert_near(
            name, pullback(NewtonSchulz(**settings), S, G), spectral.loops_pullback(m, S, G), size
        )


@pytest.mark.sample(8)
@each_setting
@pytest.mark.clause("NS-20", "NS-21")
def test_the_pullback_is_the_complex_step_through_the_loops(settings: dict[str, Any]) -> None:
    m = map_of(settings)
    for name, S in spectral.arguments(seed=7):
        norm = np.linalg.norm(S)
        if norm == 0:
            continue  # the norm has no derivative there
        G, V = gaussian(*S.shape, seed=8), gaussian(*S.shape, seed=9) * norm
        want = np.imag(np.sum(G * spectral.loops(m, S + 1j * STEP * V))) / STEP
        got = np.sum(pullback(NewtonSchulz(**settings), S, G) * V)
        assert_near(
            name,
            got,
            want,
            natural_size(m, S, 1) * float(np.linalg.norm(G) * np.linalg.norm(V)),
            ANALYTIC,
        )


@pytest.mark.sample(6)
@each_setting
@pytest.mark.clause("NS-20", "NS-21")
def test_the_opaque_block_and_the_plain_form_have_one_gradient(settings: dict[str, Any]) -> None:
    m, own = map_of(settings), NewtonSchulz(**settings)
    for name, S in spectral.arguments(seed=10):
        G = gaussian(*S.shape, seed=11)
        size = natural_size(m, S, 1) * np.linalg.norm(G)
        assert_near(name, pullback(own, S, G), pullback(own, S, G, plain_newton_schulz), size)


@pytest.mark.clause("NS-20")
def test_the_package_takes_a_complex_argument_for_a_complex_step_of_its_own() -> None:
    for settings in (
        {},
        {"scale": "norm"},
        {"guard": "clamp", "eps": 2.0},
        {"guard": "return", "eps": 0.1},
    ):
        own = NewtonSchulz(**settings)
        for shape in ((4, 6), (6, 4), (2, 3, 3)):
            S, V, G = (gaussian(*shape, seed=seed) for seed in (12, 13, 14))
            for form in (newton_schulz, plain_newton_schulz):
                moved = form(S + 1j * STEP * V, own)
                assert moved.dtype == np.complex128
                want = np.imag(np.sum(G * moved)) / STEP
                assert_close(f"{settings} {shape}", np.sum(pullback(own, S, G) * V), want, ANALYTIC)


@pytest.mark.clause("NS-20")
def test_the_pullback_of_a_batch_is_that_of_each_matrix() -> None:
    S, G = gaussian(2, 3, 5, 4), gaussian(2, 3, 5, 4, seed=1)
    S[0, 1], S[1, 2] = 0, 1e-9 * S[1, 2]
    for settings in (
        {},
        {"guard": "return", "eps": 1e-3},
        {"guard": "clamp", "eps": 1.0},
        {"scale": "norm"},
    ):
        got = pullback(NewtonSchulz(**settings), S, G)
        for index in np.ndindex(2, 3):
            m = map_of(settings)
            size = natural_size(m, S[index], 1) * np.linalg.norm(G[index])
            assert_near(
                f"{settings} {index}",
                got[index],
                spectral.spectral_pullback(m, S[index], G[index]),
                size,
            )


@pytest.mark.clause("NS-20")
def test_recomputing_the_iterates_changes_no_bit() -> None:
    S, G = gaussian(3, 4, 6), gaussian(3, 4, 6, seed=1)
    settings = NewtonSchulz()
    again = vjp(checkpoint(lambda x: newton_schulz(x, settings)), S)[1](G)[0]
    assert_close("checkpoint", again, pullback(settings, S, G), EXACT)


@pytest.mark.clause("NS-20", "NS-9")
@pytest.mark.parametrize("shape", [(8, 2), (2, 8)])
def test_the_cotangent_is_scaled_before_the_steps(shape: tuple[int, int]) -> None:
    S, G = gaussian(*shape), gaussian(*shape, seed=1)
    factor = np.sqrt(max(1.0, shape[0] / shape[1]))
    assert_close(
        "sqrt",
        pullback(NewtonSchulz(scale="sqrt"), S, G),
        factor * pullback(NewtonSchulz(), S, G),
        reordered(8),
    )


# -- normalisation ---------------------------------------------------------------------------------


@pytest.mark.clause("NS-21")
def test_at_zero_the_pullback_divides_by_eps_and_multiplies_by_the_slopes() -> None:
    G = gaussian(3, 4)
    for guard in ("add", "clamp"):
        got = pullback(NewtonSchulz(guard=guard), np.zeros((3, 4)), G)
        assert_close(guard, got, 3.4445**5 / 1e-7 * G, reordered(5))
    assert_close("return", pullback(NewtonSchulz(guard="return"), np.zeros((3, 4)), G), G, EXACT)
    assert_close(
        "norm", pullback(NewtonSchulz(scale="norm"), np.zeros((3, 4)), G), np.zeros((3, 4)), EXACT
    )
    # there is no derivative; the divisor counts as 1
    no_eps = pullback(NewtonSchulz(eps=0.0), np.zeros((3, 4)), G)
    assert_close("eps 0", no_eps, 3.4445**5 * G, reordered(5))


@pytest.mark.clause("NS-21")
def test_a_tiny_divisor_does_not_underflow_when_squared() -> None:
    S, G = gaussian(3, 4) * 1e-175, gaussian(3, 4, seed=1)
    got = pullback(NewtonSchulz(eps=1e-165), S, G)  # ||S||^2 is 0 in float64, as if S were 0
    assert_close("eps 1e-165", got * 1e-165, 3.4445**5 * G, FINITE_DIFFERENCE)
    single = pullback(NewtonSchulz(eps=1e-25), np.zeros((3, 4), np.float32), G.astype(np.float32))
    assert_close("float32", single, 3.4445**5 / 1e-25 * G, reordered(5, dtype=np.float32))


@pytest.mark.clause("NS-21", "NS-6")
def test_clamp_differentiates_the_norm_where_it_divides_by_it() -> None:
    S, G = np.array([[3.0, 4.0]]), np.array([[0.3, -1.0]])  # norm 5, exactly
    linear: dict[str, Any] = {"guard": "clamp", "coefficients": [[1, 0, 0]]}
    across = G / 5 - np.sum(G * S) / 125 * S
    for eps, want in ((4.0, across), (5.0, across), (6.0, G / 6)):
        got = pullback(NewtonSchulz(eps=eps, **linear), S, G)
        assert_close(f"floor {eps}", got, want, reordered(4))
        assert_close(
            f"plain, floor {eps}",
            pullback(NewtonSchulz(eps=eps, **linear), S, G, plain_newton_schulz),
            want,
            reordered(4),
        )


@pytest.mark.clause("NS-21")
def test_where_the_argument_is_returned_the_cotangent_is_too() -> None:
    S, G = gaussian(4, 3), gaussian(4, 3, seed=1)
    for scale in ("1", "sqrt", "norm"):
        assert_close(
            scale, pullback(NewtonSchulz(guard="return", eps=100.0, scale=scale), S, G), G, EXACT
        )


@pytest.mark.clause("NS-21")
def test_leaving_out_the_derivative_of_the_norm_is_an_error_of_order_one() -> None:
    m = map_of({})
    S = gaussian(4, 6)
    G = spectral.spectral(m, S) + 0.3 * gaussian(4, 6, seed=1)
    right = pullback(NewtonSchulz(), S, G)
    N = np.linalg.norm(S) + 1e-7
    start = pullback(NewtonSchulz(norm_factor=1e-300, eps=1.0), S / N, G)  # the cotangent of X_0
    assert_close(
        "both terms",
        start / N - np.sum(start * S) / (N * N * np.linalg.norm(S)) * S,
        right,
        reordered(24, amplification=100),
    )
    assert_differs("first term alone", start / N, right, 0.3)


@pytest.mark.clause("NS-22")
@pytest.mark.parametrize("scale", ["1", "sqrt"])
@pytest.mark.parametrize("eps", [1e-2, 1e-7, 0.0])
def test_there_is_no_gradient_along_the_argument_up_to_eps(scale: str, eps: float) -> None:
    S, G = gaussian(7, 4), gaussian(7, 4, seed=1)
    got = np.sum(S * pullback(NewtonSchulz(scale=scale, eps=eps), S, G))
    N = np.linalg.norm(S) + eps
    factor = np.sqrt(7 / 4) if scale == "sqrt" else 1.0
    start = pullback(NewtonSchulz(norm_factor=1e-300, eps=1.0), S / N, factor * G)
    size = float(np.linalg.norm(start) * np.linalg.norm(S / N))
    assert_near("along S", got, np.sum(start * S / N) * eps / N, size, reordered(28))
    if eps < 1e-2:
        assert abs(got) < 1e-6 * size


@pytest.mark.clause("NS-22")
def test_the_scale_norm_brings_the_gradient_along_the_argument_back() -> None:
    S, G = gaussian(4, 6), gaussian(4, 6, seed=1)
    settings = NewtonSchulz(scale="norm", eps=0.0)
    got = np.sum(S * pullback(settings, S, G))
    # Euler
    assert_close(
        "of degree one",
        got,
        np.sum(G * newton_schulz(S, settings)),
        reordered(24, amplification=100),
    )


# -- through the singular values -------------------------------------------------------------------


@pytest.mark.clause("NS-23")
def test_the_divided_differences_as_they_are_written() -> None:
    rows = spectral.rows_of()
    for shape in ((4, 4), (3, 6), (6, 3)):
        X, G = gaussian(*shape), gaussian(*shape, seed=1)
        X /= np.linalg.norm(X)
        U, x, Vt = np.linalg.svd(X, full_matrices=False)
        V, h, H = Vt.T, spectral.polynomial(rows, x), U.T @ G @ Vt.T
        i, j = x[:, None], x[None, :]
        hi, hj = h[:, None], h[None, :]
        same = np.eye(len(x), dtype=bool)
        slope = 1.0
        y = x
        for a, b, c in rows:
            slope, y = slope * (a + 3 * b * y**2 + 5 * c * y**4), a * y + b * y**3 + c * y**5
        minus = np.where(same, slope[:, None], (hi - hj) / np.where(same, 1.0, i - j))
        plus = (hi + hj) / (i + j)
        core = U @ (minus * (H + H.T) / 2 + plus * (H - H.T) / 2) @ Vt
        ratio = np.diag(h / x)
        rest = (G - U @ U.T @ G) @ V @ ratio @ Vt + U @ ratio @ U.T @ (G - G @ V @ Vt)
        got = pullback(NewtonSchulz(norm_factor=1e-300, eps=1.0), X, G)  # X_0 = X
        assert_close(f"{shape}", got, core + rest, ANALYTIC)


@pytest.mark.clause("NS-23")
def test_repeated_and_vanishing_singular_values_take_the_slope() -> None:
    settings = NewtonSchulz(norm_factor=1e-300, eps=1.0)
    G = gaussian(3, 3)
    x = 0.4
    rows = spectral.rows_of()
    slope = spectral.divided_difference(rows, x, x)
    even, odd = (G + G.T) / 2, (G - G.T) / 2
    assert_close(
        "x I",
        pullback(settings, x * np.eye(3), G),
        slope * even + spectral.polynomial(rows, x) / x * odd,
        reordered(50),
    )
    assert_close("0", pullback(settings, np.zeros((3, 3)), G), 3.4445**5 * G, reordered(5))


@pytest.mark.clause("NS-24")
def test_passing_the_cotangent_through_is_not_the_derivative() -> None:
    for shape in ((4, 4), (8, 8), (32, 32), (64, 64), (16, 64)):
        through, polar = [], []
        for seed in range(100 if max(shape) < 16 else 5):
            S, G = gaussian(*shape, seed=seed), gaussian(*shape, seed=100 + seed)
            right = pullback(NewtonSchulz(), S, G)
            U, s, Vt = np.linalg.svd(S, full_matrices=False)
            H, inverse = U.T @ G @ Vt.T, np.diag(1 / s)
            # the derivative of the polar factor U V^T
            exact = U @ ((H - H.T) / (s[:, None] + s[None, :])) @ Vt
            exact += (G - U @ U.T @ G) @ Vt.T @ inverse @ Vt + U @ inverse @ U.T @ (
                G - G @ Vt.T @ Vt
            )
            through.append(cosine(G, right))
            polar.append(cosine(exact, right))
        assert 0.3 <= np.mean(through) <= 0.85
        assert 0.45 <= np.mean(polar) <= 0.9


# -- second derivative -----------------------------------------------------------------------------


@pytest.mark.sample(6)
@each_setting
@pytest.mark.clause("NS-20", "NS-21")
def test_the_second_derivative_is_the_complex_step_of_the_first(settings: dict[str, Any]) -> None:
    m, own = map_of(settings), NewtonSchulz(**settings)
    for name, S in spectral.arguments(seed=15):
        norm = float(np.linalg.norm(S))
        if norm == 0 or "almost" in name:
            continue
        G, V = gaussian(*S.shape, seed=16), gaussian(*S.shape, seed=17) * norm
        want = np.imag(spectral.loops_pullback(m, S + 1j * STEP * V, G)) / STEP
        got = hvp(lambda x, G=G: ops.sum(newton_schulz(x, own) * G))(S, V)
        size = natural_size(m, S, 2) * float(np.linalg.norm(G) * np.linalg.norm(V))
        assert_near(name, got, want, size, ANALYTIC)


@pytest.mark.clause("NS-20", "NS-21")
def test_the_second_derivative_in_plain_measure() -> None:
    wide_eps = {"guard": "clamp", "eps": 20.0}
    for settings in (
        {},
        {"coefficients": "cubic"},
        {"scale": "norm"},
        {"eps": 0.0, "norm_factor": 1.3},
        wide_eps,
    ):
        own, m = NewtonSchulz(**settings), map_of(settings)
        for shape in ((5, 5), (4, 7), (7, 4)):
            S, G, V = (gaussian(*shape, seed=seed) for seed in (18, 19, 20))
            want = np.imag(spectral.loops_pullback(m, S + 1j * STEP * V, G)) / STEP
            got = hvp(lambda x, G=G, own=own: ops.sum(newton_schulz(x, own) * G))(S, V)
            assert_close(f"{shape} {settings}", got, want, ANALYTIC)


@pytest.mark.clause("NS-20")
def test_a_gradient_that_goes_through_newton_schulz_twice() -> None:
    settings = NewtonSchulz(coefficients="cubic", steps=3)
    m = map_of({"coefficients": "cubic", "steps": 3})
    S, T, V = gaussian(3, 4), gaussian(3, 4, seed=1), gaussian(3, 4, seed=2)

    def function(x: Any) -> Any:
        inner = newton_schulz(x, settings)
        return ops.sum(newton_schulz(inner * inner * T + x, settings) * T)

    inner = spectral.loops(m, S + 1j * STEP * V)
    want = np.imag(np.sum(spectral.loops(m, inner * inner * T + S + 1j * STEP * V) * T)) / STEP
    gradient = grad(function)
    assert_close("first", np.sum(gradient(S) * V), want, ANALYTIC)
    second = grad(lambda x: ops.sum(gradient(x) * V))(S)
    h = 1e-6
    assert_close(
        "second", second, (gradient(S + h * V) - gradient(S - h * V)) / (2 * h), FINITE_DIFFERENCE
    )
