"""The window: contents, weights and edges, WINDOW-1 to WINDOW-9."""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.parts import window
from atlas_ref.rules import omega
from tape import grad, ops, vjp
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import case, drawn, earlier, results, without

BARE = {"newton_schulz": "none"}


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def memory(p, weights, c, active=None):
    """M_T of the bare rule with running reference for a function weights(t, j)."""
    M, S = p["M0"], p["S0"]
    for t in range(len(p["k"])):
        if active is not None and not active[t]:
            continue
        g = sum(
            weights(t, j) * np.outer(M @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
            for j in range(min(c, t + 1))
        )
        S = p["momentum"][t] * S + p["step_size"][t] * g
        M = p["retain"][t] * M - S
    return M


@pytest.mark.clause("WINDOW-1", "WINDOW-17")
def test_the_window_holds_the_last_c_pairs_oldest_first():
    config = omega.Config(d_in=2, d_out=1, window=3, convention=BARE)
    state = omega.start(config)
    for i in range(1, 6):
        state = omega.rest(config, state, np.array([i, 10.0 * i]), np.array([-1.0 * i]))
        held = list(range(max(1, i - 2), i + 1))
        assert state.filled == len(held)
        assert_close("keys", state.keys[3 - len(held) :, 0], np.array(held, float), EXACT)
        assert_close("values", state.values[3 - len(held) :, 0], -np.array(held, float), EXACT)
        assert not state.keys[: 3 - len(held)].any()
    assert state.keys.shape == (3, 2)
    assert state.values.shape == (3, 1)


@pytest.mark.clause("WINDOW-1")
def test_what_the_window_holds_are_features():
    p = without(drawn(d_in=2, d_out=3), "M0", "S0")
    config = omega.Config(
        d_in=2, d_out=3, window=4, feature_map={"kind": "monomials"}, convention=BARE
    )
    assert omega.start(config).keys.shape == (4, 5)
    assert results("omega", p, BARE, window=4, feature_map={"kind": "monomials"})[
        "window_k"
    ].shape == (3, 2)  # raw in files


@pytest.mark.clause("WINDOW-1")
def test_the_window_is_one_token_unless_a_case_says_otherwise():
    p = drawn(seed=1)
    assert_close(
        "y", results("omega", p, BARE)["y"], results("omega", p, BARE, window=1)["y"], EXACT
    )
    with pytest.raises(CaseError, match="window: must be at least 1, found 0"):
        case("omega", p, BARE, window=0)


@pytest.mark.clause("WINDOW-2")
def test_a_weight_belongs_to_a_lag_however_many_tokens_are_present():
    p = drawn(window=3, seed=2)
    p["window_weights"] = np.arange(18.0).reshape(6, 3) / 20
    assert_close(
        "M",
        results("omega", p, BARE, window=3)["M"],
        memory(p, lambda t, j: (3 * t + j) / 20, 3),
        ANALYTIC,
    )


@pytest.mark.clause("WINDOW-2", "WINDOW-3")
@pytest.mark.parametrize("c", [1, 4])
def test_without_weights_each_token_weighs_one_over_c_from_the_first_token_on(c):
    p = drawn(seed=3)
    assert_close(
        "M", results("omega", p, BARE, window=c)["M"], memory(p, lambda t, j: 1 / c, c), ANALYTIC
    )


@pytest.mark.clause("WINDOW-2", "CASE-6")
def test_a_weight_table_of_another_width_is_refused():
    with pytest.raises(
        CaseError, match=r"in/window_weights: shape \(6, 3\) makes c 3, but window makes it 4"
    ):
        case("omega", drawn(window=3), BARE, window=4)


def token_case(kind, parameters, *, T=5, c=3, H=2, seed=4, **header):
    """A case at level token of the bare rule, with fixed numbers as gates."""
    random = np.random.default_rng(seed)
    p = {"x": random.standard_normal((1, T, 4))}
    for name, d in (("W_K", 3), ("W_V", 2), ("W_Q", 3)):
        p[f"param/{name}"] = random.standard_normal((H, d, 4)) / 2
    for gate in ("retain", "momentum", "step_size"):
        p |= {f"param/W_{gate}": np.zeros((H, 1, 5)), f"param/b_{gate}": np.full((H, 1), 0.3)}
    p |= {"M0": random.standard_normal((1, H, 2, 3)), "S0": random.standard_normal((1, H, 2, 3))}
    return p | {f"param/{name}": value for name, value in parameters.items()}, {
        "level": "token",
        "window": c,
        "window_weights": kind,
        **header,
    }


def head(p, h, T=5):
    """One head of it as keys, values and gates."""
    x = p["x"][0]
    made = {"k": x @ p["param/W_K"][h].T, "v": x @ p["param/W_V"][h].T}
    made |= {
        "retain": np.full(T, sigmoid(0.3)),
        "momentum": np.full(T, sigmoid(0.3)),
        "step_size": np.full(T, np.log(1 + np.exp(0.3))),
    }
    return made | {name: p[name][0, h] for name in ("M0", "S0")}


GATE = {"window_W1": (2, 3, 4), "window_b1": (2, 3), "window_W2": (2, 3), "window_b2": (2,)}
SHAPES = {"softmax": {"window_logits": (2, 3)}, "gate": GATE}


def parameters(*kinds, seed=5):
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal(shape)
        for kind in kinds
        for name, shape in SHAPES.get(kind, {}).items()
    }


def token_gate(p, h, i):
    hidden = p["param/window_W1"][h] @ p["x"][0, i] + p["param/window_b1"][h]
    return sigmoid(p["param/window_W2"][h] @ (hidden * sigmoid(hidden)) + p["param/window_b2"][h])


def softmax(p, h, j):
    return np.exp(p["param/window_logits"][h, j]) / sum(
        np.exp(p["param/window_logits"][h, i]) for i in range(3)
    )


KINDS = {
    "uniform": ({"kind": "uniform"}, (), lambda p, h, t, j: 1 / 3),
    "ones": ({"kind": "ones"}, (), lambda p, h, t, j: 1.0),
    "decay": ({"kind": "decay", "base": 0.6}, (), lambda p, h, t, j: 0.6**j),
    "softmax": ({"kind": "softmax"}, ("softmax",), lambda p, h, t, j: softmax(p, h, j)),
    "gate": ({"kind": "gate"}, ("gate",), lambda p, h, t, j: token_gate(p, h, t - j)),
    "product": (
        {
            "kind": "product",
            "of": [{"kind": "decay", "base": 0.6}, {"kind": "softmax"}, {"kind": "gate"}],
        },
        ("softmax", "gate"),
        lambda p, h, t, j: 0.6**j * softmax(p, h, j) * token_gate(p, h, t - j),
    ),
    "product of the same": (
        {
            "kind": "product",
            "of": [
                {"kind": "gate"},
                {
                    "kind": "product",
                    "of": [{"kind": "gate"}, {"kind": "softmax"}, {"kind": "softmax"}],
                },
            ],
        },
        ("softmax", "gate"),
        lambda p, h, t, j: token_gate(p, h, t - j) ** 2 * softmax(p, h, j) ** 2,
    ),
    "product of one": ({"kind": "product", "of": [{"kind": "ones"}]}, (), lambda p, h, t, j: 1.0),
}


@pytest.mark.clause("WINDOW-3", "WINDOW-4", "WINDOW-5", "WINDOW-6", "WINDOW-7", "CONV-28", "CASE-9")
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_weights_is_its_formula(name):
    kind, needed, weight = KINDS[name]
    p, header = token_case(kind, parameters(*needed))
    found = results("omega", p, BARE, **header)["M"]
    for h in range(2):
        assert_close(
            f"head {h}",
            found[0, h],
            memory(head(p, h), lambda t, j, h=h: weight(p, h, t, j), 3),
            ANALYTIC,
        )


@pytest.mark.clause("WINDOW-3", "CONV-28")
def test_level_token_without_a_kind_is_uniform():
    p, header = token_case({"kind": "uniform"}, {})
    want = results("omega", p, BARE, **header)["y"]
    del header["window_weights"]
    assert_close("y", results("omega", p, BARE, **header)["y"], want, EXACT)


@pytest.mark.clause("WINDOW-4")
@pytest.mark.parametrize("base", [0.0, -0.5, 1.5])
def test_a_decay_base_lies_above_zero_and_at_most_at_one(base):
    with pytest.raises(CaseError, match=r"window_weights.*base: must be .*, found"):
        case(
            "omega",
            token_case({}, {})[0],
            BARE,
            level="token",
            window=3,
            window_weights={"kind": "decay", "base": base},
        )
    for legal in (1e-3, 1.0):
        assert window.Decay(base=legal).base == legal


@pytest.mark.clause("WINDOW-4")
def test_decay_is_not_normalised():
    assert_close(
        "weights",
        window.by_lag(window.Decay(base=0.5), {}, window=4, heads=1)[0, 0, 0],
        np.array([1.0, 0.5, 0.25, 0.125]),
        EXACT,
    )


@pytest.mark.clause("WINDOW-5")
def test_softmax_sums_to_one_over_all_lags_at_every_time():
    logits = np.random.default_rng(0).standard_normal((2, 5))
    weights = window.by_lag(window.Softmax(), {"window_logits": logits}, window=5, heads=2)
    assert weights.shape == (1, 2, 1, 5)
    assert_close("sum", weights.sum(axis=-1), np.ones((1, 2, 1)), ANALYTIC)
    assert_close(
        "ratio",
        weights[0, 1, 0, 3] / weights[0, 1, 0, 0],
        np.exp(logits[1, 3] - logits[1, 0]),
        ANALYTIC,
    )


@pytest.mark.clause("WINDOW-6")
def test_a_token_keeps_its_gate_at_every_lag_and_a_missing_token_has_none():
    weights = window.gate_by_lag(np.array([1.0, 2.0, 3.0, 4.0]), window=3, before=np.array([9.0]))
    assert_close(
        "weights",
        weights,
        np.array([[1.0, 9.0, 0.0], [2.0, 1.0, 9.0], [3.0, 2.0, 1.0], [4.0, 3.0, 2.0]]),
        EXACT,
    )
    assert_close(
        "alone", window.gate_by_lag(np.array([1.0, 2.0]), window=1), np.array([[1.0], [2.0]]), EXACT
    )


@pytest.mark.clause("WINDOW-6")
@pytest.mark.parametrize("c", [1, 3, 7])
def test_gates_by_lag_pull_back_as_the_sum_over_the_windows_of_a_token(c):
    draw = np.random.default_rng(3)
    gate, before, g = (
        draw.uniform(size=(2, 5)),
        draw.uniform(size=(2, 2)),
        draw.standard_normal((2, 5, c)),
    )
    held = before[..., max(0, 3 - c) :]
    _, pull = vjp(lambda gate, held: window.gate_by_lag(gate, window=c, before=held), gate, held)
    row = np.concatenate([np.zeros((2, max(0, c - 3))), held, gate], axis=-1)
    bar = np.zeros_like(row)
    for t in range(5):
        for j in range(c):
            bar[:, c - 1 + t - j] += g[:, t, j]
    for name, got, want in zip(
        ("gate", "before"),
        pull(g),
        (bar[:, c - 1 :], bar[:, c - 1 - held.shape[-1] : c - 1]),
        strict=True,
    ):
        assert_close(name, got, want, ANALYTIC)
    assert_close("complex", pull(1j * g)[0], 1j * bar[:, c - 1 :], ANALYTIC)


@pytest.mark.clause("WINDOW-6")
@pytest.mark.host("arrays of NumPy alone can be protected")
def test_gates_by_lag_refuse_writing_where_one_number_stands_in_several_places():
    gate = np.ones(4)
    for c in (1, 3):
        with pytest.raises(ValueError, match="read-only"):
            window.gate_by_lag(gate, window=c)[0, 0] = 7.0
    assert gate.flags.writeable


@pytest.mark.clause("WINDOW-6")
def test_the_second_derivative_of_gates_by_lag_is_a_complex_step_of_the_first():
    gate, direction = np.random.default_rng(4).uniform(size=(2, 6))

    def first(gate):
        return grad(lambda u: ops.sum(window.gate_by_lag(u, window=3) ** 3.0))(gate)

    second = grad(
        lambda u: ops.sum(
            grad(lambda w: ops.sum(window.gate_by_lag(w, window=3) ** 3.0))(u) * direction
        )
    )(gate)
    assert_close("second", second, first(gate + 1e-30j * direction).imag / 1e-30, ANALYTIC)


@pytest.mark.clause("WINDOW-6", "WINDOW-15")
def test_given_gates_are_the_weights_of_their_tokens():
    gate, before = np.random.default_rng(1).uniform(0.2, 0.8, 6), earlier(2, gate=True)
    p = without(drawn(window=3, seed=6), "window_weights")
    table = np.array(
        [
            [gate[t - j] if j <= t else before["window_gate_before"][2 + t - j] for j in range(3)]
            for t in range(6)
        ]
    )
    found = results("omega", p | before | {"window_gate": gate}, BARE, window=3)
    want = results(
        "omega",
        p | without(before, "window_gate_before") | {"window_weights": table},
        BARE,
        window=3,
    )
    for name in ("y", "M", "S"):
        assert_close(name, found[name], want[name], EXACT)


@pytest.mark.clause("WINDOW-6", "WINDOW-15", "CONV-34")
def test_initial_tokens_bring_their_gates_where_tokens_do_and_only_there():
    random = np.random.default_rng(3)
    initial = {
        "window_k": random.standard_normal((1, 2, 2, 3)),
        "window_v": random.standard_normal((1, 2, 2, 2)),
    }
    before = {"window_gate_before": random.uniform(0.2, 0.8, (1, 2, 2))}
    product = {"kind": "product", "of": [{"kind": "ones"}, {"kind": "gate"}]}
    for kind in ({"kind": "gate"}, product):
        p, header = token_case(kind, parameters("gate"))
        found = results("omega", p | initial | before, BARE, **header)["y"]
        assert_differs("y", results("omega", p, BARE, **header)["y"], found, 1e-2)
        with pytest.raises(CaseError, match="in/window_gate_before: missing"):
            case("omega", p | initial, BARE, **header)
    p, header = token_case({"kind": "product", "of": [{"kind": "ones"}, {"kind": "uniform"}]}, {})
    with pytest.raises(
        CaseError,
        match="in/window_gate_before: not part of this case: no token brings a weight here",
    ):
        case("omega", p | initial | before, BARE, **header)


@pytest.mark.clause("WINDOW-7")
def test_a_product_of_nothing_is_refused():
    with pytest.raises(CaseError, match="of: a product needs at least one kind"):
        case(
            "omega",
            token_case({}, {})[0],
            BARE,
            level="token",
            window=3,
            window_weights={"kind": "product", "of": []},
        )


@pytest.mark.clause("WINDOW-8")
def test_under_truncate_a_lag_without_a_token_contributes_nothing_and_the_others_stay():
    p = drawn(window=8, seed=7)
    assert_close(
        "M",
        results("omega", p, BARE, window=8)["M"],
        memory(p, lambda t, j: p["window_weights"][t, j], 8),
        ANALYTIC,
    )
    absent = p | {
        "window_weights": np.where(np.arange(8) > np.arange(6)[:, None], 1e6, p["window_weights"])
    }
    assert_close(
        "y",
        results("omega", absent, BARE, window=8)["y"],
        results("omega", p, BARE, window=8)["y"],
        EXACT,
    )


@pytest.mark.clause("WINDOW-9", "CONV-15")
@pytest.mark.parametrize("T", [3, 6])
def test_renormalise_multiplies_by_the_sum_of_all_over_the_sum_of_the_present(T):
    p = drawn(T=T, window=4, seed=8)

    def weight(t, j):
        present = [p["window_weights"][t, i] for i in range(4) if i <= t]
        return p["window_weights"][t, j] * sum(p["window_weights"][t]) / sum(present)

    assert_close(
        "M",
        results("omega", p, {**BARE, "window_edge": "renormalise"}, window=4)["M"],
        memory(p, weight, 4),
        ANALYTIC,
    )


@pytest.mark.clause("WINDOW-9")
def test_renormalised_by_hand():
    weights, exists = (
        np.array([[1.0, 2.0, 5.0], [1.0, -1.0, 3.0], [2.0, 4.0, 2.0]]),
        np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], bool),
    )
    # 8/1; sum 0: factor 1; all present: 8/8
    want = np.array([[8.0, 16.0, 40.0], [1.0, -1.0, 3.0], [2.0, 4.0, 2.0]])
    assert_close("weights", window.renormalised(weights, exists), want, EXACT)


@pytest.mark.clause("WINDOW-9")
def test_a_factor_with_denominator_zero_is_one():
    p = drawn(window=2, seed=9)
    p["window_weights"][0] = [0.0, 5.0]
    found = results("omega", p, {**BARE, "window_edge": "renormalise"}, window=2)
    assert_close("y", found["y"], results("omega", p, BARE, window=2)["y"], EXACT)


@pytest.mark.clause("WINDOW-9", "WINDOW-12")
def test_tokens_dropped_by_a_boundary_still_exist():
    p = drawn(T=4, window=3, seed=10)
    axes = {
        **BARE,
        "reference": "chunk_start",
        "window_at_boundary": "cut",
        "window_edge": "renormalise",
    }
    M, S, start = p["M0"], p["S0"], p["M0"]
    for t in range(4):
        start = M if t % 2 == 0 else start
        g = np.zeros((3, 4))
        for j in range(t % 2 + 1):  # the lags of the current span
            # cut or not
            factor = sum(p["window_weights"][t]) / sum(p["window_weights"][t, : min(3, t + 1)])
            g += (
                factor
                * p["window_weights"][t, j]
                * np.outer(start @ p["k"][t - j] - p["v"][t - j], p["k"][t - j])
            )
        S = p["momentum"][t] * S + p["step_size"][t] * g
        M = p["retain"][t] * M - S
    assert_close("M", results("omega", p, axes, window=3, span=2)["M"], M, ANALYTIC)


@pytest.mark.clause("WINDOW-9", "WINDOW-15", "WINDOW-16")
def test_initial_tokens_exist_and_tokens_before_a_reset_do_not():
    p = drawn(window=4, seed=11)
    axes = {**BARE, "window_edge": "renormalise"}
    full = p | earlier(3)
    assert_close(
        "full",
        results("omega", full, axes, window=4)["y"],
        results("omega", full, BARE, window=4)["y"],
        reordered(24),
    )
    packed = full | {"reset": np.arange(6) == 2}
    alone = {name: value[2:] if len(value) == 6 else value for name, value in p.items()}
    assert_close(
        "y",
        results("omega", packed, axes, window=4)["y"][2:],
        results("omega", alone, axes, window=4)["y"],
        EXACT,
    )


@pytest.mark.clause("WINDOW-9", "CONV-15", "CONV-3")
@pytest.mark.parametrize("reset", [False, True])
def test_with_a_gate_per_token_the_factor_is_one(reset):
    p = without(drawn(window=4, seed=12), "window_weights") | {
        "window_gate": np.random.default_rng(2).uniform(0.2, 0.8, 6)
    }
    p |= {"reset": np.arange(6) == 3} if reset else {}
    axes = {**BARE, "window_edge": "renormalise"}
    assert_close(
        "y",
        results("omega", p, axes, window=4)["y"],
        results("omega", p, BARE, window=4)["y"],
        reordered(24),
    )
    assert case("omega", p, axes, window=4).void.keys() == {"window_edge"}


@pytest.mark.clause("WINDOW-9", "CONV-15", "CONV-28")
def test_a_product_with_a_gate_is_not_renormalised():
    kind = {"kind": "product", "of": [{"kind": "decay", "base": 0.6}, {"kind": "gate"}]}
    p, header = token_case(kind, parameters("gate"))
    found, want = (
        results("omega", p, {**BARE, "window_edge": edge}, **header)["y"]
        for edge in ("renormalise", "truncate")
    )
    assert_close("y", found, want, reordered(24))
    assert "window_edge" in case("omega", p, {**BARE, "window_edge": "renormalise"}, **header).void
    p, header = token_case({"kind": "decay", "base": 0.6}, {})
    found, want = (
        results("omega", p, {**BARE, "window_edge": edge}, **header)["y"]
        for edge in ("renormalise", "truncate")
    )
    assert_differs("without a gate", found, want, 1e-2)
    assert (
        "window_edge" not in case("omega", p, {**BARE, "window_edge": "renormalise"}, **header).void
    )


@pytest.mark.clause("WINDOW-9", "CONV-15")
def test_under_momentum_then_window_the_edge_is_void():
    p = drawn(window=4, seed=13)
    axes = {**BARE, "order": "momentum_then_window", "window_edge": "renormalise"}
    assert_close(
        "y",
        results("omega", p, axes, window=4)["y"],
        results("omega", p, {**axes, "window_edge": "truncate"}, window=4)["y"],
        EXACT,
    )
    assert "window_edge" in case("omega", p, axes, window=4).void
