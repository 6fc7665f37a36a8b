"""The step of Omega, OMEGA-1 to OMEGA-13: each clause as a loop or as numbers by hand."""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.layers import projection
from atlas_ref.rules import omega
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.sequences import case, drawn, results, without

BARE = {"newton_schulz": "none"}
CUBIC = {"coefficients": "cubic", "steps": 3, "eps": 0.0}


def cubic(S):
    """Three cubic Newton-Schulz steps from S / ||S||."""
    X = S / np.linalg.norm(S)
    for _ in range(3):
        X = 1.5 * X - 0.5 * X @ X.T @ X
    return X


def one(k, v, M0, convention, **more):
    """The memory after one token."""
    d_in = len(k)
    tensors = {"k": [k], "v": [v], "q": [np.zeros(d_in)], "M0": M0, **more}
    return results("omega", tensors, {**BARE, **convention})["M"]


@pytest.mark.clause("OMEGA-1")
def test_memory_and_momentum_start_at_zero_and_meet_features():
    tensors = without(drawn(d_in=2, d_out=3), "M0", "S0")
    kinds = {"identity": 2, "monomials": 5}
    for kind, d_phi in kinds.items():
        result = results("omega", tensors, BARE, feature_map={"kind": kind})
        assert result["M"].shape == result["S"].shape == (3, d_phi)
        explicit = {"M0": np.zeros((3, d_phi)), "S0": np.zeros((3, d_phi))}
        assert_close(
            kind,
            result["y"],
            results("omega", tensors | explicit, BARE, feature_map={"kind": kind})["y"],
            EXACT,
        )


@pytest.mark.clause("OMEGA-1")
def test_the_window_starts_empty():
    tensors = drawn(T=1, window=3)
    tensors["window_weights"][0, 1:] = 100.0  # weights of tokens that do not exist
    alone = without(tensors, "window_weights") | {
        "window_weights": tensors["window_weights"][:, :1]
    }
    assert_close(
        "y",
        results("omega", tensors, BARE, window=3)["y"],
        results("omega", alone, BARE)["y"],
        EXACT,
    )


@pytest.mark.clause("OMEGA-1", "GATES-4")
def test_without_momentum_there_is_no_momentum_in_the_state():
    tensors = without(drawn(), "momentum", "S0")
    result = results("omega", tensors, BARE)
    assert "S" not in result
    assert_close(
        "M", result["M"], results("omega", tensors | {"momentum": np.zeros(6)}, BARE)["M"], EXACT
    )
    with pytest.raises(CaseError, match="in/S0: not part of this case: it needs a momentum gate"):
        case("omega", tensors | {"S0": np.zeros((3, 4))}, BARE)


@pytest.mark.clause("OMEGA-1", "GATES-3")
def test_a_gate_with_d_out_entries_scales_rows():
    p = drawn(window=2, per_dimension=True)
    M, S = p["M0"], p["S0"]
    for t in range(6):
        g = np.zeros((3, 4))
        for j in range(min(2, t + 1)):
            g += p["window_weights"][t, j] * np.outer(
                M @ p["k"][t - j] - p["v"][t - j], p["k"][t - j]
            )
        after, momentum = np.zeros((3, 4)), np.zeros((3, 4))
        for row in range(3):
            momentum[row] = p["momentum"][t, row] * S[row] + p["step_size"][t, row] * g[row]
            after[row] = p["retain"][t, row] * M[row] - momentum[row]
        M, S = after, momentum
    result = results("omega", p, BARE, window=2)
    assert_close("M", result["M"], M, ANALYTIC)
    assert_close("S", result["S"], S, ANALYTIC)


@pytest.mark.clause("OMEGA-2", "OMEGA-5", "OMEGA-6", "OMEGA-10", "OMEGA-12")
def test_two_tokens_by_hand():
    # c = 2, weights 1, retain 1/2, momentum 1/2, step 1/10, numbers instead of matrices token 1: k
    # = 1, v = 3, M_0 = 2, S_0 = 1: e = 2 - 3 = -1, g = -1, S = 0.5 - 0.1 = 0.4, M = 1 - 0.4 = 0.6,
    # y = 0.6 * 5 = 3 token 2: k = 2, v = 1: e = (1.2 - 1, 0.6 - 3) = (0.2, -2.4), g = 0.4 - 2.4 =
    # -2, S = 0.2 - 0.2 = 0, M = 0.3, y = -0.6
    numbers = {
        "k": [[1.0], [2.0]],
        "v": [[3.0], [1.0]],
        "q": [[5.0], [-2.0]],
        "M0": [[2.0]],
        "S0": [[1.0]],
    }
    gates = {
        "retain": [0.5, 0.5],
        "momentum": [0.5, 0.5],
        "step_size": [0.1, 0.1],
        "window_weights": np.ones((2, 2)),
    }
    result = results("omega", numbers | gates, BARE, window=2)
    assert_close("y", result["y"], np.array([[3.0], [-0.6]]), ANALYTIC)
    assert_close("M", result["M"], np.array([[0.3]]), ANALYTIC)
    assert abs(result["S"][0, 0]) < 1e-15


@pytest.mark.clause("OMEGA-2")
def test_each_quantity_uses_the_newest_of_the_ones_before_it():
    p = drawn(window=3, seed=1)
    M, S, y = p["M0"], p["S0"], []
    for t in range(6):
        # with the pair of token t
        pairs = [
            (p["k"][i], p["v"][i], p["window_weights"][t, t - i])
            for i in range(max(0, t - 2), t + 1)
        ]
        g = sum(w * np.outer(M @ k - v, k) for k, v, w in pairs)
        S = p["momentum"][t] * S + p["step_size"][t] * g  # with g_t
        M = p["retain"][t] * M - p["step_size"][t] * cubic(S)  # with S_t
        y.append(M @ p["q"][t])  # with M_t
    result = results("omega", p, {"newton_schulz": CUBIC}, window=3)
    assert_close("y", result["y"], np.array(y), ANALYTIC)


@pytest.mark.clause("OMEGA-3", "WINDOW-17")
def test_a_silent_level_finds_the_last_tokens_not_the_last_active_ones():
    p = without(drawn(T=5, window=2, seed=2), "momentum", "S0") | {
        "active": np.array([True, False, False, False, True])
    }
    both = {}
    for name, older in (("last tokens", 3), ("last active tokens", 0)):
        M = p["retain"][0] * p["M0"]
        M = M - p["step_size"][0] * p["window_weights"][0, 0] * np.outer(
            p["M0"] @ p["k"][0] - p["v"][0], p["k"][0]
        )
        pairs = [(4, p["window_weights"][4, 0]), (older, p["window_weights"][4, 1])]
        g = sum(w * np.outer(M @ p["k"][i] - p["v"][i], p["k"][i]) for i, w in pairs)
        both[name] = p["retain"][4] * M - p["step_size"][4] * g
    memory = results("omega", p, BARE, window=2)["M"]
    assert_close("M", memory, both["last tokens"], ANALYTIC)
    assert_differs("M", memory, both["last active tokens"], 1e-2)


@pytest.mark.clause("OMEGA-4", "CONV-5", "CONV-10")
@pytest.mark.parametrize(
    ("convention", "residual"),
    [
        ({}, lambda M0, k, v: M0 @ k - v),
        ({"decay": "before_error"}, lambda M0, k, v: 0.5 * M0 @ k - v),
        ({"value_sign": "plus"}, lambda M0, k, v: M0 @ k + v),
    ],
    ids=["after_error", "before_error", "value_sign plus"],
)
def test_the_residual_is_reference_times_feature_minus_value(convention, residual):
    k, v, M0 = np.array([1.0, 2.0]), np.array([3.0, -1.0, 0.5]), np.arange(6.0).reshape(3, 2)
    M = one(k, v, M0, {"rate": "none", **convention}, retain=[0.5])
    assert_close("e k^T", 0.5 * M0 - M, np.outer(residual(M0, k, v), k), ANALYTIC)


@pytest.mark.clause("OMEGA-4")
def test_every_pair_of_the_window_is_judged_by_the_present_memory():
    p = without(drawn(T=2, window=2, seed=3), "momentum", "S0") | {
        "window_weights": np.array([[1.0, 0.0], [0.0, 1.0]])
    }
    M1 = p["retain"][0] * p["M0"] - p["step_size"][0] * np.outer(
        p["M0"] @ p["k"][0] - p["v"][0], p["k"][0]
    )
    # the old pair, the new memory
    M2 = p["retain"][1] * M1 - p["step_size"][1] * np.outer(M1 @ p["k"][0] - p["v"][0], p["k"][0])
    assert_close("M", results("omega", p, BARE, window=2)["M"], M2, ANALYTIC)


@pytest.mark.clause("OMEGA-5", "CONV-6")
@pytest.mark.parametrize(("scale", "s"), [(1, 1.0), (2.5, 2.5), (-1, -1.0), ("2/d_out", 2 / 3)])
def test_the_gradient_is_the_weighted_sum_of_residual_times_feature(scale, s):
    p = without(drawn(T=3, window=3, seed=4), "momentum", "S0", "retain", "step_size")
    tensors = p | {"active": np.array([False, False, True])}
    g = np.zeros((3, 4))
    for j, w in enumerate(p["window_weights"][2]):
        e = p["M0"] @ p["k"][2 - j] - p["v"][2 - j]
        for o in range(3):
            for i in range(4):
                g[o, i] += s * w * e[o] * p["k"][2 - j][i]
    memory = results(
        "omega",
        tensors,
        {**BARE, "rate": "none", "gate": "none", "gradient_scale": scale},
        window=3,
    )["M"]
    assert_close("g", p["M0"] - memory, g, ANALYTIC)


@pytest.mark.clause("OMEGA-6", "CONV-8")
def test_the_momentum_accumulates_plus_gradient_or_under_minus_its_negative():
    p = drawn(T=1, seed=5)
    g = np.outer(p["M0"] @ p["k"][0] - p["v"][0], p["k"][0])
    for sign, word in ((1.0, "plus"), (-1.0, "minus")):
        S = p["momentum"][0] * p["S0"] + sign * p["step_size"][0] * g
        result = results("omega", p, {**BARE, "momentum_sign": word})
        assert_close(f"S, {word}", result["S"], S, ANALYTIC)
        assert_close(f"M, {word}", result["M"], p["retain"][0] * p["M0"] - sign * S, ANALYTIC)


@pytest.mark.clause("OMEGA-7", "CONV-7")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("rate", ["momentum", "memory", "both", "split", "none"])
def test_the_step_size_enters_where_rate_says(rate, per_dimension):
    p = drawn(T=2, per_dimension=per_dimension, split=True, seed=6)
    M, S = p["M0"], p["S0"]
    for t in range(2):
        h, h_memory = p["step_size"][t].reshape(-1, 1), p["step_size_memory"][t].reshape(-1, 1)
        a, b = {
            "momentum": (h, 1),
            "memory": (1, h),
            "both": (h, h),
            "split": (h, h_memory),
            "none": (1, 1),
        }[rate]
        S = p["momentum"][t].reshape(-1, 1) * S + a * np.outer(M @ p["k"][t] - p["v"][t], p["k"][t])
        M = p["retain"][t].reshape(-1, 1) * M - b * S
    surplus = {"split": (), "none": ("step_size", "step_size_memory")}.get(
        rate, ("step_size_memory",)
    )
    result = results("omega", without(p, *surplus), {**BARE, "rate": rate})
    assert_close("M", result["M"], M, ANALYTIC)
    assert_close("S", result["S"], S, ANALYTIC)


@pytest.mark.clause("OMEGA-7", "CONV-2")
def test_spec_has_rate_both_with_newton_schulz_and_momentum_without():
    p = drawn(T=3, seed=7)
    for settings, rate in ((CUBIC, "both"), ("none", "momentum")):
        spec = results("omega", p, {"newton_schulz": settings})["M"]
        assert_close(
            rate, spec, results("omega", p, {"newton_schulz": settings, "rate": rate})["M"], EXACT
        )


@pytest.mark.clause("OMEGA-8", "CONV-22")
@pytest.mark.parametrize("sign", ["plus", "minus"])
@pytest.mark.parametrize("argument", ["S", "nesterov", "written_back"])
def test_newton_schulz_acts_on_what_argument_names(argument, sign):
    p = drawn(T=3, split=True, seed=8)
    M, S, plus = p["M0"], p["S0"], 1.0 if sign == "plus" else -1.0
    for t in range(3):
        g = 1.5 * np.outer(M @ p["k"][t] - p["v"][t], p["k"][t])
        S = p["momentum"][t] * S + plus * p["step_size"][t] * g
        U = cubic(plus * g + p["momentum"][t] * S if argument == "nesterov" else S)
        M = p["retain"][t] * M - plus * p["step_size_memory"][t] * U
        S = U if argument == "written_back" else S
    axes = {
        "rate": "split",
        "gradient_scale": 1.5,
        "momentum_sign": sign,
        "newton_schulz": {**CUBIC, "argument": argument},
    }
    result = results("omega", p, axes)
    assert_close("M", result["M"], M, ANALYTIC)
    assert_close("S", result["S"], S, ANALYTIC)


@pytest.mark.clause("OMEGA-8")
def test_without_newton_schulz_the_update_is_the_momentum():
    p = drawn(T=1, seed=9)
    result = results("omega", p, BARE)
    assert_close("M", result["M"], p["retain"][0] * p["M0"] - result["S"], ANALYTIC)


@pytest.mark.clause("OMEGA-9", "CONV-22")
def test_accumulated_collects_raw_updates_and_reads_through_newton_schulz():
    p = drawn(window=2, seed=10)
    A, S, y = p["M0"], p["S0"], []
    for t in range(6):
        lags = range(min(2, t + 1))
        # A itself
        g = sum(
            p["window_weights"][t, j] * np.outer(A @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
            for j in lags
        )
        S = p["momentum"][t] * S + g
        A = p["retain"][t] * A - p["step_size"][t] * S
        y.append(cubic(A) @ p["q"][t])
    result = results(
        "omega",
        p,
        {"rate": "memory", "newton_schulz": {**CUBIC, "argument": "accumulated"}},
        window=2,
    )
    assert_close("y", result["y"], np.array(y), ANALYTIC)
    assert_close("A_T", result["M"], A, ANALYTIC)


@pytest.mark.clause("OMEGA-10", "CONV-9")
@pytest.mark.parametrize(
    ("sign", "direction", "enters"),
    [
        ("plus", "descent", -1),
        ("minus", "descent", 1),
        ("plus", "ascent", 1),
        ("minus", "ascent", -1),
    ],
)
def test_the_memory_decays_and_the_update_enters_with_its_sign(sign, direction, enters):
    p = drawn(T=1, seed=11)
    result = results(
        "omega", p, {**BARE, "rate": "memory", "momentum_sign": sign, "direction": direction}
    )
    assert_close(
        "M",
        result["M"],
        p["retain"][0] * p["M0"] + enters * p["step_size"][0] * result["S"],
        ANALYTIC,
    )


@pytest.mark.clause("OMEGA-11", "CONV-16")
@pytest.mark.parametrize("sign", ["plus", "minus"])
def test_momentum_before_the_window_averages_momenta_of_single_tokens(sign):
    p = drawn(window=3, seed=12) | {"active": np.array([True, True, False, True, True, True])}
    M, Z, past, plus = p["M0"], p["S0"], [], 1.0 if sign == "plus" else -1.0
    for t in range(6):
        if p["active"][t]:
            R = p["retain"][t] * M
            Z = p["momentum"][t] * Z + plus * p["step_size"][t] * 0.7 * np.outer(
                R @ p["k"][t] - p["v"][t], p["k"][t]
            )
        past.append(Z)  # Z_0 = S_0 is not a member; an inactive token repeats Z
        if p["active"][t]:
            P = sum(p["window_weights"][t, j] * past[t - j] for j in range(3) if t - j >= 0)
            M = p["retain"][t] * M - plus * P
    axes = {
        **BARE,
        "order": "momentum_then_window",
        "decay": "before_error",
        "gradient_scale": 0.7,
        "momentum_sign": sign,
    }
    result = results("omega", p, axes, window=3)
    assert_close("M", result["M"], M, ANALYTIC)
    assert_close("Z", result["S"], Z, ANALYTIC)


@pytest.mark.clause("OMEGA-11", "CONV-22")
def test_momentum_before_the_window_hands_its_sum_to_newton_schulz():
    p = drawn(T=4, window=2, seed=13)
    for argument in ("S", "nesterov"):
        M, Z, past = p["M0"], p["S0"], []
        for t in range(4):
            g = 1.3 * np.outer(M @ p["k"][t] - p["v"][t], p["k"][t])
            Z = p["momentum"][t] * Z + p["step_size"][t] * g
            past.append(Z)
            P = sum(p["window_weights"][t, j] * past[t - j] for j in range(2) if t - j >= 0)
            M = p["retain"][t] * M - p["step_size"][t] * cubic(
                g + p["momentum"][t] * P if argument == "nesterov" else P
            )
        axes = {
            "order": "momentum_then_window",
            "gradient_scale": 1.3,
            "newton_schulz": {**CUBIC, "argument": argument},
        }
        assert_close(argument, results("omega", p, axes, window=2)["M"], M, ANALYTIC)


@pytest.mark.clause("OMEGA-11", "CONV-16", "CONV-22")
def test_written_back_with_momentum_before_the_window_is_refused():
    axes = {"order": "momentum_then_window", "newton_schulz": {"argument": "written_back"}}
    with pytest.raises(
        CaseError,
        match=r"newton_schulz\.argument written_back is not defined for order momentum_then_window",
    ):
        case("omega", drawn(window=2), axes, window=2)
    with pytest.raises(
        ValueError, match="written_back is not defined for order momentum_then_window"
    ):
        omega.Config(d_in=4, d_out=3, convention=axes)


@pytest.mark.clause("OMEGA-12", "CONV-28")
def test_the_query_has_the_length_of_a_key():
    config = omega.Config(d_in=4, d_out=3, d_model=5, convention=BARE)
    params = projection.init(config, seed=0)
    assert params.W_Q.shape == params.W_K.shape == (1, 4, 5)
    p = drawn(T=1, seed=14)
    result = results("omega", p, BARE)
    assert_close("y", result["y"][0], result["M"] @ p["q"][0], ANALYTIC)


@pytest.mark.clause("OMEGA-13", "CONV-32")
@pytest.mark.parametrize("order", ["window_then_momentum", "momentum_then_window"])
def test_an_inactive_token_changes_neither_memory_nor_momentum(order):
    p = drawn(T=3, window=2, seed=15) | {"active": np.zeros(3, bool)}
    result = results("omega", p, {"order": order}, window=2)
    assert_close("M", result["M"], p["M0"], EXACT)
    assert_close("S", result["S"], p["S0"], EXACT)
    # the read takes place
    assert_close("y", result["y"], np.array([p["M0"] @ q for q in p["q"]]), ANALYTIC)


@pytest.mark.clause("OMEGA-13", "CONV-32")
@pytest.mark.parametrize("boundary", ["recompute", "carry"])
def test_gates_of_an_inactive_token_influence_nothing(boundary):
    p = drawn(window=3, seed=16) | {"active": np.array([True, False, True, True, False, True])}
    axes = {
        **BARE,
        "decay": "before_error",
        "reference": "chunk_start",
        "window_at_boundary": boundary,
    }
    moved = dict(p)
    for gate in ("retain", "momentum", "step_size"):
        moved[gate] = np.where(p["active"], p[gate], 1.0 - p[gate])
    moved["window_weights"] = np.where(p["active"][:, None], p["window_weights"], 9.0)
    want, result = (results("omega", each, axes, window=3, span=2) for each in (p, moved))
    for name in ("y", "M", "S"):
        assert_close(name, result[name], want[name], EXACT)
