"""Feature maps by definition: values, dimensions, settings, drawn tensors (PHI-1 to PHI-10)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

import atlas_ref
from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import FeatureMap
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered
from tests.truth import features
from tests.truth.features import MAPS

each_map = pytest.mark.parametrize("settings", MAPS.values(), ids=MAPS.keys())

PARSE: TypeAdapter[Any] = TypeAdapter(FeatureMap)


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def model(settings: dict[str, Any]) -> Any:
    return PARSE.validate_python(settings)


def apply(settings: dict[str, Any], p: dict[str, Any], x: Any) -> Any:
    return feature_maps.apply(model(settings), p, x)


# -- values ----------------------------------------------------------------------------------------


@each_map
@pytest.mark.clause(
    "PHI-1",
    "PHI-2",
    "PHI-3",
    "PHI-4",
    "PHI-5",
    "PHI-6",
    "PHI-7",
    "PHI-8",
    "PHI-9",
    "PHI-10",
    "PHI-18",
)
def test_every_map_is_the_loop_of_its_definition(settings: dict[str, Any]) -> None:
    for d in (1, 2, 5):
        p = features.tensors(settings, d)
        x = 1.5 * gaussian(2, 3, d)
        got = apply(settings, p, x)
        want = np.array([[features.phi(settings, p, x[i, j]) for j in range(3)] for i in range(2)])
        assert_close(f"d = {d}", got, want, reordered(d + d * d, amplification=10))
        assert got.shape == (2, 3, feature_maps.d_phi(model(settings), d, p))
        for shape in ((), (1,), (4, 1, 2), (0,)):
            assert apply(settings, p, gaussian(*shape, d)).shape == (*shape, got.shape[-1])


@each_map
@pytest.mark.clause("PHI-1")
def test_every_token_is_mapped_on_its_own(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 4), gaussian(2, 5, 4)
    whole = apply(settings, p, x)
    for index in np.ndindex(2, 5):
        assert_close(f"{index}", whole[index], apply(settings, p, x[index]), reordered(20))


@each_map
@pytest.mark.clause("PHI-1")
def test_the_argument_is_left_alone_and_complex_steps_pass(settings: dict[str, Any]) -> None:
    p, x, v = features.tensors(settings, 4), gaussian(3, 4), gaussian(3, 4, seed=1)
    before = x.copy()
    moved = apply(settings, p, x + 1e-30j * v)
    want = np.array([features.phi(settings, p, each) for each in x + 1e-30j * v])
    assert_close("x", x, before, EXACT)
    assert_close("derivative", moved.imag / 1e-30, want.imag / 1e-30, ANALYTIC)


@each_map
@pytest.mark.clause(
    "PHI-2", "PHI-3", "PHI-4", "PHI-5", "PHI-6", "PHI-7", "PHI-8", "PHI-9", "PHI-10"
)
def test_float32_stays_float32(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 5), gaussian(8, 5)
    p32 = {name: tensor.astype(np.float32) for name, tensor in p.items()}
    got = apply(settings, p32, x.astype(np.float32))
    exact = apply(
        settings,
        {name: t.astype(float) for name, t in p32.items()},
        x.astype(np.float32).astype(float),
    )
    assert got.dtype == np.float32
    assert_close(
        "value", got.astype(float), exact, reordered(1, dtype=np.float32, amplification=10)
    )


@pytest.mark.clause("PHI-2")
def test_the_identity_returns_every_bit() -> None:
    x = np.array([0.0, -0.0, 1e-320, 1e300, -7.25])
    assert_close("identity", apply({"kind": "identity"}, {}, x), x, EXACT)
    assert feature_maps.IDENTITY.kind == "identity"


@pytest.mark.clause("PHI-4")
def test_with_given_tensors_the_bandwidth_changes_nothing() -> None:
    p, x = features.tensors({"kind": "random_fourier"}, 4), gaussian(3, 4)
    narrow, wide = (apply({"kind": "random_fourier", "bandwidth": b}, p, x) for b in (0.1, 10.0))
    assert_close("bandwidth", narrow, wide, EXACT)


@pytest.mark.clause("PHI-5", "PHI-12")
def test_elu_keeps_its_precision_and_its_sign_far_below_zero() -> None:
    x = np.array([-700.0, -100.0, -40.0, -20.0, -1.0, -1e-18, -0.0, 0.0, 1e-18, 3.0, 1e300])
    want = np.array([math.exp(each) if each <= 0 else each + 1 for each in x])
    got = apply({"kind": "elu"}, {}, x)
    assert np.abs(got / want - 1).max() < 1e-14
    assert np.all(got > 0)


@pytest.mark.clause("PHI-6")
def test_gelu_is_its_tanh_form_and_silu_the_default() -> None:
    assert model({"kind": "residual_mlp"}).activation == "silu"
    one, z = {"W1": np.eye(1), "W2": np.eye(1)}, np.linspace(-6, 6, 101)[:, None]
    gelu = apply({"kind": "residual_mlp", "activation": "gelu"}, one, z) - z
    tanh_form = z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    error_function = z / 2 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    assert np.abs(gelu - tanh_form).max() < 1e-14
    assert 1e-4 < np.abs(gelu - error_function).max() < 1e-3  # another function, not an inexact one
    silu = apply({"kind": "residual_mlp"}, one, np.array([[-800.0], [800.0]])) - np.array(
        [[-800.0], [800.0]]
    )
    assert_close("silu far out", silu, np.array([[0.0], [800.0]]), reordered(1))


# -- dimensions and order of columns ---------------------------------------------------------------


@pytest.mark.clause("PHI-7")
def test_each_monomial_occurs_once_by_degree_and_then_in_lexicographic_order() -> None:
    x = np.array([2.0, 3.0, 5.0])
    r = math.sqrt
    quadratic = [4 / r(2), 6, 10, 9 / r(2), 15, 25 / r(2)]
    assert_close(
        "degree 2",
        apply({"kind": "polynomial"}, {}, x),
        np.array([2, 3, 5, *quadratic]),
        reordered(3),
    )
    ones = apply(
        {"kind": "polynomial", "degree": 3, "coefficients": [4.0, 1.0, 1.0, 1.0]}, {}, np.ones(2)
    )
    assert_close("weights", ones, np.array([2, 1, 1, 1, r(2), 1, 1, r(3), r(3), 1]), reordered(3))


@pytest.mark.clause("PHI-7")
def test_the_constant_column_exists_only_with_its_coefficient_and_the_others_always() -> None:
    for constant in (0.0, 0.3):
        settings = {"kind": "polynomial", "degree": 2, "coefficients": [constant, 0.0, 0.0]}
        got = apply(settings, {}, gaussian(3))
        assert got.shape == ((constant > 0) + 3 + 6,)
        assert not got[(constant > 0) :].any()
        assert feature_maps.d_phi(model(settings), 3) == got.shape[-1]


@pytest.mark.clause("PHI-7")
def test_default_coefficients_are_those_of_the_exponential_without_its_constant() -> None:
    assert model({"kind": "polynomial", "degree": 4}).weights() == (0.0, 1.0, 1 / 2, 1 / 6, 1 / 24)
    assert model({"kind": "polynomial"}).degree == 2
    x = gaussian(5)
    listed = apply({"kind": "polynomial", "degree": 3, "coefficients": [0, 1, 1 / 2, 1 / 6]}, {}, x)
    assert_close("listed", apply({"kind": "polynomial", "degree": 3}, {}, x), listed, EXACT)


@pytest.mark.clause("PHI-7", "PHI-8", "PHI-15")
def test_dimensions() -> None:
    quadratic = model({"kind": "polynomial"})
    assert feature_maps.d_phi(quadratic, 64) == 2144
    assert feature_maps.d_phi(quadratic, 64) / 64 == 33.5
    for d in (1, 2, 3, 7):
        assert (
            feature_maps.d_phi(quadratic, d)
            == d + d * (d + 1) // 2
            == feature_maps.d_phi(model({"kind": "monomials"}), d)
        )
        for degree in (1, 2, 3, 4):
            for constant in (0.0, 1.0):
                coefficients = [constant] + [1.0] * degree
                settings = {"kind": "polynomial", "degree": degree, "coefficients": coefficients}
                want = (constant > 0) + sum(math.comb(d + n - 1, n) for n in range(1, degree + 1))
                assert (
                    feature_maps.d_phi(model(settings), d)
                    == want
                    == apply(settings, {}, np.ones(d)).shape[0]
                )


@pytest.mark.clause("PHI-8")
def test_monomials_are_the_argument_and_every_pair_once() -> None:
    got = apply({"kind": "monomials"}, {}, np.array([2.0, 3.0, 5.0]))
    assert_close(
        "monomials", got, np.array([2.0, 3.0, 5.0, 4.0, 6.0, 10.0, 9.0, 15.0, 25.0]), EXACT
    )


@pytest.mark.clause("PHI-9")
def test_powers_are_summed_and_not_joined() -> None:
    x = np.array([2.0, -3.0])
    for degree, want in ((1, [2, -3]), (2, [6, 6]), (3, [14, -21]), (4, [30, 60])):
        assert_close(
            f"degree {degree}",
            apply({"kind": "elementwise", "degree": degree}, {}, x),
            np.array(want, float),
            EXACT,
        )
    assert model({"kind": "elementwise"}).degree == 2


@pytest.mark.clause("PHI-10")
def test_the_rows_of_proj_meet_the_products_row_by_row() -> None:
    d, x = 3, np.array([2.0, 3.0, 5.0])
    for i in range(d):
        for j in range(d):
            proj = np.zeros((d + d * d, 1))
            proj[d + i * d + j] = 1.0
            assert_close(
                f"{i} {j}",
                apply({"kind": "sketch"}, {"proj": proj}, x),
                np.array([x[i] * x[j]]),
                EXACT,
            )


# -- keys and queries ------------------------------------------------------------------------------


def evaluated(
    settings: dict[str, Any], p: dict[str, Any], k: Any, q: Any, **more: Any
) -> dict[str, Any]:
    header = {
        "schema": 1,
        "rule": "omega",
        "window": 3,
        "feature_map": settings,
        "convention": {"rate": "memory"},
    }
    names = {name: "in/proj" if name == "proj" else f"in/phi/{name}" for name in p}
    T = k.shape[-2]
    gates = {
        "in/retain": np.full((2, T), 0.9),
        "in/momentum": np.full((2, T), 0.7),
        "in/step_size": np.full((2, T), 0.05),
    }
    given = {
        "in/k": k,
        "in/v": gaussian(2, T, 3, seed=5),
        "in/q": q,
        **gates,
        **{names[name]: p[name] for name in p},
        **more,
    }
    return atlas_ref.evaluate(atlas_ref.make(header, given)).tensors


@each_map
@pytest.mark.clause("PHI-1")
def test_the_same_map_with_the_same_tensors_meets_keys_and_queries(
    settings: dict[str, Any],
) -> None:
    p, k, q = (
        features.tensors(settings, 4),
        0.5 * gaussian(2, 6, 4),
        0.5 * gaussian(2, 6, 4, seed=1),
    )
    got = evaluated(settings, p, k, q)
    mapped = [
        np.array([[features.phi(settings, p, token) for token in row] for row in x]) for x in (k, q)
    ]
    want = evaluated({"kind": "identity"}, {}, *mapped)
    d_phi = mapped[0].shape[-1]
    assert got["out/M"].shape == (2, 3, d_phi)
    assert got["out/S"].shape == (2, 3, d_phi)
    for name in ("out/y", "out/M", "out/S"):
        assert_close(name, got[name], want[name], reordered(1, amplification=1e5))
    assert_close("stored keys are raw", got["out/window_k"], k[:, -2:], EXACT)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.clause("PHI-4", "PHI-6", "PHI-7", "PHI-8", "PHI-9", "PHI-10")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "rbf"},
            "kind 'rbf' does not exist; kinds are 'identity', .*'sketch', 'tensor_sketch'",
        ),
        ({}, "kind: missing"),
        ("elu", "must be an object, found 'elu'"),
        ({"kind": "elu", "alpha": 1.0}, "alpha: unknown key"),
        ({"kind": "linear", "degree": 2}, "degree: unknown key"),
        ({"kind": "random_fourier", "bandwidth": 0}, "bandwidth: must be greater than 0, found 0"),
        (
            {"kind": "random_fourier", "bandwidth": -1.5},
            "bandwidth: must be greater than 0, found -1.5",
        ),
        ({"kind": "random_fourier", "bandwidth": "1"}, "bandwidth: must be a number, found '1'"),
        (
            {"kind": "residual_mlp", "activation": "relu"},
            r"activation: must be 'silu' or 'gelu', found 'relu'; did you mean gelu\?",
        ),
        ({"kind": "polynomial", "degree": 0}, "degree: must be at least 1, found 0"),
        ({"kind": "polynomial", "degree": 2.5}, "degree: must be an integer, found 2.5"),
        ({"kind": "polynomial", "degree": True}, "degree: must be an integer, found true"),
        (
            {"kind": "polynomial", "coefficients": [0, -1, 1]},
            r"coefficients.1: must be at least 0, found -1",
        ),
        (
            {"kind": "polynomial", "coefficients": [0, "a", 1]},
            "coefficients.1: must be a number, found 'a'",
        ),
        ({"kind": "polynomial", "coefficients": 3}, "coefficients: must be a list, found 3"),
        (
            {"kind": "polynomial", "degree": 3, "coefficients": [0, 1]},
            "coefficients: 2 given, degree 3 needs a_0 .. a_3",
        ),
        (
            {"kind": "polynomial", "coefficients": []},
            "coefficients: 0 given, degree 2 needs a_0 .. a_2",
        ),
        (
            {"kind": "polynomial", "degree": 1, "coefficients": [0, 1, 1]},
            "coefficients: 3 given, degree 1 needs a_0 .. a_1",
        ),
        ({"kind": "monomials", "degree": 3}, "degree: must be 2, found 3"),
        ({"kind": "elementwise", "degree": 0}, "degree: must be at least 1, found 0"),
        ({"kind": "sketch", "degree": 3}, "degree: must be 2, found 3"),
        ({"kind": "tensor_sketch", "degree": 4}, "degree: must be 2 or 3, found 4"),
    ],
    ids=str,
)
def test_settings_that_do_not_exist_are_refused_in_plain_words(settings: Any, message: str) -> None:
    with pytest.raises(atlas_ref.CaseError, match=f"^case: feature_map.*{message}$"):
        atlas_ref.make(
            {"schema": 1, "rule": "feature_map", "feature_map": settings}, {"in/x": np.ones((2, 3))}
        )


@pytest.mark.clause("PHI-7")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-300])
def test_a_coefficient_is_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(ValueError, match="coefficients"):
        feature_maps.Polynomial(degree=1, coefficients=(0.0, bad))


@pytest.mark.clause("PHI-4")
@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_a_bandwidth_is_finite_and_positive(bad: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        feature_maps.RandomFourier(bandwidth=bad)


@pytest.mark.clause("PHI-3", "PHI-4", "PHI-6", "PHI-10")
@pytest.mark.parametrize(
    ("settings", "p", "message"),
    [
        ({"kind": "linear"}, {}, "feature map linear: W: missing, axes .d_phi d_in. are needed"),
        (
            {"kind": "linear"},
            {"W": (5, 3)},
            "W: shape .5, 3. makes d_in 3, but the argument makes it 4",
        ),
        (
            {"kind": "random_fourier"},
            {"W": (5, 4), "b": (1,)},
            "b: shape .1,. makes d_phi 1, but W makes it 5",
        ),
        ({"kind": "residual_mlp"}, {"W1": (6, 4), "W2": (6, 4)}, "W2: shape .6, 4. makes d_in 6"),
        (
            {"kind": "residual_mlp"},
            {"W1": (6, 4), "W2": (4, 5)},
            "W2: shape .4, 5. makes hidden 5, but W1 makes it 6",
        ),
        (
            {"kind": "sketch"},
            {"proj": (16, 5)},
            r"proj: shape .16, 5. makes d_sketch 16, but d_in \+ d_in\^2 makes it 20",
        ),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    settings: dict[str, Any], p: dict[str, Any], message: str
) -> None:
    given = {name: np.ones(shape) for name, shape in p.items()}
    with pytest.raises(ValueError, match=message):
        apply(settings, given, np.ones((2, 4)))


@pytest.mark.clause("PHI-1")
@pytest.mark.parametrize(
    ("x", "message"),
    [([1.0], "x: an array is needed"), (np.array([1.0, np.nan]), "x: every entry must be finite")],
)
def test_an_argument_that_is_no_finite_array_is_refused(x: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply({"kind": "elu"}, {}, x)
