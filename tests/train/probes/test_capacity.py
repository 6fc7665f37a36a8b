"""Capacity without training: what is written and read back, and each proposition with its negative."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from atlas_ref.parts import feature_maps
from atlas_ref.parts.feature_maps import Monomials, Polynomial
from atlas_ref.rules import RULES
from atlas_ref.train.probes import capacity, curve, limits
from atlas_ref.train.probes.capacity import Settings, measure
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs

pytestmark = pytest.mark.host("numbers of the host")

#: Of a read that only rounding keeps from its value.
EXACTLY = 1e-8
PLAIN = {"newton_schulz": "none"}


def worst(own: dict[str, Any], count: int, seeds: Any = range(4)) -> float:
    """Largest error of any pair of any draw."""
    return float(measure(Settings(**own), count, seeds).error.max())


# -- the task --------------------------------------------------------------------------------------


@pytest.mark.clause("PROBE-1")
def test_pairs_have_length_one_and_fewer_are_the_first_of_more() -> None:
    settings = Settings(d_k=5, d_v=3)
    keys, values = capacity.pairs(settings, 9, (4, 7))
    assert (keys.shape, values.shape) == ((2, 9, 5), (2, 9, 3))
    for each in (keys, values):
        assert_close("length", np.linalg.norm(each, axis=-1), np.ones((2, 9)), ANALYTIC)
    fewer, _ = capacity.pairs(settings, 4, (7,))
    assert_close("first keys", fewer[0], keys[1, :4], EXACT)
    free, same = capacity.pairs(settings.replaced(keys="free"), 9, (4, 7))
    assert_close("values", same, values, EXACT)
    assert_close("directions", free / np.linalg.norm(free, axis=-1)[..., None], keys, ANALYTIC)
    assert np.ptp(np.linalg.norm(free, axis=-1)) > 0.3


@pytest.mark.clause("PROBE-1")
def test_a_map_before_the_rule_is_the_map_of_the_rule() -> None:
    """The features of free keys as keys of Omega, and Omega with the same map as its own (PHI-1)."""
    own: dict[str, Any] = {"memory": "omega", "d_k": 4, "d_v": 3, "keys": "free", "step_size": 0.3}
    before = Settings(**own, convention=PLAIN, feature_map=Monomials())
    inside = Settings(**own, convention=PLAIN, parameters={"feature_map": Monomials()})
    keys, values = capacity.pairs(before, 6, (1,))
    lifted = capacity.lifted(before, keys)
    want = capacity.written(inside, keys, values)
    assert_close("reads", capacity.written(before, lifted, values), want, ANALYTIC)
    assert_differs("unit", capacity.written(before, capacity._unit(lifted), values), want, 1e-3)


def delta_by_loops(phi: Any, values: Any, *, passes: int, step: float) -> Any:
    """Reads after some passes of the Delta rule, entry by entry."""
    (N, d), d_v = phi.shape, values.shape[1]
    M = [[0.0] * d for _ in range(d_v)]
    for _ in range(passes):
        for i in range(N):
            error = [sum(M[o][j] * phi[i, j] for j in range(d)) - values[i, o] for o in range(d_v)]
            M = [[M[o][j] - step * error[o] * phi[i, j] for j in range(d)] for o in range(d_v)]
    return np.array(
        [[sum(M[o][j] * phi[i, j] for j in range(d)) for o in range(d_v)] for i in range(N)]
    )


@pytest.mark.clause("PROBE-2", "PROBE-3", "PROBE-7")
@pytest.mark.parametrize(
    "own",
    [
        {"memory": "delta"},
        {"memory": "titans_lmm"},
        {"memory": "omega", "convention": PLAIN},
        {"memory": "omega", "convention": {**PLAIN, "rate": "split", "gradient_scale": 2.0}},
        {"memory": "omega", "convention": {**PLAIN, "rate": "both", "gradient_scale": 0.5}},
        {"memory": "delta", "convention": {"gate": "forget", "read": "before"}},
        {"memory": "delta", "convention": {"gate": "none", "gradient_scale": "2/d_out"}},
        {
            "memory": "deep_memory",
            "convention": PLAIN,
            "step_size": 0.5,
            "parameters": {"memory": {"kind": "linear"}},
            "feature_map": Polynomial(degree=1),
        },
    ],
    ids=str,
)
def test_rules_of_one_pair_at_a_time_are_the_loop_of_the_delta_rule(own: dict[str, Any]) -> None:
    settings = Settings(d_k=4, d_v=3, passes=3, **own)
    keys, values = capacity.pairs(settings, 5, (2, 3))
    reads = _from_zero(settings, keys, values)
    for got, k, v in zip(reads, keys, values, strict=True):
        assert_close("reads", got, delta_by_loops(k, v, passes=3, step=1.0), ANALYTIC)
        assert_differs("other passes", got, delta_by_loops(k, v, passes=2, step=1.0), 1e-6)


def _from_zero(settings: Settings, keys: Any, values: Any) -> Any:
    """Reads; of a linear deep memory, whose first weights are drawn, without what these answer.

    Its writes depend on the weights in an affine way, so the difference of two values is that of a
    start from zero.
    """
    reads = capacity.written(settings, keys, values)
    if settings.rule.in_family:
        return reads
    return reads - capacity.written(settings, keys, np.zeros_like(values))


@pytest.mark.clause("PROBE-3")
def test_the_full_step_is_one_over_the_largest_eigenvalue_of_a_window() -> None:
    settings = Settings(
        memory="omega", d_k=6, d_v=2, convention=PLAIN, parameters={"window": 3}, passes=2
    )
    keys, _ = capacity.pairs(settings, 7, (5,))
    windows = [[keys[0, (t - j) % 7] for j in range(3)] for t in range(14)]
    largest = max(float(np.linalg.eigvalsh(sum(np.outer(k, k) for k in w))[-1]) for w in windows)
    assert capacity.full_step(settings, keys) == pytest.approx(1 / largest, rel=1e-12)
    doubled = settings.replaced(convention={**PLAIN, "gradient_scale": 2.0})
    assert capacity.full_step(doubled, keys) == pytest.approx(0.5 / largest, rel=1e-12)
    assert capacity.full_step(settings.replaced(convention=None), keys) == 1.0  # Newton-Schulz
    assert capacity.full_step(Settings(d_k=6), keys) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.clause("PROBE-2")
def test_a_period_writes_at_its_tokens_alone() -> None:
    settings = Settings(memory="hebbian", d_k=4, d_v=3, period=2)
    keys, values = capacity.pairs(settings, 5, (1,))
    want = (keys @ keys[:, [1, 3]].swapaxes(-1, -2)) @ values[:, [1, 3]]
    assert_close("reads", capacity.written(settings, keys, values), want, ANALYTIC)
    once = settings.replaced(period="pairs")
    want = (keys @ keys[:, 4:].swapaxes(-1, -2)) @ values[:, 4:]
    assert_close("last", capacity.written(once, keys, values), want, ANALYTIC)


@pytest.mark.clause("PROBE-2")
def test_the_word_pairs_stands_for_their_number() -> None:
    settings = Settings(memory="omega", convention=PLAIN, parameters={"window": "pairs"})
    assert (settings.config(5).window, settings.config(9).window) == (5, 9)
    own = {"chunk": "pairs", "memory": {"kind": "mlp"}}
    deep = Settings(memory="deep_memory", step_size=0.1, parameters=own)
    assert deep.config(6).chunk == 6


@pytest.mark.clause("PROBE-2", "PROBE-3")
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"memory": "delts"}, "kind 'delts' does not exist.* did you mean delta"),
        ({"memory": "least_squares", "parameters": {"window": 2}}, "neither a convention"),
        ({"memory": "least_squares", "convention": "spec"}, "neither a convention"),
        ({"memory": "deep_memory"}, "step_size: missing, deep_memory has no full step"),
        ({"memory": "titans_lmm", "momentum": 1.0}, "step_size: missing, momentum 1"),
        ({"memory": "delta", "convention": {"rate": "none"}, "step_size": 1.0}, "rate none"),
        ({"memory": "delta", "parameters": {"window": 2}}, "window"),
        ({"memory": "omega", "parameters": {"d_in": 2}}, "parameters: d_in: stated by the probe"),
        ({"memory": "omega", "parameters": {"heads": 2}}, "parameters: heads: stated by the probe"),
        ({"convention": {"reference": "chunk_start"}}, "span: missing"),
        ({"d_k": 0}, "d_k"),
        ({"step_size": math.nan}, "step_size"),
        ({"bound": 0.0}, "bound"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(own: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**own)


@pytest.mark.clause("PROBE-1")
@pytest.mark.parametrize(
    ("count", "seeds", "words"),
    [
        (0, (0,), "count: 0, at least one pair"),
        (-1, (0,), "count: -1"),
        (2, (), "seeds: at least one"),
        (2, (-1,), "seed: -1"),
        (2, (0.5,), "seed: 0.5"),
    ],
)
def test_counts_and_seeds_that_cannot_be(count: Any, seeds: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measure(Settings(), count, seeds)


# -- recall ----------------------------------------------------------------------------------------


@pytest.mark.clause("PROBE-5")
def test_recall_by_angle_and_by_error_against_loops() -> None:
    random = np.random.default_rng(4)
    values = random.standard_normal((2, 6, 3))
    reads = values + 0.6 * random.standard_normal((2, 6, 3))
    found = capacity.recalled(reads, values, bound=0.5)
    for s in range(2):
        for i in range(6):
            scores = [
                sum(reads[s, i] * values[s, j]) / math.sqrt(sum(values[s, j] ** 2))
                for j in range(6)
            ]
            assert found.by_angle[s, i] == all(scores[i] > scores[j] for j in range(6) if j != i)
            error = math.sqrt(sum((reads[s, i] - values[s, i]) ** 2) / sum(values[s, i] ** 2))
            assert found.error[s, i] == pytest.approx(error, rel=1e-12)
            assert found.by_error[s, i] == (error <= 0.5)
    assert 0 < found.by_angle.sum() < 12
    assert 0 < found.by_error.sum() < 12


@pytest.mark.clause("PROBE-5")
def test_a_read_that_is_zero_or_not_finite_recalls_nothing_and_twice_the_value_only_its_angle() -> (
    None
):
    values = np.eye(3)[None]
    reads = np.stack([[0.0, 0, 0], [np.nan, 1, 0], [0, 0, 2.0]])[None]
    found = capacity.recalled(reads, values, bound=0.1)
    assert found.by_angle.tolist() == [[False, False, True]]
    assert found.by_error.tolist() == [[False, False, False]]
    assert found.error.tolist() == [[1.0, math.inf, 1.0]]


@pytest.mark.clause("PROBE-5")
def test_bounds_of_recall() -> None:
    """An error that is just the bound is within it, and of two equal values neither is nearest."""
    values = np.array([[[1.0, 0, 0], [0, 1.0, 0], [0, 1.0, 0]]])
    reads = values + np.array([0.5, 0, 0])
    found = capacity.recalled(reads, values, bound=0.5)
    assert found.by_error.tolist() == [[True, True, True]]
    assert found.by_angle.tolist() == [[True, False, False]]


@pytest.mark.clause("PROBE-5")
def test_a_point_of_a_curve_is_that_of_its_draws() -> None:
    settings = Settings(memory="delta", d_k=4, d_v=3)
    (point,) = curve.curve(settings, (9,), (0, 1, 2))
    found = measure(settings, 9, (0, 1, 2))
    counts = [sum(map(int, each)) for each in found.by_angle.tolist()]
    assert len(set(counts)) > 1
    mean = sum(counts) / 3
    assert point.by_angle == pytest.approx(mean, rel=1e-12)
    assert point.spread**2 == pytest.approx(sum((n - mean) ** 2 for n in counts) / 3, rel=1e-12)
    assert point.by_error == pytest.approx(found.by_error.sum() / 3, rel=1e-12)
    squares = [each**2 for row in found.error.tolist() for each in row]
    assert point.error**2 == pytest.approx(sum(squares) / 27, rel=1e-12)


@pytest.mark.clause("PROBE-5")
def test_a_memory_that_grows_without_end_recalls_nothing() -> None:
    found = measure(Settings(d_k=3, passes=100, step_size=9.0), 8)
    assert not found.by_error.any()
    assert np.isinf(found.error).all()


# -- propositions ----------------------------------------------------------------------------------


@pytest.mark.clause("PROBE-4", "PROBE-8")
@pytest.mark.parametrize("d", [3, 8])
def test_least_squares_recalls_as_many_pairs_as_keys_have_entries_and_not_one_more(d: int) -> None:
    own = {"memory": "least_squares", "d_k": d, "d_v": 5}
    assert limits.limit(Settings(**own)) == d
    assert worst(own, d) < EXACTLY
    assert worst(own, d + 1) > 1e-3


@pytest.mark.clause("PROBE-8", "PROBE-9")
@pytest.mark.parametrize(
    ("feature_map", "keys", "most"),
    [
        (Monomials(), "unit", 14),
        (Polynomial(), "unit", 14),
        (Polynomial(coefficients=(1.0, 1.0, 1.0)), "free", 15),
        (Polynomial(coefficients=(1.0, 1.0, 1.0)), "unit", 14),
    ],
    ids=str,
)
def test_features_of_degree_two_hold_their_rank_and_not_one_pair_more(
    feature_map: Any, keys: str, most: int
) -> None:
    """C(d_k + 2, 2) = 15 with the constant and free keys, one fewer otherwise."""
    own = {"memory": "least_squares", "d_k": 4, "d_v": 3, "feature_map": feature_map, "keys": keys}
    assert limits.limit(Settings(**own)) == most
    assert worst(own, most) < EXACTLY
    assert worst(own, most + 1) > 1e-3


@pytest.mark.clause("PROBE-4")
@pytest.mark.parametrize(
    "own",
    [
        {"memory": "hebbian"},
        {"memory": "delta"},
        {"memory": "delta", "passes": 20},
        {"memory": "omega", "convention": PLAIN, "parameters": {"window": "pairs"}, "passes": 20},
        {"memory": "omega", "parameters": {"window": 4}},
        {"memory": "titans_lmm", "momentum": 0.8, "passes": 5},
    ],
    ids=str,
)
def test_no_rule_has_a_smaller_error_than_least_squares(own: dict[str, Any]) -> None:
    for count in (4, 6, 12):
        best = measure(Settings(memory="least_squares", d_k=6, d_v=4), count, range(5)).error
        found = measure(Settings(d_k=6, d_v=4, **own), count, range(5)).error
        assert ((found**2).sum(axis=1) >= (best**2).sum(axis=1) - 1e-12).all()


@pytest.mark.clause("PROBE-6")
@pytest.mark.parametrize(
    "own",
    [
        {"memory": "delta"},
        {"memory": "titans_lmm", "momentum": 0.5},
        {"memory": "omega", "convention": PLAIN, "parameters": {"window": "pairs"}},
    ],
    ids=str,
)
def test_passes_reach_least_squares_where_it_is_exact_and_not_beyond(own: dict[str, Any]) -> None:
    errors = [worst({"d_k": 8, "d_v": 4, "passes": n} | own, 4) for n in (1, 10, 60, 300)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.3
    assert errors[-1] < EXACTLY
    assert worst({"d_k": 8, "d_v": 4, "passes": 300} | own, 9, (1,)) > 0.05


@pytest.mark.clause("PROBE-3")
def test_momentum_grows_without_end_at_the_step_that_it_would_have_without() -> None:
    own: dict[str, Any] = {"memory": "titans_lmm", "momentum": 0.5, "d_k": 8, "d_v": 4}
    assert worst({**own, "passes": 60}, 4) < 0.1
    assert worst({**own, "passes": 60, "step_size": 1.0}, 4) > 10


@pytest.mark.clause("PROBE-6")
def test_passes_of_small_steps_reach_the_matrix_of_least_squares_itself() -> None:
    """Beyond the limit too, in the limit of small steps; the Hebbian rule reaches it by no passes."""
    settings = Settings(memory="delta", d_k=4, d_v=3, passes=500, step_size=0.05)
    keys, values = capacity.pairs(settings, 7, (3,))
    best = capacity.least_squares(keys, values)
    assert np.abs(capacity.written(settings, keys, values) - best).max() < 0.03
    full = settings.replaced(step_size=None)
    assert np.abs(capacity.written(full, keys, values) - best).max() > 0.1
    hebbian = Settings(memory="hebbian", d_k=4, d_v=3, passes=10)
    assert np.abs(capacity.written(hebbian, keys, values) - best).max() > 0.1


@pytest.mark.clause("PROBE-7")
def test_a_longer_window_errs_less_in_one_pass_and_holds_no_more() -> None:
    def error(window: Any, count: int) -> float:
        own: dict[str, Any] = {"convention": PLAIN, "parameters": {"window": window}}
        settings = Settings(memory="omega", d_k=16, d_v=16, **own)
        return float((measure(settings, count, range(8)).error ** 2).mean())

    assert error("pairs", 32) < error(8, 32) < error(1, 32)
    many = {"memory": "omega", "convention": PLAIN, "parameters": {"window": "pairs"}}
    assert worst({"d_k": 6, "d_v": 4, "passes": 300, **many}, 7, (1,)) > 0.05


@pytest.mark.clause("PROBE-14")
def test_one_write_under_newton_schulz_reads_the_polar_factor_and_recalls_more() -> None:
    def settings(steps: int, **own: Any) -> Settings:
        convention = {"newton_schulz": {"steps": steps, "coefficients": "cubic"}, "rate": "memory"}
        return Settings(
            memory="omega",
            period="pairs",
            convention=convention if steps else PLAIN,
            parameters={"window": "pairs"},
            **own,
        )

    keys, values = capacity.pairs(settings(0, d_k=5, d_v=4), 7, (3,))
    G = values[0].T @ keys[0]
    plain = capacity.written(settings(0, d_k=5, d_v=4, step_size=1.0), keys, values)[0]
    assert_close("the Hebbian sum", plain, keys[0] @ G.T, ANALYTIC)
    U, _, V = np.linalg.svd(G, full_matrices=False)
    polar = keys[0] @ (U @ V).T
    distances = [
        np.abs(capacity.written(settings(n, d_k=5, d_v=4), keys, values)[0] - polar).max()
        for n in (1, 5, 40)
    ]
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-6
    recalled = [
        measure(settings(n, d_k=16, d_v=16), 16, range(16)).by_angle.sum() for n in (0, 1, 5)
    ]
    assert recalled[0] < recalled[1] < recalled[2] <= 16 * 16
    assert worst({"memory": "least_squares"}, 16) < EXACTLY < measure(settings(40), 16).error.max()


@pytest.mark.clause("PROBE-8", "PROBE-10")
def test_an_mlp_recalls_by_passes_what_no_matrix_can() -> None:
    """Eight pairs of keys of three entries, of the limit of 15."""
    own: dict[str, Any] = {"d_k": 3, "d_v": 4, "passes": 300, "momentum": 0.9, "step_size": 0.6}
    function = {"kind": "mlp", "expansion": 3}
    settings = Settings(
        memory="deep_memory",
        convention=PLAIN,
        parameters={"memory": function, "chunk": "pairs", "reduction": "mean"},
        **own,
    )
    assert limits.limit(settings) == 9 * 7 // 4
    found = measure(settings, 8, (1,))
    assert found.by_error.all()
    assert not measure(Settings(memory="least_squares", d_k=3, d_v=4), 8, (1,)).by_error.any()


def test_every_rule_is_measured() -> None:
    for name in RULES:
        step = 0.1 if not RULES[name].in_family else None
        found = measure(Settings(memory=name, d_k=4, d_v=3, step_size=step), 3, (0, 1))
        assert found.error.shape == (2, 3)
        assert np.isfinite(found.error).all()
    assert Settings().feature_map == feature_maps.IDENTITY


@pytest.mark.clause("PROBE-2")
@pytest.mark.parametrize(
    ("changes", "count", "draws"),
    [
        ({}, 100_000, 1),
        ({}, 6_000, 8),
        ({"feature_map": Polynomial(degree=30)}, 2, 1),
        ({"memory": "omega", "parameters": {"window": 10**9}}, 2, 1),
        ({"memory": "least_squares", "d_v": 4096, "d_k": 4096}, 2, 17),
    ],
)
def test_what_no_memory_holds_is_refused_before_anything_is_drawn(changes, count, draws) -> None:
    with pytest.raises(ValueError, match=rf"pairs: {count} of {draws} draws, .* at most 268435456"):
        curve.curve(Settings(**changes), (2, count), range(draws))
    capacity.check_size(Settings(), 5_000, 8)
