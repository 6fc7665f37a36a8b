"""Guarantees of Newton-Schulz and their limits, its cost and special cases (NS-10 to NS-19)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz, plain_newton_schulz
from tape import ops, vjp
from tests.support.close import (
    ANALYTIC,
    EXACT,
    Elsewhere,
    assert_close,
    assert_differs,
    reordered,
)
from tests.truth import spectral
from tests.truth.spectral import CUBIC, MUON

#: Divides by 1, so that the singular values of the argument are those of X_0.
AS_IT_IS: dict[str, Any] = {"norm_factor": 1e-300, "eps": 1.0}

SETS: dict[str, dict[str, Any]] = {
    "muon": {},
    "cubic": {"coefficients": "cubic"},
    "polar_express": {"coefficients": "polar_express"},
}


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def orthogonal(n: int, seed: int) -> Any:
    return np.linalg.qr(gaussian(n, n, seed=seed))[0]


def relative(got: Any, want: Any) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def on_numbers(x: Any, **settings: Any) -> Any:
    """The composed polynomial at numbers, as a batch of 1x1 matrices."""
    return newton_schulz(np.asarray(x)[:, None, None], NewtonSchulz(**AS_IT_IS, **settings))[
        :, 0, 0
    ]


def spectrum(X: Any) -> Any:
    return np.linalg.svd(X, compute_uv=False)


# -- guarantees ------------------------------------------------------------------------------------


@pytest.mark.clause("NS-10")
def test_singular_values_go_through_the_polynomials_and_vectors_stay() -> None:
    for settings in SETS.values():
        rows = spectral.rows_of(**settings)
        for shape in ((64, 64), (16, 64), (64, 16)):
            S = gaussian(*shape)
            U, s, Vt = np.linalg.svd(S, full_matrices=False)
            want = (U * spectral.polynomial(rows, s / (np.linalg.norm(S) + 1e-7))) @ Vt
            found = relative(newton_schulz(S, NewtonSchulz(**settings)), want)
            assert found < 5e-14  # 1e-14 to 2.9e-14, by the library that multiplies


@pytest.mark.clause("NS-10")
def test_the_polynomial_holds_outside_the_intended_range() -> None:
    x = np.linspace(-1.5, 1.5, 601)
    for coefficients in ("muon", "cubic", [[1.0, 3.0, -2.0], [0.5, 0.0, 1.0]]):
        want = spectral.polynomial(spectral.rows_of(coefficients, 2), x)
        assert_close(
            f"{coefficients}",
            on_numbers(x, coefficients=coefficients, steps=2),
            want,
            reordered(20),
        )


@pytest.mark.clause("NS-10")
def test_eps_belongs_to_the_divisor() -> None:
    for seed in range(5):
        S = gaussian(64, 64, seed=seed)
        S *= 1e-7 / np.linalg.norm(S)
        with_eps, without = (newton_schulz(S, NewtonSchulz(eps=eps)) for eps in (1e-7, 0.0))
        assert 0.2 < relative(without, with_eps) < 0.25
        assert relative(with_eps, spectral.spectral(spectral.map_of({}), S)) < 1e-13


@pytest.mark.clause("NS-10")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_range_of_the_argument_that_is_promised(dtype: Any) -> None:
    S = gaussian(6, 4)
    S /= np.linalg.norm(S)
    U, s, Vt = np.linalg.svd(S, full_matrices=False)
    top, smallest = (150, 1e-150) if dtype == np.float64 else (18, 1e-18)
    if Elsewhere.yes and dtype == np.float32:
        top = 16  # BACKEND-11: numbers below the normal ones count as zero
    bound = 2e-14 if dtype == np.float64 else 2e-5
    for settings in SETS.values():
        rows = spectral.rows_of(**settings)
        for exponent in (-top, -top // 2, top // 2, top):
            argument = (S * 10.0**exponent).astype(dtype)
            got = newton_schulz(argument, NewtonSchulz(**settings, eps=0.0))
            want = (U * spectral.polynomial(rows, s)) @ Vt
            assert relative(got, want) < bound, exponent
        N = 10.0 ** (-2 * top) + smallest
        below = (S * 10.0 ** (-2 * top)).astype(dtype)  # its squares vanish beside eps
        got = newton_schulz(below, NewtonSchulz(**settings, eps=smallest))
        want = (U * spectral.polynomial(rows, s * 10.0 ** (-2 * top) / N)) @ Vt
        assert relative(got, want) < bound


@pytest.mark.clause("NS-10", "NS-7")
def test_what_is_returned_as_it_is_and_zero_over_zero() -> None:
    S = gaussian(3, 4)
    kept = newton_schulz(S, NewtonSchulz(guard="return", eps=100.0))
    assert_close("returned", kept, S, EXACT)
    none = newton_schulz(0.0 * S, NewtonSchulz(eps=0.0))
    assert_close("zero", none, np.zeros((3, 4)), EXACT)


@pytest.mark.clause("NS-11")
def test_newton_schulz_is_odd_to_the_bit() -> None:
    for settings in (*SETS.values(), {"scale": "norm"}, {"guard": "return", "eps": 2.0}):
        for shape in ((4, 7), (7, 4), (3, 5, 5)):
            S = gaussian(*shape)
            assert_close(
                f"{settings}",
                newton_schulz(-S, NewtonSchulz(**settings)),
                -newton_schulz(S, NewtonSchulz(**settings)),
                EXACT,
            )


@pytest.mark.clause("NS-11")
def test_rotations_of_the_argument_rotate_the_result() -> None:
    for settings in SETS.values():
        for shape in ((5, 5), (4, 7), (7, 4)):
            S, Q, P = gaussian(*shape), orthogonal(shape[0], 1), orthogonal(shape[1], 2)
            got = newton_schulz(Q @ S @ P, NewtonSchulz(**settings))
            assert_close(
                f"{settings} {shape}",
                got,
                Q @ newton_schulz(S, NewtonSchulz(**settings)) @ P,
                reordered(7, amplification=100),
            )


@pytest.mark.clause("NS-11")
def test_row_and_column_spaces_stay() -> None:
    left, right = orthogonal(6, 1)[:, :2], orthogonal(8, 2)[:, :2]
    S = left @ np.diag([2.0, 0.5]) @ right.T
    X = newton_schulz(S, NewtonSchulz())
    assert np.linalg.matrix_rank(X, rtol=1e-12) == 2
    assert_close("columns", left @ (left.T @ X), X, ANALYTIC)
    assert_close("rows", (X @ right) @ right.T, X, ANALYTIC)


@pytest.mark.clause("NS-12")
def test_without_eps_the_length_of_the_argument_is_invisible() -> None:
    S = gaussian(5, 7)
    for scale in ("1", "sqrt"):
        for settings in SETS.values():
            own = NewtonSchulz(eps=0.0, scale=scale, **settings)
            for factor in (7.3, 1e-9, 1e-150, 1e150):
                assert_close(
                    f"{factor}",
                    newton_schulz(factor * S, own),
                    newton_schulz(S, own),
                    reordered(7, amplification=100),
                )
            assert_close(
                "a power of two", newton_schulz(2.0**-40 * S, own), newton_schulz(S, own), EXACT
            )
    scaled = NewtonSchulz(eps=0.0, scale="norm")
    assert_close(
        "norm",
        newton_schulz(7.3 * S, scaled),
        7.3 * newton_schulz(S, scaled),
        reordered(7, amplification=100),
    )


@pytest.mark.clause("NS-12")
def test_eps_leaves_a_trace_that_float64_resolves_and_float32_does_not() -> None:
    S = gaussian(5, 7)
    trace = relative(newton_schulz(7.3 * S, NewtonSchulz()), newton_schulz(S, NewtonSchulz()))
    assert 0.1 < trace / (1e-7 / np.linalg.norm(S)) < 10
    single = S.astype(np.float32)
    eight = np.float32(8) * single  # the norm scales exactly, and eps is lost beside it
    assert_close(
        "float32",
        newton_schulz(eight, NewtonSchulz()),
        newton_schulz(single, NewtonSchulz(eps=0.0)),
        EXACT,
    )


def omega(
    convention: dict[str, Any], *, weight: float = 0.25, rate: float = 0.1, momentum: bool = True
) -> Any:
    """y and M of the Omega rule on sixteen tokens, window 4."""
    settings = {"eps": 0.0, **convention.pop("newton_schulz", {})}
    header = {
        "schema": 1,
        "rule": "omega",
        "window": 4,
        "convention": {**convention, "newton_schulz": settings},
    }
    gates = {
        "in/retain": np.full(16, 0.95),
        "in/step_size": np.full(16, rate),
        "in/window_weights": np.full((16, 4), weight),
    }
    gates |= {"in/momentum": np.full(16, 0.8)} if momentum else {}
    tensors = {
        "in/k": gaussian(16, 5),
        "in/v": gaussian(16, 4, seed=1),
        "in/q": gaussian(16, 5, seed=2),
        **gates,
    }
    found = atlas_ref.evaluate(atlas_ref.make(header, tensors)).tensors
    return np.concatenate([found["out/y"].ravel(), found["out/M"].ravel()])


@pytest.mark.clause("NS-12")
def test_a_constant_factor_of_every_gradient_is_invisible_in_a_rule() -> None:
    tolerance = reordered(16, amplification=1e4)
    base = {"rate": "memory"}
    want = omega(dict(base))
    assert_close("gradient_scale", omega({**base, "gradient_scale": 3.7}), want, tolerance)
    assert_close("uniform weights against ones", omega(dict(base), weight=1.0), want, tolerance)
    assert_close(
        "step size under rate momentum",
        omega({"rate": "momentum"}, rate=0.37),
        omega({"rate": "momentum"}),
        tolerance,
    )
    alone = omega({**base, "gradient_scale": 3.7}, momentum=False)
    assert_close("without momentum", alone, omega(dict(base), momentum=False), tolerance)
    assert_differs(
        "scale norm",
        omega({**base, "gradient_scale": 3.7, "newton_schulz": {"scale": "norm"}}),
        want,
        0.1,
    )
    assert_differs("step size of the memory", omega(dict(base), rate=0.37), want, 0.1)


# -- what is not guaranteed ------------------------------------------------------------------------


@pytest.mark.clause("NS-13")
def test_muon_does_not_have_one_as_a_fixed_point() -> None:
    one = np.ones((1, 1))
    step = NewtonSchulz(**AS_IT_IS, steps=1)
    value, pullback = vjp(lambda x: newton_schulz(x, step), one)
    assert_close("p(1)", value, np.array([[0.7010]]), ANALYTIC)
    assert_close("p'(1)", pullback(one)[0], np.array([[-0.723]]), ANALYTIC)


@pytest.mark.clause("NS-13")
def test_the_bands_of_five_muon_steps() -> None:
    above = on_numbers(np.geomspace(0.0052, 1, 20_001))
    assert (above.min(), above.max()) == pytest.approx((0.6818, 1.1344), abs=5e-5)
    assert on_numbers([0.0051])[0] > 1.1344
    wider = on_numbers(np.geomspace(0.0015, 1, 20_001))
    assert (wider.min(), wider.max()) == pytest.approx((0.6798, 1.2024), abs=5e-5)
    small = np.geomspace(1e-9, 3e-4, 101)
    assert np.abs(on_numbers(small) / (485 * small) - 1).max() < 0.01
    slope = vjp(lambda x: newton_schulz(x, NewtonSchulz(**AS_IT_IS)), np.zeros((1, 1)))[1](
        np.ones((1, 1))
    )[0]
    assert slope == pytest.approx(484.9, abs=0.05)
    matrix = newton_schulz(gaussian(8, 12), NewtonSchulz())
    assert np.all((spectrum(matrix) > 0.6818) & (spectrum(matrix) < 1.1344))


@pytest.mark.clause("NS-13")
def test_more_muon_steps_stay_in_the_band_without_settling() -> None:
    x = np.geomspace(0.0052, 1, 2_001)
    for steps in (6, 10, 20, 40):
        found = on_numbers(x, steps=steps)
        assert found.min() > 0.68183
        assert found.max() < 1.13436
        assert relative(on_numbers(x, steps=steps + 1), found) > 0.1
    S = gaussian(64, 64)
    assert relative(
        newton_schulz(S, NewtonSchulz(steps=10)), newton_schulz(S, NewtonSchulz())
    ) == pytest.approx(0.38, abs=0.02)


@pytest.mark.clause("NS-14")
def test_the_cubic_increases_to_one_slowly() -> None:
    x = np.linspace(0, 1, 1001)
    for steps in (1, 5):
        found = on_numbers(x, coefficients="cubic", steps=steps)
        assert np.all(np.diff(found) > -1e-15)
        assert np.all(np.diff(found[:501]) > 0)  # further on five steps round to 1
        assert (found[0], found[-1]) == (0.0, 1.0)
    assert on_numbers([1e-3], coefficients="cubic", steps=40)[0] == pytest.approx(1.0, abs=1e-15)
    slope = vjp(
        lambda y: newton_schulz(y, NewtonSchulz(**AS_IT_IS, coefficients="cubic")), np.zeros((1, 1))
    )[1](np.ones((1, 1)))[0]
    assert slope == pytest.approx(1.5**5)
    smallest = [
        spectrum(newton_schulz(gaussian(64, 64, seed=seed), NewtonSchulz(coefficients="cubic")))[-1]
        for seed in range(5)
    ]
    assert 0.002 < np.mean(smallest) < 0.03  # near 0.01
    assert max(smallest) < 0.05


@pytest.mark.clause("NS-15")
def test_the_result_is_not_orthogonal() -> None:
    printed = {"muon": (0.36, 0.21), "cubic": (0.64, 0.50), "polar_express": (0.17, 0.09)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in printed}
    from_muon: dict[str, list[float]] = {"cubic": [], "polar_express": []}
    for seed in range(5):
        S = gaussian(64, 64, seed=seed)
        U, _, Vt = np.linalg.svd(S)
        X = {name: newton_schulz(S, NewtonSchulz(**settings)) for name, settings in SETS.items()}
        for name, each in X.items():
            found[name].append(
                (float(np.linalg.norm(each @ each.T - np.eye(64)) / 8), relative(each, U @ Vt))
            )
        for name, distances in from_muon.items():
            distances.append(relative(X[name], X["muon"]))
    for name, want in printed.items():
        assert tuple(np.mean(found[name], axis=0)) == pytest.approx(want, abs=0.015)
    assert np.mean(from_muon["cubic"]) == pytest.approx(0.51, abs=0.01)
    assert np.mean(from_muon["polar_express"]) == pytest.approx(0.25, abs=0.01)


@pytest.mark.clause("NS-15")
def test_the_larger_gram_matrix_cannot_be_near_the_identity() -> None:
    floor = np.sqrt((64 - 16) / 64)
    for settings in SETS.values():
        X = newton_schulz(gaussian(64, 16), NewtonSchulz(**settings))
        rows, columns = (
            float(np.linalg.norm(gram - np.eye(len(gram))) / np.sqrt(len(gram)))
            for gram in (X @ X.T, X.T @ X)
        )
        assert rows >= floor
        assert columns < 0.6 * floor


@pytest.mark.clause("NS-16")
def test_the_length_of_an_update_follows_the_rank_and_not_the_error() -> None:
    for rank in (1, 2, 4, 8):
        S = gaussian(8, rank) @ gaussian(rank, 8, seed=1)
        for size in (1.0, 1e-3, 1e-5):
            length = np.linalg.norm(newton_schulz(size * S, NewtonSchulz(eps=0.0)))
            assert 0.68 * np.sqrt(rank) < length < 1.21 * np.sqrt(rank)


@pytest.mark.clause("NS-16")
def test_at_constant_step_size_the_memory_does_not_come_to_rest() -> None:
    k, v = np.array([0.6, 0.8, 0.0]), np.array([1.0, -2.0])

    def moves(newton_schulz: Any) -> list[float]:
        header = {
            "schema": 1,
            "rule": "omega",
            "convention": {"newton_schulz": newton_schulz, "rate": "memory"},
        }
        given = {
            "in/k": np.tile(k, (60, 1)),
            "in/v": np.tile(v, (60, 1)),
            "in/q": np.tile(k, (60, 1)),
        }
        given |= {"in/retain": np.ones(60), "in/step_size": np.full(60, 0.3)}
        return [
            float(each)
            for each in np.linalg.norm(
                np.diff(atlas_ref.evaluate(atlas_ref.make(header, given)).tensors["out/y"], axis=0),
                axis=1,
            )
        ]

    assert moves("none")[-1] < 1e-6
    # each step is 0.3 times 0.696 long, to and fro across the solution
    assert min(moves({})[-10:]) > 0.1


# -- cost ------------------------------------------------------------------------------------------


@pytest.mark.clause("NS-17")
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("transpose", ["tall", "never"])
def test_the_multiply_adds_of_a_step(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], transpose: str
) -> None:
    work: list[int] = []

    def counted(a: Any, b: Any, *rest: Any, **settings: Any) -> Any:
        work.append(int(np.prod(a.shape)) * b.shape[-1])
        return matmul(a, b, *rest, **settings)

    matmul = np.matmul
    monkeypatch.setattr(np, "matmul", counted)
    p, m = (min(shape), max(shape)) if transpose == "tall" else shape
    for coefficients, step in (("muon", 2 * p * p * m + p**3), ("cubic", 2 * p * p * m)):
        work.clear()
        newton_schulz(
            gaussian(*shape), NewtonSchulz(coefficients=coefficients, transpose=transpose, steps=3)
        )
        assert sum(work) == 3 * step


# -- special cases ---------------------------------------------------------------------------------


@pytest.mark.clause("NS-18")
def test_on_rank_one_the_cubic_is_the_polar_factor_and_muon_a_constant_times_it() -> None:
    u, v = orthogonal(5, 1)[:, 0], orthogonal(7, 2)[:, 0]
    for sigma in (1e-6, 3.0, 1e6):
        S = sigma * np.outer(u, v)
        for steps in (1, 5, 12):
            got = newton_schulz(S, NewtonSchulz(coefficients="cubic", eps=0.0, steps=steps))
            assert_close(f"cubic, {steps}", got, np.outer(u, v), reordered(12))
        muon = newton_schulz(S, NewtonSchulz(eps=0.0))
        assert np.sum(muon * np.outer(u, v)) == pytest.approx(0.6964, abs=5e-5)
        assert_close(
            "muon",
            muon,
            spectral.polynomial([MUON] * 5, 1.0) * np.outer(u, v),
            reordered(12, amplification=10),
        )


@pytest.mark.clause("NS-19", "NS-9", "NS-6", "NS-4")
def test_settings_that_coincide() -> None:
    for shape in ((4, 4), (3, 6)):
        S = gaussian(*shape)
        assert_close(
            "sqrt",
            newton_schulz(S, NewtonSchulz(scale="sqrt")),
            newton_schulz(S, NewtonSchulz()),
            EXACT,
        )
    S = gaussian(6, 3)
    S /= np.linalg.norm(S)
    for eps in (1e-7, 0.5, 0.999):
        assert_close(
            "return",
            newton_schulz(S, NewtonSchulz(guard="return", eps=eps)),
            newton_schulz(S, NewtonSchulz(eps=eps)),
            EXACT,
        )
    for f in (1.0, 1.3):
        clamp, add = (
            newton_schulz(S, NewtonSchulz(guard=guard, eps=0.0, norm_factor=f))
            for guard in ("clamp", "add")
        )
        assert_close("clamp", clamp, add, EXACT)
    for name, row in (("muon", MUON), ("cubic", CUBIC)):
        listed = newton_schulz(S, NewtonSchulz(coefficients=[list(row)]))
        assert_close(name, listed, newton_schulz(S, NewtonSchulz(coefficients=name)), EXACT)


@pytest.mark.clause("NS-17", "NS-20")
@pytest.mark.host("moves are entries of the tape too")
def test_the_opaque_block_is_one_entry_and_the_plain_form_many() -> None:
    entries: dict[str, int] = {}
    S = gaussian(3, 4)
    for form in (newton_schulz, plain_newton_schulz):
        vjp(
            lambda x, form=form: (
                entries.__setitem__(form.__name__, len((y := form(x, NewtonSchulz())).tape.entries))
                or ops.sum(y)
            ),
            S,
        )
    assert entries["newton_schulz"] == 2  # the argument and the block
    assert entries["plain_newton_schulz"] > 30
