"""Kernels, bounds, capacity, special cases, cost and initial tensors of feature maps (PHI-4, PHI-11
to PHI-15).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import FeatureMap
from atlas_ref.rules import omega, sequence
from atlas_ref.rules.sequence import Tokens
from tape.core import recording
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.truth import features
from tests.truth.features import MAPS

PARSE: TypeAdapter[Any] = TypeAdapter(FeatureMap)


def gaussian(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def apply(settings: dict[str, Any], p: dict[str, Any], x: Any) -> Any:
    return feature_maps.apply(PARSE.validate_python(settings), p, x)


def kernel(settings: dict[str, Any], p: dict[str, Any], x: Any, y: Any) -> Any:
    return np.sum(apply(settings, p, x) * apply(settings, p, y), axis=-1)


# -- kernels ---------------------------------------------------------------------------------------


@pytest.mark.clause("PHI-11")
def test_the_kernels_of_identity_linear_and_monomials() -> None:
    x, y = gaussian(20, 5), gaussian(20, 5, seed=1)
    p = features.tensors({"kind": "linear"}, 5)
    for i in range(20):
        u = sum(x[i, r] * y[i, r] for r in range(5))
        assert_close(
            "identity",
            kernel({"kind": "identity"}, {}, x[i], y[i]),
            u,
            reordered(5, amplification=10),
        )
        through = x[i] @ (p["W"].T @ p["W"]) @ y[i]
        assert_close("linear", kernel({"kind": "linear"}, p, x[i], y[i]), through, ANALYTIC)
        squares = sum(x[i, r] ** 2 * y[i, r] ** 2 for r in range(5))
        assert_close(
            "monomials",
            kernel({"kind": "monomials"}, {}, x[i], y[i]),
            u + (u * u + squares) / 2,
            ANALYTIC,
        )


@pytest.mark.clause("PHI-11", "PHI-7")
@pytest.mark.parametrize("d", [1, 3, 5])
@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_the_polynomial_kernel_is_the_polynomial(d: int, degree: int) -> None:
    x, y = gaussian(10, d), gaussian(10, d, seed=1)
    u = np.sum(x * y, axis=-1)
    random = np.random.default_rng(degree)
    tables = [
        None,
        [0.0] * (degree + 1),
        list(random.uniform(0, 2, degree + 1)),
        [0.5, *[0.0] * (degree - 1), 2.0],
    ]
    for table in tables:
        settings = {"kind": "polynomial", "degree": degree} | (
            {} if table is None else {"coefficients": table}
        )
        a = features.coefficients(settings)
        want = sum(a[n] * u**n for n in range(degree + 1))
        assert_close(f"{table}", kernel(settings, {}, x, y), want, ANALYTIC)
    taylor = sum(u**n / math.factorial(n) for n in range(1, degree + 1))  # of exp(u) - 1
    assert_close(
        "default", kernel({"kind": "polynomial", "degree": degree}, {}, x, y), taylor, ANALYTIC
    )


@pytest.mark.clause("PHI-11", "PHI-4")
@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 2.0])
def test_random_fourier_features_approach_the_gaussian_kernel(bandwidth: float) -> None:
    settings = feature_maps.RandomFourier(bandwidth=bandwidth)
    x, y = 0.4 * gaussian(12, 6), 0.4 * gaussian(12, 6, seed=1)
    want = np.exp(-np.sum((x - y) ** 2, axis=-1) / (2 * bandwidth**2))
    rms = {}
    for count in (100, 6400):
        errors = []
        for seed in range(20):
            p = feature_maps.init(settings, 6, seed, features=count)
            got = np.sum(
                feature_maps.apply(settings, p, x) * feature_maps.apply(settings, p, y), axis=-1
            )
            # a mean of d_phi independent terms within [-2, 2]: Hoeffding, one in ten million for
            # each of 480
            assert np.abs(got - want).max() <= math.sqrt(8 * math.log(2e7) / count)
            errors.append(got - want)
        rms[count] = float(np.sqrt(np.mean(np.square(errors))))
        assert abs(np.mean(errors)) < 5 * rms[count] / math.sqrt(20)  # no bias
    assert 4 < rms[100] / rms[6400] < 16  # the root of 64 is 8


@pytest.mark.clause("PHI-11")
@pytest.mark.parametrize("bandwidth", [0.5, 2.0])
def test_terms_of_the_random_kernel_have_the_stated_mean_and_variance(bandwidth: float) -> None:
    settings, count = feature_maps.RandomFourier(bandwidth=bandwidth), 100_000
    p = feature_maps.init(settings, 6, 1, features=count)
    for x, y in zip(0.4 * gaussian(6, 6), 0.4 * gaussian(6, 6, seed=1), strict=True):
        left, right = (feature_maps.apply(settings, p, each) for each in (x, y))
        terms = count * left * right
        m = math.exp(-np.sum((x - y) ** 2) / (2 * bandwidth**2))
        squares = (terms - m) ** 2
        for sample, want in ((terms, m), (squares, 1 - m**2 + m**4 / 2)):
            assert abs(np.mean(sample) - want) < 5 * np.std(sample) / math.sqrt(count)


@pytest.mark.clause("PHI-11")
def test_the_reciprocal_of_the_bandwidth_would_be_another_kernel() -> None:
    x, y = np.array([0.5, 0.0]), np.array([0.0, 0.5])
    settings = feature_maps.RandomFourier(bandwidth=0.5)
    p = feature_maps.init(settings, 2, 0, features=20_000)
    got = float(feature_maps.apply(settings, p, x) @ feature_maps.apply(settings, p, y))
    # 0.368, not exp(-0.25 * 0.5 / 2) = 0.939
    assert got == pytest.approx(math.exp(-0.5 / (2 * 0.25)), abs=0.04)


@pytest.mark.clause("PHI-12")
def test_random_fourier_features_are_bounded_and_elu_is_positive() -> None:
    for seed in range(5):
        p = features.tensors({"kind": "random_fourier"}, 4, seed=seed, features=3)
        for size in (0.0, 1.0, 1e6):
            phi = apply({"kind": "random_fourier"}, p, size * gaussian(200, 4, seed=seed))
            assert np.sum(phi * phi, axis=-1).max() <= 2 + 1e-14
    aligned = {"W": np.zeros((3, 4)), "b": np.zeros(3)}
    # the bound is reached
    assert np.sum(apply({"kind": "random_fourier"}, aligned, np.ones(4)) ** 2) == pytest.approx(2)
    assert np.all(apply({"kind": "elu"}, {}, 100 * gaussian(200, 4)) > 0)


@pytest.mark.clause("PHI-12")
@pytest.mark.parametrize(
    "settings", [s for s in MAPS.values() if s["kind"] != "random_fourier"], ids=str
)
def test_the_other_maps_are_unbounded(settings: dict[str, Any]) -> None:
    p, x = features.tensors(settings, 4), np.abs(gaussian(4))
    assert np.linalg.norm(apply(settings, p, 1e6 * x)) > 1e4 * np.linalg.norm(apply(settings, p, x))


def apart(p: dict[str, Any], keys: Any, retain: float, step: float, weights: Any) -> float:
    """The largest factor by which the last of some tokens moves two memories apart.

    The tokens before it only enter the window.
    """
    c, T = len(weights), len(keys)
    config = omega.Config(
        d_in=keys.shape[1],
        d_out=1,
        window=c,
        features=len(p["b"]),
        feature_map={"kind": "random_fourier"},
        convention={"newton_schulz": "none", "gate": "retain"},
    )
    tokens = Tokens(
        k=keys,
        v=np.zeros((T, 1)),
        q=keys,
        retain=np.full(T, retain),
        step_size=np.full(T, step),
        window_weights=np.tile(weights, (T, 1)),
        active=np.arange(T) == T - 1,
    )
    rows = []
    for row in np.eye(len(p["b"])):  # the step is linear where values are 0
        start = omega.start(config, M=row[None])
        rows.append(sequence.run(omega.RULE, config, tokens, start, phi=p)[0].M[0])
    return float(np.linalg.norm(np.array(rows), 2))


@pytest.mark.clause("PHI-17")
@pytest.mark.parametrize("retain", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("weights", [[1.0], [1 / 3] * 3, [0.8, 0.6]])
def test_the_stated_step_of_random_fourier_features_amplifies_at_no_key(
    retain: float, weights: list[float]
) -> None:
    most = (1 + retain) / 2 / sum(weights)
    aligned = {"W": np.zeros((5, 4)), "b": np.zeros(5)}  # all features are those of |phi|^2 = 2
    keys = gaussian(len(weights), 4)
    for step in (most, 0.5 / sum(weights)):
        assert apart(aligned, keys, retain, step, weights) <= 1 + 1e-12
        for seed in range(5):
            p = features.tensors({"kind": "random_fourier"}, 4, seed=seed, features=5)
            for size in (0.0, 1.0, 1e3):
                assert apart(p, size * keys, retain, step, weights) <= 1 + 1e-12
    assert apart(aligned, keys, retain, 1.05 * most, weights) > 1.01


# -- capacity --------------------------------------------------------------------------------------


def stores(phi: Any, seed: int = 9) -> bool:
    """Whether a matrix memory reproduces random values at these rows exactly."""
    values = gaussian(len(phi), 3, seed=seed)
    memory = np.linalg.lstsq(phi, values, rcond=1e-12)[0].T
    return float(np.linalg.norm(phi @ memory.T - values) / np.linalg.norm(values)) < 1e-8


@pytest.mark.clause("PHI-13")
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("identity", 16),
        ("elu", 16),
        ("residual_mlp silu", 16),
        ("residual_mlp gelu", 16),
        ("elementwise 2", 16),
        ("elementwise 4", 16),
        ("sketch", 16),
        ("monomials", 152),
        ("polynomial 2", 152),
        ("polynomial with a constant", 153),
        ("linear", 16),
        ("random_fourier", 23),
    ],
)
def test_as_many_random_pairs_are_stored_as_there_are_independent_features(
    name: str, most: int
) -> None:
    settings = MAPS[name]
    p = features.tensors(settings, 16, features=16 if name == "sketch" else 23)
    keys = gaussian(400, 16)
    phi = apply(settings, p, keys)
    assert np.linalg.matrix_rank(phi) == most
    assert stores(phi[:most])
    assert not stores(phi[: most + 1])


@pytest.mark.clause("PHI-13")
def test_values_are_stored_exactly_if_and_only_if_the_features_are_independent() -> None:
    keys = gaussian(6, 4)
    keys[5] = 2 * keys[0] - keys[1]  # dependent as keys
    few = [0, 1, 5]
    assert not stores(apply({"kind": "identity"}, {}, keys[few]))
    assert stores(apply({"kind": "monomials"}, {}, keys))  # and independent as features
    assert not stores(apply({"kind": "monomials"}, {}, np.concatenate([keys, keys[:1]])))


@pytest.mark.clause("PHI-13")
def test_degree_two_has_one_column_for_a_pair_and_not_two() -> None:
    d = 5
    x = gaussian(200, d)
    every = np.concatenate([x, np.einsum("ti,tj->tij", x, x).reshape(200, -1)], axis=1)
    assert every.shape[1] == d + d * d
    assert (
        np.linalg.matrix_rank(every)
        == np.linalg.matrix_rank(apply({"kind": "monomials"}, {}, x))
        == d + d * (d + 1) // 2
    )


# -- special cases ---------------------------------------------------------------------------------


@pytest.mark.clause("PHI-14")
def test_maps_that_equal_the_identity() -> None:
    d = 4
    x = gaussian(10, d)
    assert_close("linear", apply({"kind": "linear"}, {"W": np.eye(d)}, x), x, EXACT)
    hidden = {"W1": gaussian(6, d), "W2": np.zeros((d, 6))}
    for activation in ("silu", "gelu"):
        assert_close(
            activation,
            apply({"kind": "residual_mlp", "activation": activation}, hidden, x),
            x,
            EXACT,
        )
    assert_close("elementwise", apply({"kind": "elementwise", "degree": 1}, {}, x), x, EXACT)
    assert_close("polynomial", apply({"kind": "polynomial", "degree": 1}, {}, x), x, EXACT)
    proj = np.concatenate([np.eye(d), np.zeros((d * d, d))])
    assert_close("sketch", apply({"kind": "sketch"}, {"proj": proj}, x), x, EXACT)


@pytest.mark.clause("PHI-14")
def test_monomials_and_the_quadratic_polynomial_span_the_same_functions_with_other_kernels() -> (
    None
):
    a, d = 0.7, 4
    x, y = gaussian(30, d), gaussian(30, d, seed=1)
    settings = {"kind": "polynomial", "degree": 2, "coefficients": [0.0, 1.0, a]}
    weights = [1.0] * d + [
        math.sqrt(a * (1 if i == j else 2)) for i in range(d) for j in range(i, d)
    ]
    assert_close(
        "columns",
        apply(settings, {}, x),
        apply({"kind": "monomials"}, {}, x) * np.array(weights),
        ANALYTIC,
    )
    assert_differs(
        "kernels", kernel(settings, {}, x, y), kernel({"kind": "monomials"}, {}, x, y), 0.01
    )


# -- cost ------------------------------------------------------------------------------------------


def multiplications(function: Callable[[Any], Any], x: Any) -> int:
    """Multiplications of entries in products of matrices and of arrays."""
    counts: list[int] = []

    def note(name: str, arguments: Any, value: Any) -> None:
        if name == "matmul":
            counts.append(int(np.prod(value.shape)) * arguments[0].shape[-1])
        if name in ("multiply", "divide", "power"):
            counts.append(int(np.size(value)))

    with recording() as tape:
        tape.guard = note
        function(tape.variable(x))
    return sum(counts)


@pytest.mark.clause("PHI-15")
def test_multiply_adds_per_token() -> None:
    d, m, h, T = 16, 23, 40, 3
    x = gaussian(T, d)

    def per_token(settings: dict[str, Any]) -> float:
        p = features.tensors(settings, d, features=m, hidden=h)
        return multiplications(lambda y: apply(settings, p, y), x) / T

    assert per_token(MAPS["linear"]) == d * m
    assert per_token(MAPS["random_fourier"]) == d * m + m  # and the factor of the cosine
    assert 2 * h * d <= per_token(MAPS["residual_mlp silu"]) <= 2 * h * d + 2 * h
    assert (d + d * d) * m <= per_token(MAPS["sketch"]) <= (d + d * d) * m + d * d
    d_phi = d + d * (d + 1) // 2
    assert d_phi - d <= per_token(MAPS["monomials"]) <= d_phi
    assert d_phi - d <= per_token(MAPS["polynomial 2"]) <= 2 * d_phi
    assert per_token(MAPS["identity"]) == 0
    for name in ("elu", "elementwise 2"):
        assert per_token(MAPS[name]) <= 4 * d


# -- initial tensors -------------------------------------------------------------------------------


def largest_gap(sample: Any, distribution: Callable[[Any], Any]) -> float:
    """Kolmogorov and Smirnov's distance, times the root of the number of values."""
    ordered = np.sort(np.ravel(sample))
    n = len(ordered)
    below = distribution(ordered)
    return float(
        math.sqrt(n)
        * max(np.abs(np.arange(1, n + 1) / n - below).max(), np.abs(np.arange(n) / n - below).max())
    )


@pytest.mark.clause("PHI-4")
@pytest.mark.parametrize("bandwidth", [0.3, 1.0, 4.0])
def test_random_fourier_tensors_are_drawn_as_stated(bandwidth: float) -> None:
    p = feature_maps.init(feature_maps.RandomFourier(bandwidth=bandwidth), 8, 3, features=5000)
    normal = np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))))
    assert largest_gap(p["W"] * bandwidth, normal) < 1.95  # exceeded once in a thousand draws
    assert largest_gap(p["b"], lambda b: b / (2 * math.pi)) < 1.95
    assert p["b"].min() >= 0
    assert p["b"].max() < 2 * math.pi
    assert np.std(p["W"]) == pytest.approx(1 / bandwidth, rel=0.02)
    assert np.abs(np.corrcoef(p["W"].T) - np.eye(8)).max() < 5 / math.sqrt(5000)


@pytest.mark.clause("PHI-3", "PHI-4", "PHI-6", "PHI-10", "PHI-18")
@pytest.mark.parametrize("settings", MAPS.values(), ids=MAPS.keys())
def test_tensors_are_those_the_map_needs_and_follow_the_seed(settings: dict[str, Any]) -> None:
    own = PARSE.validate_python(settings)
    d = 4
    drawn = feature_maps.init(own, d, 1, features=7, hidden=6)
    want = {name: tensor.shape for name, tensor in features.tensors(settings, d).items()}
    assert {name: tensor.shape for name, tensor in drawn.items()} == want
    assert feature_maps.TENSORS.get(settings["kind"], {}).keys() == want.keys()
    again, other = (feature_maps.init(own, d, seed, features=7, hidden=6) for seed in (1, 2))
    for name in want:
        assert_close(name, again[name], drawn[name], EXACT)
        if name != "c":  # coefficients are stated, not drawn
            assert_differs(name, other[name], drawn[name], 0.1)
    plain = feature_maps.init(own, d, 1)
    n = settings.get("degree", 2)
    rows = 1 + d + (n - 1) * d if settings["kind"] == "tensor_sketch" else d + d * d
    shapes = {"W": (d, d), "b": (d,), "W1": (4 * d, d), "W2": (d, 4 * d), "proj": (rows, d)}
    shapes |= {"c": (n + 1,), "H": (n, d, d)}
    assert {name: tensor.shape for name, tensor in plain.items()} == {
        name: shapes[name] for name in want
    }
    assert feature_maps.apply(own, plain, gaussian(2, d)).shape == (
        2,
        feature_maps.d_phi(own, d, plain),
    )
