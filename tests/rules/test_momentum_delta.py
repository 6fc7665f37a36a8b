"""The delta rule with momentum, DPLR-21: recordings, a loop, reductions with their twins, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.rules import delta, dplr, momentum_delta, sequence, titans_lmm
from tape import ops
from tests.support.close import ANALYTIC, EXACT, Tolerance, assert_close, assert_differs
from tests.support.linear_family import MOMENTUM, recorded
from tests.truth import family_states
from tests.truth import momentum_delta as literal

RECORDING = Tolerance("RECORDING", 1e-12)
T, K, V = 5, 4, 3
CONFIG = dplr.Config(d_in=K, d_out=V, query_scale="1/sqrt(d_in)")

#: Word of a recorded tensor -> field of tokens or state.
FIELDS = {
    "erase_key": "p", "eta": "step_size", "beta": "step_size_memory", "log_decay": "log_retain",
    "momentum0": "S", "state0": "M",
}  # fmt: skip


def arrays(**changes: Any) -> dict[str, Any]:
    """Tokens of two memories, and their state."""
    draw = np.random.default_rng(4)
    x = {name: 0.5 * draw.standard_normal((2, T, K)) for name in ("k", "q", "p")}
    x |= {"v": draw.standard_normal((2, T, V))}
    x |= {name: draw.uniform(0.1, 0.9, (2, T)) for name in ("step_size", "step_size_memory")}
    x |= {name: -draw.uniform(0.0, 1.0, (2, T)) for name in ("log_retain", "log_momentum")}
    x |= {name: draw.standard_normal((2, V, K)) for name in ("M", "S")}
    return {name: value for name, value in (x | changes).items() if value is not None}


def run(x: dict[str, Any], config: dplr.Config = CONFIG) -> dict[str, Any]:
    tokens = momentum_delta.Tokens(**{name: z for name, z in x.items() if name not in ("M", "S")})
    state = momentum_delta.start(config, x["v"].shape[:-2])
    if "M" in x:
        state = momentum_delta.State(M=x["M"], S=x["S"])
    state, y = momentum_delta.run(config, tokens, state)
    return {"y": y, "M": state.M, "S": state.S}


def same(got: dict[str, Any], want: dict[str, Any], tolerance: Any = ANALYTIC) -> None:
    for name, value in want.items():
        assert_close(name, got[name], value, tolerance)


def cut(x: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    return {name: z if name in ("M", "S") else z[:, first:last] for name, z in x.items()}


def computed(x: dict[str, Any]) -> dict[str, Any]:
    """Results of inputs as the recorded files have them."""
    own = {FIELDS.get(name, name): value for name, value in x.items()}
    own |= {name: ops.transpose(own[name]) for name in ("M", "S")}
    got = run(own, CONFIG.replaced(d_in=x["k"].shape[-1], d_out=x["v"].shape[-1]))
    return {
        "y": got["y"],
        "state": ops.transpose(got["M"]),
        "momentum": ops.transpose(got["S"]),
    }


@pytest.mark.clause("DPLR-21")
@pytest.mark.parametrize("file", MOMENTUM, ids=lambda file: file.stem)
def test_results_and_every_gradient_of_a_recording_are_those_of_the_rule_and_of_the_loop(file):
    _, x, bars, want, gradients = recorded(file)

    def loss(inputs):
        got = computed(inputs)
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    same(computed(x), want, RECORDING)
    same(family_states.run("momentum_delta", x), want, RECORDING)
    own = tape.grad(loss)(x)
    assert own.keys() == gradients.keys()
    same(own, gradients, RECORDING)


@pytest.mark.clause("DPLR-21", "DPLR-3")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("channels", [False, True])
def test_gates_of_channels_and_groups_are_those_of_a_loop(decay, channels):
    x, draw = arrays(), np.random.default_rng(5)
    if channels:
        x["log_retain"] = -draw.uniform(0.0, 1.0, (2, T, K))
    x |= {name: x[name][:1] for name in ("k", "q")}
    config = CONFIG.replaced(decay=decay, groups=2)
    words = {"p": "erase_key", "step_size": "eta", "step_size_memory": "beta", "M": "M0", "S": "S0"}
    own = type("Own", (), {"order": decay, "scale": K**-0.5, "groups": 2})
    own.k_norm = own.q_norm = "none"
    bare = {words.get(name, name): value for name, value in x.items()}
    y, M, S = literal.run(bare, own)
    same(run(x, config), {"y": y, "M": M, "S": S})
    gates = but_logs(x)
    same(run(gates, config), {"y": y, "M": M, "S": S})


def but_logs(x: dict[str, Any]) -> dict[str, Any]:
    """The gate in place of its log."""
    kept = {name: value for name, value in x.items() if name != "log_retain"}
    return kept | {"retain": np.exp(x["log_retain"])}


@pytest.mark.clause("DPLR-21")
def test_with_the_key_it_is_titans_lmm_under_rate_split_and_with_another_vector_it_is_not():
    """The rule titans_lmm, which shares no code with this one."""
    x = arrays()
    config = titans_lmm.Config(d_in=K, d_out=V, convention="fla-momentum-delta")
    named = ("k", "v", "q", "step_size", "step_size_memory")
    gates = {name: np.exp(x[f"log_{name}"]) for name in ("retain", "momentum")}
    tokens = sequence.Tokens(**{name: x[name] for name in named}, **gates)
    start = titans_lmm.start(config, (2,), M=x["M"], S=x["S"])
    state, y = sequence.run(titans_lmm.RULE, config, tokens, start)
    want = {"y": y, "M": state.M, "S": state.S}
    same(run(x | {"p": x["k"]}), want)
    assert_differs("y", run(x)["y"], y, 1e-2)


@pytest.mark.clause("DPLR-21")
@pytest.mark.parametrize("log", [-np.inf, -1.0])
def test_without_a_momentum_it_is_delta_and_with_one_it_is_not(log):
    x = arrays(log_retain=None, S=np.zeros((2, V, K)))
    x |= {"p": x["k"], "step_size": np.ones((2, T)), "log_momentum": np.full((2, T), log)}
    convention = {"gate": "none", "query_scale": "1/sqrt(d_in)"}
    config = delta.Config(d_in=K, d_out=V, convention=convention)
    named = {name: x[name] for name in ("k", "v", "q")}
    tokens = sequence.Tokens(**named, step_size=x["step_size_memory"])
    state, y = sequence.run(delta.RULE, config, tokens, delta.start(config, (2,), M=x["M"]))
    if log == -np.inf:
        same(run(x), {"y": y, "M": state.M})
    else:
        assert_differs("y", run(x)["y"], y, 1e-2)


@pytest.mark.clause("DPLR-21")
@pytest.mark.parametrize("at", range(1, T))
def test_a_split_call_is_the_whole_one_bit_for_bit(at):
    x = arrays()
    first = run(cut(x, 0, at))
    second = run(cut(x, at, T) | {name: first[name] for name in ("M", "S")})
    y = np.concatenate([first["y"], second["y"]], axis=1)
    same(second | {"y": y}, run(x), EXACT)


@pytest.mark.clause("DPLR-21")
def test_an_inactive_token_leaves_both_and_a_reset_restores_both():
    x = arrays()
    silent = run(x | {"active": np.zeros(T, bool)})
    same(silent, {"M": x["M"], "S": x["S"]}, EXACT)
    packed, alone = run(x | {"reset": np.arange(T) == 3}), run(cut(x, 3, T))
    same({"y": packed["y"][:, 3:], "M": packed["M"], "S": packed["S"]}, alone, EXACT)
    assert_differs("S", run(x)["S"], packed["S"], 1e-3)
    fresh = {name: value for name, value in x.items() if name not in ("M", "S")}
    zeros = {name: np.zeros((2, V, K)) for name in ("M", "S")}
    same(run(fresh), run(x | zeros), EXACT)


@pytest.mark.clause("DPLR-21", "DPLR-10")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_every_gradient_is_its_complex_step(decay):
    x, draw = arrays(), np.random.default_rng(6)
    bars = {name: draw.standard_normal(z.shape) for name, z in run(x).items()}

    def loss(inputs):
        got = run(inputs, CONFIG.replaced(decay=decay))
        return sum(ops.sum(bars[name] * got[name]) for name in bars)

    own, want = tape.grad(loss)(x), tape.check.complex_step(loss, x)
    same(own, want)


@pytest.mark.clause("DPLR-21")
def test_gates_of_zero_leave_values_and_gradients_finite():
    x = arrays()
    x["log_retain"][:, 1], x["log_momentum"][:, 2], x["log_retain"][:, 3] = -np.inf, -np.inf, -1e3
    own = tape.grad(lambda inputs: ops.sum(run(inputs)["y"]) + ops.sum(run(inputs)["S"]))(x)
    assert all(np.isfinite(value).all() for value in (*run(x).values(), *own.values()))
    assert (own["log_retain"][:, 1] == 0.0).all()


@pytest.mark.clause("DPLR-21")
@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"log_momentum": np.full((2, T), 0.1)}, {}, r"log_momentum: entries must be at most 0, found 0.1 at \(0, 0\)"),
        ({"log_retain": np.full((2, T), np.nan)}, {}, "log_retain: entries must be at most 0"),
        ({"retain": np.ones((2, T))}, {}, "log_retain: stands in place of retain, both were given"),
        ({"log_retain": None, "retain": np.full((2, T), 2.0)}, {}, "retain: entries must be at most 1"),
        ({"p": np.ones((2, T, V))}, {}, r"p: shape \(2, 5, 3\), expected \(2, 5, 4\)"),
        ({"p": np.full((2, T, K), np.inf)}, {}, "p: every entry must be finite"),
        ({"step_size": np.ones((2, T, V))}, {}, r"step_size: shape \(2, 5, 3\), expected \(2, 5\)"),
        ({"log_retain": np.zeros((2, T, V))}, {}, r"log_retain: shape .*, expected \(2, 5\) or \(2, 5, 4\)"),
        ({"v": np.ones((2, T, K))}, {}, r"v: shape \(2, 5, 4\), expected \(2, 5, 3\)"),
        ({"active": np.ones(T)}, {}, "active: float64, expected bool"),
        ({"reset": np.ones(T + 1, bool)}, {}, r"reset: shape \(6,\), expected \(5,\)"),
        ({"M": np.ones((2, K, V)), "S": np.ones((2, K, V))}, {}, r"state.M: shape \(2, 4, 3\), exp"),
        ({"S": np.ones((1, V, K))}, {}, r"S: shape \(1, 3, 4\) makes leading axes \(1,\)"),
        ({"S": np.ones((2, V, K), np.float32)}, {}, "state.S: float32, but k is float64"),
        ({}, {"steps": 2}, "steps: 2, but momentum moves once a token; 1 is needed"),
        ({}, {"groups": 2}, r"k: shape \(2, 5, 4\), expected \(1, 5, 4\)"),
        ({}, {"groups": 3}, r"v: leading axes \(2,\), expected value heads in whole groups of 3"),
    ],
)  # fmt: skip
def test_what_contradicts_the_configuration_is_refused(changes, settings, message):
    with pytest.raises(ValueError, match=message):
        run(arrays(**changes), CONFIG.replaced(**settings))
