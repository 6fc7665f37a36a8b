"""Preconditioned keys, DPLR-20: a loop, reductions with their twins, split calls, gradients, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.rules import preconditioned_keys
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.linear_family import computed, drawn

T, K = 5, 4
STILL = math.exp(-0.2) - 1e-6  # where a key stays as it is


def arrays(**changes: Any) -> dict[str, Any]:
    """Keys of two memories."""
    draw = np.random.default_rng(4)
    x = {"k": draw.standard_normal((2, T, K)), "step_size": draw.uniform(0.0, 2.0, (2, T))}
    x |= {"log_retain": -draw.uniform(0.0, 2.0, (2, T)), "A": draw.uniform(0.0, 1.0, (2, K))}
    return x | changes


def run(x: dict[str, Any]) -> dict[str, Any]:
    tokens = preconditioned_keys.Tokens(**{name: z for name, z in x.items() if name != "A"})
    keys = preconditioned_keys.run(tokens, preconditioned_keys.State(A=x["A"]))
    return {"p": keys.p, "A": keys.state.A}


def same(got: dict[str, Any], want: dict[str, Any], tolerance: Any = ANALYTIC) -> None:
    for name, value in want.items():
        assert_close(name, got[name], value, tolerance)


def cut(x: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    return {name: z if name == "A" else z[:, first:last] for name, z in x.items()}


@pytest.mark.clause("DPLR-20")
def test_keys_and_sums_are_those_of_the_loop_that_the_clause_prints():
    x = arrays()
    got = run(x)
    for h in range(2):
        A = x["A"][h].copy()
        for t in range(T):
            for i in range(K):
                k = x["k"][h, t, i]
                A[i] = math.exp(x["log_retain"][h, t]) * A[i] + x["step_size"][h, t] * k * k
                r = math.log(A[i] + 1e-6) + 0.2
                assert_close("p", got["p"][h, t, i], k * 1.5 ** (-r / (1 + abs(r))), ANALYTIC)
        assert_close("A", got["A"][h], A, ANALYTIC)


@pytest.mark.clause("DPLR-20")
def test_a_factor_lies_between_its_bounds_and_falls_with_the_sum():
    factors = preconditioned_keys.factor(np.array([0.0, 1e-3, STILL, 1e3, 1e300]))
    assert (np.diff(factors) < 0).all()
    assert 1 / 1.5 < factors[-1] < 1 < factors[0] < 1.5
    assert_close("still", factors[2], np.array(1.0), ANALYTIC)


@pytest.mark.clause("DPLR-20")
@pytest.mark.parametrize("sum_of", [STILL, 2.0])
def test_a_sum_that_stays_where_keys_stay_makes_kda_and_another_does_not(sum_of):
    x = drawn("precond_kda", 3)
    x |= {
        "A0": np.full_like(x["A0"], sum_of),
        "log_decay_precond": np.zeros_like(x["log_decay_precond"]),
        "beta_precond": np.zeros_like(x["beta_precond"]),
    }
    names = ("k", "v", "q", "beta", "log_decay", "state0")
    plain = computed("kda", {name: x[name] for name in names})
    if sum_of == STILL:
        same(computed("precond_kda", x), plain)
    else:
        assert_differs("y", computed("precond_kda", x)["y"], plain["y"], 1e-3)


@pytest.mark.clause("DPLR-20")
def test_precond_gated_delta_of_unit_keys_is_precond_kda_with_equal_channels():
    x = drawn("precond_gated_delta", 3)
    wide = {"log_decay": np.repeat(x["log_decay"][..., None], K, axis=-1)}
    units = {n: x[n] / np.linalg.norm(x[n], axis=-1, keepdims=True) for n in ("k", "q")}
    same(computed("precond_gated_delta", x), computed("precond_kda", x | wide | units))
    got = computed("precond_kda", x | wide)
    assert_differs("y", computed("precond_gated_delta", x)["y"], got["y"], 1e-2)


@pytest.mark.clause("DPLR-20")
@pytest.mark.parametrize("at", range(1, T))
def test_a_split_call_is_the_whole_one_bit_for_bit(at):
    x = arrays()
    first = run(cut(x, 0, at))
    second = run(cut(x, at, T) | {"A": first["A"]})
    p = np.concatenate([first["p"], second["p"]], axis=1)
    same(second | {"p": p}, run(x), EXACT)


@pytest.mark.clause("DPLR-20")
def test_an_inactive_token_leaves_the_sum_and_a_reset_restores_that_of_the_start():
    x = arrays()
    assert_close("A", run(x | {"active": np.zeros(T, bool)})["A"], x["A"], EXACT)
    packed, alone = run(x | {"reset": np.arange(T) == 3}), run(cut(x, 3, T))
    same({"p": packed["p"][:, 3:], "A": packed["A"]}, alone, EXACT)
    assert_differs("A", run(x)["A"], packed["A"], 1e-3)


@pytest.mark.clause("DPLR-20", "DPLR-10")
@pytest.mark.parametrize("first", [0.5, 0.0])
def test_every_gradient_is_its_complex_step(first):
    x, draw = arrays(A=np.full((2, K), first)), np.random.default_rng(6)
    bars = {name: draw.standard_normal(z.shape) for name, z in run(x).items()}

    def loss(inputs):
        got = run(inputs)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    own, want = tape.grad(loss)(x), tape.check.complex_step(loss, x)
    for name, value in want.items():
        assert_close(name, own[name], value, ANALYTIC)


@pytest.mark.clause("DPLR-20")
def test_a_gate_of_zero_starts_the_sum_anew_and_leaves_gradients_finite():
    x = arrays()
    x["log_retain"][:, 2], x["k"][0, 2] = -np.inf, 0.0
    got = run(x)
    later = run(cut(x, 2, T) | {"A": np.zeros((2, K))})
    same({"p": got["p"][:, 2:], "A": got["A"]}, later, EXACT)
    own = tape.grad(lambda inputs: ops.sum(run(inputs)["p"] * run(inputs)["p"]))(x)
    assert all(np.isfinite(value).all() for value in own.values())
    assert (own["log_retain"][:, 2] == 0.0).all()


@pytest.mark.clause("DPLR-20")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"log_retain": np.full((2, T), 0.1)},
            r"log_retain: entries must be at most 0, found 0.1 at \(0, 0\)",
        ),
        ({"log_retain": np.full((2, T), np.nan)}, "log_retain: entries must be at most 0"),
        ({"step_size": np.full((2, T), -0.1)}, "step_size: entries must be at least 0"),
        ({"A": np.full((2, K), -0.1)}, "A: entries must be at least 0"),
        ({"A": np.ones((2, K + 1))}, r"state.A: shape \(2, 5\), expected \(2, 4\)"),
        ({"A": np.ones((2, K), np.float32)}, "state.A: float32, but k is float64"),
        ({"log_retain": np.zeros((2, T, K))}, r"log_retain: shape \(2, 5, 4\), expected \(2, 5\)"),
        ({"active": np.ones(T + 1, bool)}, r"active: shape \(6,\), expected \(5,\)"),
        ({"reset": np.ones(T)}, "reset: float64, expected bool"),
    ],
)
def test_what_contradicts_the_keys_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(arrays(**changes))
