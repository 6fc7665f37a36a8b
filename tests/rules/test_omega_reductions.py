"""Rules that Omega contains, and its state from call to call, OMEGA-19 to OMEGA-22 and OMEGA-28."""

import numpy as np
import pytest

from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import drawn, earlier, results, split_call, without

BARE = {"newton_schulz": "none"}
SHARED = [
    {},
    {"decay": "before_error", "gradient_scale": 2},
    {"reference": "chunk_start", "read": "before"},
    {"reference": "zero", "read": "chunk_start"},
    {"reference": "call_start", "read": "call_end", "direction": "ascent"},
]


def same(got, want, *names, tolerance=ANALYTIC):
    for name in names:
        assert_close(name, got[name], want[name], tolerance)


@pytest.mark.clause("OMEGA-19", "TITANS-13")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("axes", SHARED, ids=str)
def test_one_token_of_weight_one_without_newton_schulz_is_titans_lmm(axes, per_dimension):
    p = drawn(lead=(2,), per_dimension=per_dimension, seed=1)
    same(
        results("omega", p, BARE | axes, span=2),
        results("titans_lmm", p, axes, span=2),
        "y",
        "M",
        "S",
    )


@pytest.mark.clause("OMEGA-19", "TITANS-13")
def test_with_opposite_signs_and_gates_titans_is_omega_with_the_momentum_turned():
    p = drawn(seed=2)
    titans = results(
        "titans_lmm",
        p | {"retain": 1 - p["retain"], "S0": -p["S0"]},
        {"gate": "forget", "momentum_sign": "minus"},
    )
    result = results("omega", p, BARE)
    same(result, titans, "y", "M")
    assert_close("S", result["S"], -titans["S"], ANALYTIC)


@pytest.mark.clause("OMEGA-19")
def test_omega_with_another_rate_is_not_titans():
    p = drawn(seed=3)
    titans = results("titans_lmm", p)["M"]
    for rate in ("memory", "both"):
        assert_differs(rate, results("omega", p, {**BARE, "rate": rate})["M"], titans, 1e-2)
    constant = without(p | {"step_size": np.full(6, 0.3)}, "S0")
    same(
        results("omega", constant, {**BARE, "rate": "memory"}), results("titans_lmm", constant), "M"
    )
    assert_differs(
        "both",
        results("omega", constant, {**BARE, "rate": "both"})["M"],
        results("titans_lmm", constant)["M"],
        1e-2,
    )
    ones, zeros = ({"step_size": np.full(6, value)} for value in (1.0, 0.0))
    same(results("omega", p | ones, {**BARE, "rate": "both"}), results("titans_lmm", p | ones), "M")
    without_trace = without(p | zeros, "S0")
    same(
        results("omega", without_trace, {**BARE, "rate": "both"}),
        results("titans_lmm", without_trace),
        "M",
    )
    assert_differs(
        "0 from S_0",
        results("omega", p | zeros, {**BARE, "rate": "both"})["M"],
        results("titans_lmm", p | zeros)["M"],
        1e-2,
    )


@pytest.mark.clause("OMEGA-20", "DELTA-11")
@pytest.mark.parametrize("axes", SHARED, ids=str)
@pytest.mark.parametrize("rate", ["momentum", "memory", "both", "split", "none"])
def test_without_momentum_it_is_the_delta_rule(axes, rate):
    surplus = {"split": (), "none": ("step_size", "step_size_memory")}.get(
        rate, ("step_size_memory",)
    )
    p = without(drawn("delta", split=True, seed=4), *surplus)
    same(
        results("omega", p, {**BARE, **axes, "rate": rate}, span=2),
        results("delta", p, {**axes, "rate": rate}, span=2),
        "y",
        "M",
    )


@pytest.mark.clause("OMEGA-20", "WINDOW-20")
def test_a_window_that_weighs_only_its_newest_token_is_the_delta_rule_and_a_uniform_one_is_not():
    p = drawn("delta", seed=5)
    want = results("delta", p)
    newest = p | {"window_weights": np.tile([1.0, 0.0, 0.0], (6, 1))}
    same(results("omega", newest, BARE, window=3), want, "y", "M", tolerance=reordered(6))
    assert_differs("uniform", results("omega", p, BARE, window=3)["M"], want["M"], 1e-2)


@pytest.mark.clause("OMEGA-21", "HEBBIAN-9")
@pytest.mark.parametrize("rate", ["momentum", "memory", "both", "none"])
def test_from_the_zero_reference_it_is_the_hebbian_rule(rate):
    p = drawn("hebbian", seed=6)
    gates = {} if rate == "none" else {"step_size": np.full(6, {"both": 0.5}.get(rate, 0.25))}
    axes = {**BARE, "reference": "zero", "rate": rate, "gradient_scale": 1 if rate == "none" else 4}
    same(results("omega", p | gates, axes), results("hebbian", p), "y", "M")


@pytest.mark.clause("OMEGA-22")
@pytest.mark.parametrize(("rate", "power"), [("momentum", 1), ("memory", 1), ("both", 2)])
def test_without_momentum_and_newton_schulz_the_step_is_omeganet(rate, power):
    p = without(drawn(window=3, seed=7), "momentum", "S0")
    M, s = p["M0"], 1.5
    for t in range(6):
        A, B = np.zeros((4, 4)), np.zeros((3, 4))
        for j in range(min(3, t + 1)):
            A += p["window_weights"][t, j] * np.outer(p["k"][t - j], p["k"][t - j])
            B += p["window_weights"][t, j] * np.outer(p["v"][t - j], p["k"][t - j])
        M = p["retain"][t] * M - s * p["step_size"][t] ** power * (M @ A - B)
    assert_close(
        "M",
        results("omega", p, {**BARE, "rate": rate, "gradient_scale": s}, window=3)["M"],
        M,
        ANALYTIC,
    )


@pytest.mark.clause("OMEGA-22")
def test_a_direction_orthogonal_to_the_window_only_decays_and_an_eigenvector_keeps_its_part():
    p = without(drawn(T=3, window=3, seed=8), "momentum", "S0") | {
        "active": np.array([False, False, True]),
        "v": np.zeros((3, 3)),
    }
    A = sum(p["window_weights"][2, j] * np.outer(p["k"][2 - j], p["k"][2 - j]) for j in range(3))
    M = results("omega", p, BARE, window=3)["M"]
    values, vectors = np.linalg.eigh(A)
    assert abs(values[0]) < 1e-15  # three keys leave one of four directions
    for value, u in zip(values, vectors.T, strict=True):
        part = p["retain"][2] - p["step_size"][2] * value
        assert_close(f"eigenvalue {value:.2f}", M @ u, part * p["M0"] @ u, ANALYTIC)


CARRIED = {
    "spec": ({}, {}),
    "without momentum": (BARE, {}),
    "chunk_start": ({**BARE, "reference": "chunk_start"}, {}),
    "call_start": ({**BARE, "reference": "call_start"}, {}),
    "read chunk_start": ({**BARE, "read": "chunk_start"}, {}),
    "read before": ({"read": "before"}, {}),
    "cut": ({**BARE, "reference": "chunk_start", "window_at_boundary": "cut"}, {}),
    "carry": (
        {
            **BARE,
            "reference": "chunk_start",
            "window_at_boundary": "carry",
            "decay": "before_error",
        },
        {},
    ),
    "call_start, carry": ({"reference": "call_start", "window_at_boundary": "carry"}, {}),
    "multiple": ({**BARE, "reference": "chunk_start", "span_origin": "multiple"}, {}),
    "renormalise": ({**BARE, "window_edge": "renormalise"}, {}),
    "momentum first": ({**BARE, "order": "momentum_then_window"}, {}),
    "momentum first, Newton-Schulz": (
        {"order": "momentum_then_window", "newton_schulz": {"argument": "nesterov"}},
        {},
    ),
    "written_back": ({"newton_schulz": {"argument": "written_back"}}, {}),
    "accumulated": ({"newton_schulz": {"argument": "accumulated"}}, {}),
    "norms": (
        {"k_norm": "l2", "q_norm": "rms", "norm_place": "after_phi"},
        {"feature_map": {"kind": "elu"}},
    ),
    "transposed": ({"layout": "transposed"}, {}),
}


@pytest.mark.clause("OMEGA-28", "CONV-37", "CONV-38", "WINDOW-25")
@pytest.mark.parametrize("at", [1, 2, 5, 7])
@pytest.mark.parametrize("name", CARRIED)
def test_a_split_call_equals_one_call_to_the_bit(name, at):
    axes, header = CARRIED[name]
    p = drawn(T=9, window=4, seed=9) | {"active": np.arange(9) % 4 != 1}
    if name == "without momentum":
        p = without(p, "momentum", "S0")
    if name == "transposed":
        p |= {"M0": p["M0"].T, "S0": p["S0"].T}
    header = {"window": 4, "span": 3, **header}
    one, two = results("omega", p, axes, **header), split_call("omega", p, axes, at, **header)
    assert one.keys() == two.keys()
    for state in one:
        assert_close(state, np.asarray(two[state]), np.asarray(one[state]), EXACT)


@pytest.mark.clause("OMEGA-28", "CONV-37", "CONV-38", "WINDOW-25", "WINDOW-6")
@pytest.mark.parametrize("at", [1, 2, 5, 7])
@pytest.mark.parametrize("order", ["window_then_momentum", "momentum_then_window"])
@pytest.mark.parametrize("boundary", ["recompute", "carry"])
def test_tokens_that_bring_their_weight_carry_it(order, boundary, at):
    p = without(drawn(T=9, window=4, seed=10), "window_weights") | {
        "window_gate": np.random.default_rng(0).uniform(0.2, 0.8, 9)
    }
    axes = {**BARE, "order": order, "reference": "chunk_start", "window_at_boundary": boundary}
    first_momentum = order == "momentum_then_window"
    p |= earlier(2, gate=True, residual=boundary == "carry" and not first_momentum)
    if first_momentum:
        p["window_momentum"] = np.random.default_rng(1).standard_normal((2, 3, 4))
    one, two = (
        results("omega", p, axes, window=4, span=2),
        split_call("omega", p, axes, at, window=4, span=2),
    )
    for state in one:
        assert_close(state, np.asarray(two[state]), np.asarray(one[state]), EXACT)


@pytest.mark.clause("OMEGA-28", "CONV-33")
def test_a_split_after_a_reset_carries_the_last_packed_sequence_alone():
    p = drawn(T=9, window=4, seed=11) | {"reset": np.arange(9) == 3}
    for order in ("window_then_momentum", "momentum_then_window"):
        axes = {**BARE, "order": order, "reference": "chunk_start", "window_at_boundary": "carry"}
        for at in (4, 5, 8):
            one, two = (
                results("omega", p, axes, window=4, span=2),
                split_call("omega", p, axes, at, window=4, span=2),
            )
            for state in one:
                assert_close(
                    f"{state} at {at}", np.asarray(two[state]), np.asarray(one[state]), EXACT
                )


@pytest.mark.clause("OMEGA-28")
@pytest.mark.parametrize("lost", ["window_k", "S0", "M_ref", "window_residual", "phase"])
def test_each_part_of_the_state_is_needed(lost):
    p = drawn(T=9, window=4, seed=12)
    axes = {**BARE, "reference": "chunk_start", "window_at_boundary": "carry"}
    one = results("omega", p, axes, window=4, span=3)
    first = results(
        "omega",
        {name: value[:4] if len(value) == 9 else value for name, value in p.items()},
        axes,
        window=4,
        span=3,
    )
    resumed = {name: value[4:] for name, value in p.items() if len(value) == 9} | {
        "M0": first["M"],
        "S0": first["S"],
    }
    resumed |= {name: first[name] for name in ("M_ref", "window_k", "window_v", "window_residual")}
    header = {"window": 4, "span": 3, "phase": first["phase"]}
    assert_close("y", results("omega", resumed, axes, **header)["y"], one["y"][4:], EXACT)
    if lost == "phase":
        header["phase"] = 0
    elif lost == "window_k":
        resumed = without(resumed, "window_k", "window_v", "window_residual")
    elif lost == "window_residual":
        resumed["window_residual"] = np.zeros_like(resumed["window_residual"])
    else:
        resumed = without(resumed, lost)
    assert_differs(lost, results("omega", resumed, axes, **header)["y"], one["y"][4:], 1e-3)


@pytest.mark.clause("OMEGA-28", "CONV-38")
def test_read_call_end_shows_the_split():
    p = drawn(T=9, window=2, seed=13)
    one, two = (
        results("omega", p, {"read": "call_end"}, window=2),
        split_call("omega", p, {"read": "call_end"}, 4, window=2),
    )
    assert_close("M", two["M"], one["M"], EXACT)
    assert_close("y, second call", two["y"][4:], one["y"][4:], EXACT)
    assert_differs("y, first call", two["y"][:4], one["y"][:4], 1e-2)
