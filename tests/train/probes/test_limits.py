"""What theory says of capacity, held against ranks of matrices and means of many draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts import feature_maps, memory_functions
from atlas_ref.parts.feature_maps import (
    Elementwise,
    Elu,
    Monomials,
    Polynomial,
    RandomFourier,
    Sketch,
)
from atlas_ref.train.probes import limits
from atlas_ref.train.probes.capacity import Settings, measure
from tape import jacobian
from tests.support.close import ANALYTIC, assert_close

pytestmark = pytest.mark.host("numbers of the host")


def numeric_rank(feature_map: Any, d: int, *, unit: bool, features: int | None = None) -> int:
    """Rank of the features of more keys than there are columns."""
    keys = np.random.default_rng(3).standard_normal((150, d))
    if unit:
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    tensors = feature_maps.init(feature_map, d, 1, features=features)
    return int(np.linalg.matrix_rank(feature_maps.apply(feature_map, tensors, keys), rtol=1e-10))


POLYNOMIALS = (
    Monomials(),
    Polynomial(),
    Polynomial(degree=3),
    Polynomial(degree=4),
    Polynomial(degree=2, coefficients=(1.0, 1.0, 0.5)),
    Polynomial(degree=3, coefficients=(1.0, 1.0, 1.0, 1.0)),
    Polynomial(degree=4, coefficients=(0.0, 0.0, 1.0, 0.0, 1.0)),
    Polynomial(degree=1, coefficients=(2.0, 1.0)),
)


@pytest.mark.clause("PROBE-9")
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("d", [1, 3, 4])
@pytest.mark.parametrize("feature_map", POLYNOMIALS, ids=repr)
def test_the_rank_of_polynomial_features(feature_map: Any, d: int, unit: bool) -> None:
    assert limits.rank(feature_map, d, unit=unit) == numeric_rank(feature_map, d, unit=unit)


@pytest.mark.clause("PROBE-9")
def test_the_binomial_of_proposition_two_is_reached_by_free_keys_and_not_by_unit_ones() -> None:
    for d, p in ((4, 2), (5, 2), (4, 3), (3, 4)):
        whole = Polynomial(degree=p, coefficients=(1.0,) * (p + 1))
        assert limits.rank(whole, d, unit=False) == math.comb(d + p, p)
        on_sphere = math.comb(d + p - 1, p) + math.comb(d + p - 2, p - 1)
        assert limits.rank(whole, d, unit=True) == on_sphere < math.comb(d + p, p)


@pytest.mark.clause("PROBE-8")
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize(
    ("feature_map", "features"),
    [
        (feature_maps.Identity(), None),
        (feature_maps.Linear(), 7),
        (feature_maps.Linear(), 3),
        (RandomFourier(), 11),
        (Elu(), None),
        (feature_maps.ResidualMlp(), None),
        (Elementwise(degree=3), None),
        (Sketch(), 9),
        (Sketch(), 40),
    ],
    ids=repr,
)
def test_the_rank_of_other_features(feature_map: Any, features: int | None, unit: bool) -> None:
    want = numeric_rank(feature_map, 5, unit=unit, features=features)
    assert limits.rank(feature_map, 5, features=features, unit=unit) == want


def mlp_jacobian(count: int, *, d_k: int, d_v: int, hidden: int) -> Any:
    """Derivative of the answers to random keys by all weights of an MLP (count d_v, P)."""
    function = memory_functions.MemoryFunction(kind="mlp", expansion=hidden / d_k)
    tensors = memory_functions.initial(function, d_k, d_v, seed=1)
    keys = np.random.default_rng(2).standard_normal((count, d_k))
    columns = []
    for name, value in tensors.items():

        def answers(each: Any, name: str = name) -> Any:
            return memory_functions.apply(function, {**tensors, name: each}, keys)

        columns.append(jacobian(answers)(value).reshape(count * d_v, -1))
    return np.concatenate(columns, axis=1)


@pytest.mark.clause("PROBE-10")
def test_answers_of_an_mlp_move_freely_up_to_the_limit_and_not_beyond() -> None:
    d_k, d_v, hidden = 3, 2, 4
    settings = Settings(
        memory="deep_memory",
        d_k=d_k,
        d_v=d_v,
        step_size=0.1,
        parameters={"memory": {"kind": "mlp", "expansion": hidden / d_k}},
    )
    most = limits.limit(settings)
    assert most == hidden * (d_k + d_v) // d_v == 10
    for count, free in ((most, True), (most + 1, False)):
        found = np.linalg.matrix_rank(mlp_jacobian(count, d_k=d_k, d_v=d_v, hidden=hidden))
        assert (found == count * d_v) == free
        assert found == min(count, most) * d_v


@pytest.mark.clause("PROBE-10")
def test_a_linear_deep_memory_has_the_limit_of_a_matrix_and_the_usual_mlp_one_linear_in_d_k() -> (
    None
):
    own: dict[str, Any] = {"memory": "deep_memory", "step_size": 0.1}
    linear = Settings(**own, d_k=7, d_v=5, parameters={"memory": {"kind": "linear"}})
    assert limits.limit(linear) == 7
    for d in (16, 32, 64):  # Theorem 1 prints "at least O(d_k d_v)"
        usual = Settings(**own, d_k=d, d_v=d, parameters={"memory": {"kind": "mlp"}})
        assert limits.limit(usual) == 8 * d < d * d


RULES: tuple[dict[str, Any], ...] = (
    {"memory": "hebbian"},
    {"memory": "hebbian", "passes": 3},
    {"memory": "delta"},
    {"memory": "delta", "step_size": 0.4},
    {"memory": "delta", "convention": {"rate": "both", "gradient_scale": 2.0}, "step_size": 0.5},
    {"memory": "titans_lmm"},
    {"memory": "least_squares"},
    {"memory": "least_squares", "feature_map": Monomials(), "d_k": 4},
)


@pytest.mark.clause("PROBE-11", "PROBE-12")
@pytest.mark.parametrize("own", RULES, ids=str)
def test_the_mean_squared_error_of_many_draws_is_the_expectation(own: dict[str, Any]) -> None:
    """Within four standard errors of the mean over draws."""
    settings = Settings(**{"d_k": 9, "d_v": 6} | own)
    for count in (1, 5, 20):
        squares = (measure(settings, count, range(300)).error ** 2).mean(axis=1)
        expected = limits.moments(settings, count)
        assert expected is not None
        off = abs(squares.mean() - expected.error.mean())
        assert off <= 4 * squares.std() / math.sqrt(300) + 1e-12
    longer = limits.moments(settings.replaced(d_k=2 * settings.d_k), count)
    assert longer is not None
    assert abs(squares.mean() - longer.error.mean()) > 4 * squares.std() / math.sqrt(300)


@pytest.mark.clause("PROBE-12")
def test_the_error_of_each_pair_by_its_place_and_not_by_another() -> None:
    """The last pair is exact, the first has met every other; the wrong way round is told apart."""
    settings = Settings(memory="delta", d_k=9, d_v=6)
    squares = measure(settings, 12, range(400)).error ** 2
    expected = limits.moments(settings, 12)
    assert expected is not None
    spread = 5 * squares.std(axis=0) / math.sqrt(400) + 1e-12
    assert (np.abs(squares.mean(axis=0) - expected.error) <= spread).all()
    ends = [0, -1]
    assert (np.abs(squares.mean(axis=0) - expected.error[::-1]) > spread)[ends].all()


@pytest.mark.clause("PROBE-12")
def test_the_closed_form_is_the_recursion_of_the_spec() -> None:
    d, N, b = 7, 11, 0.6
    settings = Settings(memory="delta", d_k=d, step_size=b)
    F, A, E = 0.0, np.zeros(N), np.zeros(N)
    for t in range(N):
        for i in range(t):
            A[i] *= 1 - b / d
            E[i] += -2 * b / d * E[i] + b**2 * (F + 2 * E[i]) / (d * (d + 2)) + b**2 / d
        A[t], E[t] = b, (1 - b) ** 2 * F / d + b**2
        F = F * (1 - (2 * b - b**2) / d) + b**2
    found = limits.moments(settings, N)
    assert found is not None
    assert_close("signal", found.signal, A, ANALYTIC)
    assert_close("noise", found.noise, E - A**2, ANALYTIC)


@pytest.mark.clause("PROBE-13")
@pytest.mark.parametrize("own", RULES[:1] + RULES[2:4] + RULES[6:7], ids=str)
def test_the_number_recalled_by_angle_is_within_a_tenth_of_its_expectation(
    own: dict[str, Any],
) -> None:
    settings = Settings(**{"d_k": 16, "d_v": 16} | own)
    for count in (4, 16, 32):
        found = limits.moments(settings, count)
        assert found is not None
        expected = limits.by_angle(found, settings.d_v)
        assert expected is not None
        measured = measure(settings, count, range(64)).by_angle.sum(axis=1).mean()
        assert abs(expected - measured) <= 0.1 * measured


@pytest.mark.clause("PROBE-13")
def test_by_angle_of_few_dimensions_and_pairs() -> None:
    sure = limits.Moments(np.ones(3), np.zeros(3))
    assert limits.by_angle(sure, 2) == pytest.approx(3.0, abs=1e-12)
    assert limits.by_angle(sure, 1) is None
    # an answer that has nothing of its value is right as often as any other
    lost = limits.Moments(np.zeros(4), np.ones(4))
    assert limits.by_angle(lost, 2) == pytest.approx(1.0, abs=0.35)
    # of two pairs half, by the symmetry of the noise
    half = limits.Moments(np.zeros(2), np.array([0.3, 0.3]))
    assert limits.by_angle(half, 5) == pytest.approx(1.0, abs=1e-12)
    assert limits.by_angle(limits.Moments(np.ones(1), np.zeros(1)), 3) == 1.0
    assert limits.by_angle(limits.Moments(np.zeros(1), np.zeros(1)), 3) == 0.0


@pytest.mark.clause("PROBE-11", "PROBE-12")
@pytest.mark.parametrize(
    "own",
    [
        {"passes": 2},
        {"momentum": 0.5, "memory": "titans_lmm"},
        {"keys": "free"},
        {"retain": 0.9},
        {"feature_map": Monomials()},
        {"convention": {"reference": "zero"}},
        {"convention": {"read": "chunk_start"}, "parameters": {"span": 4}},
        {"memory": "omega"},  # Newton-Schulz
        {"memory": "omega", "parameters": {"window": 2}, "convention": {"newton_schulz": "none"}},
        {"memory": "deep_memory", "step_size": 0.1},
    ],
    ids=str,
)
def test_no_expectation_where_no_formula_is_known(own: dict[str, Any]) -> None:
    assert limits.moments(Settings(**own), 5) is None
    assert limits.moments(Settings(), 5) is not None
