"""What the page on noise, drift and storage says: theorems on every stream of a small distribution,
and the measured tables.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atlas_ref.rules import delta, omega, sequence, titans_lmm
from atlas_ref.rules.sequence import Tokens
from docs import claims
from tests.support.close import ANALYTIC, assert_close, assert_differs

#: Three pairs, each as likely as the others, so that a mean over all streams is exact.
PAIRS = np.random.default_rng(2).standard_normal((2, 3, 2))
FROZEN = {"reference": "call_start", "gate": "retain"}


def every_stream(T: int) -> tuple[Any, Any]:
    """Keys and values (3^T, T, 2) of every stream of T pairs."""
    choice = np.array(list(itertools.product(range(3), repeat=T)))
    return PAIRS[0][choice], PAIRS[1][choice]


def moments(changes: Any) -> tuple[Any, Any]:
    """Mean and covariance of matrices over all streams."""
    flat = changes.reshape(len(changes), -1)
    mean = flat.mean(axis=0)
    return mean, (flat - mean).T @ (flat - mean) / len(flat)


def change(rule: Any, config: Any, T: int, **gates: Any) -> Any:
    """M_T - M_(T-1) in every stream, against the memory of the start."""
    k, v = every_stream(T)
    rows = {name: np.broadcast_to(value, (*k.shape[:2],)) for name, value in gates.items()}
    weights = {"window_weights": rows.pop("window_weights")} if "window_weights" in rows else {}
    start = rule.start(config, (len(k),), M=np.full((len(k), 2, 2), 0.3))
    memories = [start.M]
    for last in (T - 1, T):
        if last:
            own = {name: each[:, :last] for name, each in (rows | weights).items()}
            tokens = Tokens(k=k[:, :last], v=v[:, :last], q=k[:, :last], **own)
            memories.append(sequence.run(rule, config, tokens, start)[0].M)
    return memories[-1] - memories[-2]


def of_one_token() -> tuple[Any, Any]:
    config = delta.Config(d_in=2, d_out=2, convention=FROZEN)
    return moments(change(delta.RULE, config, 1, retain=1.0, step_size=1.0))


@pytest.mark.clause("OMEGA-31")
@pytest.mark.parametrize("weights", [(1 / 3,) * 3, (1.0,) * 3, (1.0, 0.5, 0.25)])
def test_a_window_gradient_has_the_squares_of_its_weights_of_the_covariance(weights: Any) -> None:
    c, T = len(weights), 4
    config = omega.Config(d_in=2, d_out=2, window=c, convention=FROZEN | {"newton_schulz": "none"})
    k, v = every_stream(T)
    tokens = Tokens(
        k=k,
        v=v,
        q=k,
        retain=np.ones(k.shape[:2]),
        step_size=np.broadcast_to([0.0, 0.0, 0.0, 1.0], k.shape[:2]),
        window_weights=np.broadcast_to(weights, (*k.shape[:2], c)),
    )
    start = omega.start(config, (len(k),), M=np.full((len(k), 2, 2), 0.3))
    mean, covariance = moments(sequence.run(omega.RULE, config, tokens, start)[0].M - start.M)
    one_mean, one_covariance = of_one_token()
    assert_close("mean", mean, sum(weights) * one_mean, ANALYTIC)
    squares = sum(each**2 for each in weights)
    assert_close("covariance", covariance, squares * one_covariance, ANALYTIC)


@pytest.mark.clause("OMEGA-31")
def test_the_changes_of_a_window_share_their_noise() -> None:
    """The covariance of M after c tokens of a stream is that of one token each, whatever c."""
    k, v = every_stream(2)
    k, v = (np.concatenate([a, np.zeros((len(a), 1, 2))], axis=1) for a in (k, v))
    found = []
    for c in (1, 2):
        config = omega.Config(
            d_in=2, d_out=2, window=c, convention=FROZEN | {"newton_schulz": "none"}
        )
        ones = np.ones(k.shape[:2])
        weights = np.full((*k.shape[:2], c), 1 / c)
        tokens = Tokens(k=k, v=v, q=k, retain=ones, step_size=ones, window_weights=weights)
        start = omega.start(config, (len(k),), M=np.full((len(k), 2, 2), 0.3))
        state = sequence.run(omega.RULE, config, tokens, start)[0]
        found.append(moments(state.M - start.M)[1])
    assert_close("covariance of M", found[1], found[0], ANALYTIC)


@pytest.mark.clause("TITANS-17")
@pytest.mark.parametrize("T", [1, 2, 6])
def test_a_change_under_momentum_has_its_share_of_the_covariance(T: int) -> None:
    m, h = 0.6, 0.7
    config = titans_lmm.Config(d_in=2, d_out=2, convention=FROZEN)
    _, covariance = moments(
        change(titans_lmm.RULE, config, T, retain=1.0, momentum=m, step_size=(1 - m) * h)
    )
    share = h**2 * (1 - m) ** 2 * (1 - m ** (2 * T)) / (1 - m**2)
    _, of_one = of_one_token()
    assert_close("covariance", covariance, share * of_one, ANALYTIC)
    assert_differs("of the Delta rule", covariance, h**2 * of_one, 0.5)


@pytest.mark.clause("TITANS-17")
def test_a_gradient_moves_the_memory_by_its_whole_step_in_the_end() -> None:
    m, h, T = 0.6, 0.7, 80
    k, v = np.zeros((T, 2)), np.zeros((T, 2))
    k[0], v[0] = PAIRS[0][0], PAIRS[1][0]
    config = titans_lmm.Config(d_in=2, d_out=2, convention=FROZEN)
    gates = {"momentum": np.full(T, m), "step_size": np.full(T, (1 - m) * h), "retain": np.ones(T)}
    state, y = sequence.run(
        titans_lmm.RULE,
        config,
        Tokens(k=k, v=v, q=np.tile(k[0], (T, 1)), **gates),
        titans_lmm.start(config),
    )
    assert_close("M", state.M, h * np.outer(v[0], k[0]), ANALYTIC)
    moved = np.diff(y, axis=0, prepend=0.0) @ v[0]
    assert_close("tokens later", moved @ np.arange(T) / moved.sum(), m / (1 - m), ANALYTIC)


def test_a_window_makes_changes_smaller_and_no_memory_less_noisy() -> None:
    one = {name: claims.of_window(1, name, claims.STEPS[0]) for name in claims.CONDITIONS}
    before = one["drift"].error
    for c in claims.WINDOWS[1:]:
        noisy = claims.of_window(c, "noise", claims.STEPS[0])
        assert 0.7 <= c * noisy.change / one["noise"].change <= 1.05
        assert 1.0 <= noisy.error / one["noise"].error <= 1.03
        drifting = claims.of_window(c, "drift", claims.STEPS[0])
        assert drifting.error > before
        assert sure(drifting.errors - one["drift"].errors)
        before = drifting.error


@pytest.mark.parametrize("step", claims.STEPS)
@pytest.mark.parametrize("momentum", claims.MOMENTA)
def test_momentum_smooths_changes_hardly_the_memory_and_follows_later(
    momentum: float, step: float
) -> None:
    plain = {name: claims.of_momentum(0.0, name, step) for name in claims.CONDITIONS}
    own = {name: claims.of_momentum(momentum, name, step) for name in claims.CONDITIONS}
    share = (1 - momentum) / (1 + momentum)
    assert 0.85 <= own["noise"].change / plain["noise"].change / share <= 1.05
    assert 0.94 <= own["noise"].error / plain["noise"].error <= 1.0
    assert sure(own["drift"].errors - plain["drift"].errors)
    assert own["both"].error > plain["both"].error


def sure(differences: Any) -> bool:
    """Whether the mean of paired differences is five standard errors above 0."""
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    return bool(np.mean(differences) > 5 * error)


@pytest.mark.clause("DELTA-6")
def test_one_pass_stores_as_many_pairs_as_orthonormal_keys() -> None:
    d = claims.WIDTH
    for n in range(1, d + 1):
        assert claims.stored(claims.keys_of(n, "orthonormal")) < 1e-14
    assert claims.stored(claims.keys_of(d + 1, "orthonormal")) > 0.1
    assert claims.stored(claims.keys_of(2, "random")) > 0.01


def test_the_tables_have_a_row_of_each_case() -> None:
    rows = [len(each(None, "").splitlines()) - 2 for each in claims.TABLES]  # type: ignore[arg-type]
    assert rows == [
        len(claims.WINDOWS),
        len(claims.CONDITIONS) * len(claims.STEPS),
        len(claims.PAIRS),
    ]
