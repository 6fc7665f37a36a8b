"""Inputs that a sequence computes before the rule, CONV-35 and CONV-36, and refusals before the
first token.
"""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.layers import projection
from atlas_ref.parts import norms
from atlas_ref.rules import omega, sequence
from tests.support.close import ANALYTIC, EXACT, assert_close
from tests.support.sequences import case, drawn, results, without

BARE = {"newton_schulz": "none"}


def mapped_reads(p, kind, place):
    """Reads of the Omega rule with c = 1 and momentum 0, behind norms and a linear map.

    The query scale is 1/sqrt(4).
    """

    def norm(x):
        return (
            x
            if kind == "none"
            else x / np.sqrt((np.sum(x * x) if kind == "l2" else np.mean(x * x)) + 1e-6)
        )

    def phi(x):
        W = p["phi/W"]
        return W @ norm(x) if place == "before_phi" else norm(W @ x)

    M, y = np.zeros((3, 5)), []
    for t in range(4):
        k = phi(p["k"][t])
        M = p["retain"][t] * M - p["step_size"][t] * np.outer(M @ k - p["v"][t], k)
        y.append(M @ phi(p["q"][t]) / 2)  # d_in is 4, d_phi is 5; after norm and map
    return np.array(y)


@pytest.mark.clause("CONV-35", "CONV-24", "CONV-23", "OMEGA-27")
@pytest.mark.parametrize("place", ["before_phi", "after_phi"])
@pytest.mark.parametrize("kind", ["none", "l2", "rms"])
def test_keys_and_queries_are_mapped_by_the_same_map_with_their_norms(kind, place):
    p = without(drawn(T=4, seed=13), "M0", "S0", "momentum") | {
        "phi/W": np.random.default_rng(1).standard_normal((5, 4))
    }
    y_bar = np.random.default_rng(2).standard_normal((4, 3))
    axes = {
        **BARE,
        "k_norm": kind,
        "q_norm": kind,
        "norm_place": place,
        "query_scale": "1/sqrt(d_in)",
    }
    result = results("omega", p | {"y_bar": y_bar}, axes, feature_map={"kind": "linear"}, grad=True)
    assert_close("y", result["y"], mapped_reads(p, kind, place), ANALYTIC)
    for name in p:
        derivative = np.zeros(p[name].shape)
        for index in np.ndindex(*p[name].shape):
            moved = p[name].astype(complex)
            moved[index] += 1e-30j
            derivative[index] = (
                np.sum(y_bar * mapped_reads(p | {name: moved}, kind, place).imag) / 1e-30
            )
        assert_close(name, result[f"grad/{name}"], derivative, ANALYTIC)


@pytest.mark.clause("CONV-23", "CONV-27")
@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
def test_the_query_scale_takes_the_length_of_a_key_whatever_the_leading_axes(lead):
    p = drawn("delta", lead=lead, seed=13)
    assert_close(
        "y",
        results("delta", p, {"query_scale": "1/sqrt(d_in)"})["y"],
        results("delta", p)["y"] / 2,
        EXACT,
    )


@pytest.mark.clause("CONV-24", "CONV-35")
@pytest.mark.parametrize("axis", ["q_norm", "k_norm"])
def test_each_norm_acts_on_its_own(axis):
    p = drawn("delta", seed=14)
    changed = "k" if axis == "k_norm" else "q"
    normed = p | {changed: np.array([x / np.sqrt(np.sum(x * x) + 1e-6) for x in p[changed]])}
    assert_close(
        "y", results("delta", p, {axis: "l2"})["y"], results("delta", normed)["y"], ANALYTIC
    )


@pytest.mark.clause("CONV-24")
def test_the_floor_of_a_norm_is_under_the_root():
    x = np.array([[3e-4, 4e-4]])
    assert_close("l2", norms.normalised(x, "l2"), x / np.sqrt(2.5e-7 + 1e-6), ANALYTIC)
    assert_close("rms", norms.normalised(x, "rms"), x / np.sqrt(1.25e-7 + 1e-6), ANALYTIC)


@pytest.mark.clause("CONV-24", "CONV-58", "GATES-6")
@pytest.mark.parametrize(("place", "normed"), [("before_phi", True), ("after_phi", False)])
def test_computed_gates_read_the_key_after_a_norm_before_the_map(place, normed):
    config = omega.Config(
        d_in=3,
        d_out=2,
        d_model=4,
        window=2,
        feature_map={"kind": "elu"},
        convention={"k_norm": "l2", "norm_place": place},
    )
    params, x = projection.init(config, seed=2), np.random.default_rng(4).standard_normal((1, 3, 4))
    k, v = (x @ W[0].T for W in (params.W_K, params.W_V))
    if normed:
        k = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True) + 1e-6)
    z = np.concatenate([k, v], axis=-1) @ params.gates.retain.W[0].T + params.gates.retain.b[0]
    assert_close(
        "retain",
        projection.project(config, params, x)["retain"][:, 0],
        1 / (1 + np.exp(-z[..., 0])),
        ANALYTIC,
    )


@pytest.mark.clause("CONV-36", "CONV-4")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("gate", ["retain", "forget"])
def test_a_logarithm_stands_for_its_gate(gate, per_dimension):
    p = drawn("titans_lmm", per_dimension=per_dimension, seed=15)
    logs = without(p, "retain", "momentum") | {
        "log_retain": np.log(p["retain"]),
        "log_momentum": np.log(p["momentum"]),
    }
    y_bar = {"y_bar": np.ones((6, 3))}
    result, want = (
        results("titans_lmm", each | y_bar, {"gate": gate}, grad=True) for each in (logs, p)
    )
    assert_close("y", result["y"], want["y"], ANALYTIC)
    for name in ("retain", "momentum"):
        assert_close(
            f"log_{name}", result[f"grad/log_{name}"], p[name] * want[f"grad/{name}"], ANALYTIC
        )


@pytest.mark.clause("CONV-36")
@pytest.mark.parametrize("name", ["retain", "momentum"])
def test_a_gate_in_both_forms_or_a_positive_logarithm_is_refused(name):
    p = drawn("titans_lmm")
    with pytest.raises(
        CaseError, match=f"in/{name}: not part of this case: in/log_{name} stands in its place"
    ):
        case("titans_lmm", p | {f"log_{name}": np.log(p[name])})
    with pytest.raises(CaseError, match=f"in/log_{name}: entries must be at most 0"):
        case("titans_lmm", without(p, name) | {f"log_{name}": np.full(6, 0.1)})


@pytest.mark.clause("CONV-36")
def test_a_logarithm_of_zero_leaves_the_gate_at_one():
    p = drawn("hebbian", seed=16)
    reads = results("hebbian", without(p, "retain") | {"log_retain": np.zeros(6)})["y"]
    assert_close("y", reads, results("hebbian", p | {"retain": np.ones(6)})["y"], EXACT)


@pytest.mark.clause("CONV-27", "GATES-1")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"retain": np.full(6, 1.1)}, "retain: entries must be at most 1"),
        ({"retain": np.full(6, -0.1)}, "retain: entries must be at least 0"),
        ({"momentum": np.full(6, 1.1)}, "momentum: entries must be at most 1"),
        ({"momentum": np.full(6, -0.1)}, "momentum: entries must be at least 0"),
        ({"step_size": np.full(6, -0.1)}, "step_size: entries must be at least 0"),
        ({"step_size_memory": np.full(6, -0.1)}, "step_size_memory: entries must be at least 0"),
        (
            {"step_size": np.ones((6, 2))},
            r"step_size: shape \(6, 2\), expected \(6,\) or, one per output dimension, \(6, 3\)",
        ),
        ({"active": np.ones(6)}, "active: float64 of shape"),
        ({"reset": np.ones(5, bool)}, "reset: bool of shape"),
    ],
)
def test_a_sequence_in_python_is_checked_as_a_case_is(change, message):
    p = without(drawn(), "M0", "S0") | {"step_size_memory": np.full(6, 0.1)}
    sequence.Tokens(**p)
    with pytest.raises(ValueError, match=message):
        sequence.Tokens(**p | change)


@pytest.mark.clause("CONV-4", "CONV-7", "CONV-27")
@pytest.mark.parametrize(
    ("axes", "change", "message"),
    [
        ({"gate": "none"}, {}, "retain: "),
        ({}, {"retain": None}, "retain: missing"),
        ({"rate": "none"}, {}, "step_size: "),
        ({}, {"step_size": None}, "step_size: missing"),
        ({"rate": "split"}, {}, "step_size_memory: missing"),
        ({}, {"step_size_memory": np.ones(6)}, "step_size_memory: "),
        ({}, {"window_weights": np.ones((6, 2))}, "window_weights: "),
    ],
)
def test_a_call_in_python_refuses_gates_that_do_not_fit(axes, change, message):
    config = omega.Config(d_in=4, d_out=3, window=3, convention={**BARE, "gate": "retain", **axes})
    tokens = sequence.Tokens(**without(drawn(), "M0", "S0") | change)
    with pytest.raises(ValueError, match=message):
        sequence.run(omega.RULE, config, tokens, omega.start(config))


@pytest.mark.clause("CONV-7", "CONV-28")
@pytest.mark.parametrize(
    ("change", "shape", "message"),
    [
        ({}, (2, 5, 3), r"x: shape \(2, 5, 3\), expected \(batch, tokens, 4\)"),
        ({}, (5, 4), r"x: shape \(5, 4\), expected \(batch, tokens, 4\)"),
        ({"d_out": 3}, (2, 5, 4), "params: d_out is 2, but 3 in the configuration"),
        (
            {"convention": {"rate": "split"}},
            (2, 5, 4),
            "rate split has no second rate at level token",
        ),
    ],
)
def test_a_call_at_level_token_refuses_tokens_and_parameters_that_do_not_fit(
    change, shape, message
):
    fields = {"d_in": 3, "d_out": 2, "d_model": 4, "window": 2}
    params = projection.init(omega.Config(**fields), seed=0)
    config = omega.Config(**fields | change)
    with pytest.raises(ValueError, match=message):
        projection.run_tokens(
            omega.RULE, config, params, np.ones(shape), omega.start(config, (2, 1))
        )
