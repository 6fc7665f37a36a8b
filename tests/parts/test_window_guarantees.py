"""Guarantees of the window, its cost and its derivatives: WINDOW-18 to WINDOW-25."""

import numpy as np
import pytest

from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import drawn, earlier, results, split_call, without

BARE = {"newton_schulz": "none"}


@pytest.mark.clause("WINDOW-18")
def test_pairs_of_equal_weight_can_change_places():
    p = without(drawn(T=4, window=4, seed=14), "window_weights", "momentum", "S0") | {
        "active": np.arange(4) == 3
    }
    order = [2, 0, 3, 1]
    swapped = p | {"k": p["k"][order], "v": p["v"][order]}
    want = results("omega", p, BARE, window=4)["M"]
    assert_close("M", results("omega", swapped, BARE, window=4)["M"], want, reordered(16))
    weights = {"window_weights": np.tile([0.1, 0.2, 0.3, 0.4], (4, 1))}
    unequal = [results("omega", each | weights, BARE, window=4)["M"] for each in (p, swapped)]
    assert_differs("unequal weights", unequal[1], unequal[0], 1e-2)


@pytest.mark.clause("WINDOW-19")
@pytest.mark.parametrize(
    ("axes", "extra"),
    [({}, 0), ({"reference": "chunk_start", "window_at_boundary": "carry"}, 3)],
    ids=["spec", "carry"],
)
def test_the_window_stores_pairs(axes, extra):
    found = results("omega", drawn(T=8, window=5), BARE | axes, window=5, span=2)
    stored = sum(value.size for name, value in found.items() if name.startswith("window_"))
    assert stored == 4 * (4 + 3 + extra)  # c - 1 rows between tokens


@pytest.mark.clause("WINDOW-19")
def test_only_momentum_then_window_stores_matrices():
    found = results(
        "omega", drawn(T=8, window=5), {**BARE, "order": "momentum_then_window"}, window=5
    )
    assert found["window_momentum"].shape == (4, 3, 4)
    assert "window_momentum" not in results("omega", drawn(T=8, window=5), BARE, window=5)


@pytest.mark.clause("WINDOW-19")
def test_an_outlier_leaves_no_trace_after_it_has_left_the_window():
    p = drawn(T=8, window=2, seed=15)
    axes = {**BARE, "reference": "zero", "gate": "none", "rate": "none"}
    p = without(p, "retain", "step_size", "momentum", "S0")
    p["v"][1] *= 1e15
    p["active"] = np.arange(8) > 2  # the outlier is in no window that writes
    clean = p | {"v": np.where(np.arange(8)[:, None] == 1, 0.0, p["v"])}
    assert_close(
        "M",
        results("omega", p, axes, window=2)["M"],
        results("omega", clean, axes, window=2)["M"],
        EXACT,
    )


@pytest.mark.clause("WINDOW-20")
def test_a_window_whose_older_weights_are_zero_is_one_token():
    p = drawn(seed=16)
    newest = {"window_weights": np.tile([1.0, 0.0, 0.0], (6, 1))}
    for axes in (BARE, {}, {"order": "momentum_then_window", **BARE}):
        found, want = results("omega", p | newest, axes, window=3), results("omega", p, axes)
        assert_close("M", found["M"], want["M"], reordered(18, amplification=100))
        assert_differs(
            "uniform",
            results("omega", p, {**axes, "newton_schulz": "none"}, window=3)["M"],
            results("omega", p, BARE)["M"],
            1e-2,
        )


@pytest.mark.clause("WINDOW-21", "CONV-55")
@pytest.mark.parametrize("argument", ["S", "nesterov", "written_back"])
@pytest.mark.parametrize("scale", ["1", "sqrt"])
def test_with_newton_schulz_and_no_momentum_the_edges_give_the_same_memory(argument, scale):
    p = without(drawn(window=4, d_in=3, d_out=4, seed=17), "momentum", "S0")
    settings = {"coefficients": "cubic", "eps": 0.0, "argument": argument, "scale": scale}
    found, want = (
        results("omega", p, {"window_edge": edge, "newton_schulz": settings}, window=4)
        for edge in ("renormalise", "truncate")
    )
    assert_close("y", found["y"], want["y"], reordered(24, amplification=50))
    assert_close("M", found["M"], want["M"], reordered(24, amplification=50))


@pytest.mark.clause("WINDOW-21", "CONV-55", "CONV-53")
@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"scale": "norm"}, {}),
        ({"argument": "accumulated"}, {}),
        ({"eps": 0.1}, {}),
        ({}, {"momentum": np.full(6, 0.5)}),
        ({}, {"window_weights": np.tile([1.0, -1.5, 0.2, 0.2], (6, 1))}),
    ],
    ids=["norm", "accumulated", "eps", "momentum", "a negative factor"],
)
def test_each_condition_of_that_is_needed(settings, more):
    p = without(drawn(window=4, seed=18), "momentum", "S0") | more
    convention = {"newton_schulz": {"coefficients": "cubic", "eps": 0.0, **settings}}
    found, want = (
        results("omega", p, {"window_edge": edge, **convention}, window=4)["y"]
        for edge in ("renormalise", "truncate")
    )
    assert_differs("y", found, want, 1e-3)


@pytest.mark.clause("WINDOW-22")
def test_the_derivative_of_a_decay_base_is_the_sum_the_clause_writes():
    base, p = 0.7, drawn(window=4, seed=19)
    y_bar = np.random.default_rng(6).standard_normal((6, 3))

    def value(base):
        M, S, total = p["M0"], p["S0"], 0.0
        for t in range(6):
            g = sum(
                base**j * np.outer(M @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
                for j in range(min(4, t + 1))
            )
            S = p["momentum"][t] * S + p["step_size"][t] * g
            M = p["retain"][t] * M - S
            total = total + np.sum(y_bar[t] * (M @ p["q"][t]))
        return total

    weights_bar = results(
        "omega",
        p | {"window_weights": np.tile(base ** np.arange(4), (6, 1)), "y_bar": y_bar},
        BARE,
        window=4,
        grad=True,
    )
    weights_bar = weights_bar["grad/window_weights"]
    assert not weights_bar[np.arange(4) > np.arange(6)[:, None]].any()  # 0 for absent lags
    stated = sum(j * base ** (j - 1) * weights_bar[t, j] for t in range(6) for j in range(1, 4))
    assert_close("base", stated, value(base + 1e-30j).imag / 1e-30, ANALYTIC)


@pytest.mark.clause("WINDOW-22", "WINDOW-24")
def test_a_gate_collects_over_the_times_whose_window_holds_its_token():
    p = without(drawn(window=3, seed=20), "window_weights") | earlier(2)
    y_bar = {"y_bar": np.random.default_rng(7).standard_normal((6, 3))}
    u = np.random.default_rng(8).uniform(0.2, 0.8, 8)  # two initial tokens, six of the call
    table = np.array([[u[2 + t - j] for j in range(3)] for t in range(6)])
    bar = results("omega", p | y_bar | {"window_weights": table}, BARE, window=3, grad=True)[
        "grad/window_weights"
    ]
    stated = [sum(bar[i - 2 + j, j] for j in range(3) if 0 <= i - 2 + j < 6) for i in range(8)]
    given = p | y_bar | {"window_gate": u[2:], "window_gate_before": u[:2]}
    found = results("omega", given, BARE, window=3, grad=True)
    assert_close("initial gates", found["grad/window_gate_before"], np.array(stated[:2]), ANALYTIC)
    assert_close("gates", found["grad/window_gate"], np.array(stated[2:]), ANALYTIC)


@pytest.mark.clause("WINDOW-25")
@pytest.mark.parametrize("at", [2, 3, 5])
def test_the_last_c_minus_one_pairs_suffice(at):
    p = drawn(T=7, window=3, seed=21)
    one, two = results("omega", p, BARE, window=3), split_call("omega", p, BARE, at, window=3)
    assert results("omega", p, BARE, window=3)["window_k"].shape[0] == 2
    assert_close("y", two["y"], one["y"], EXACT)
