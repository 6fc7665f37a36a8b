"""The state between calls, with nothing missing and nothing superfluous: CONV-37 and CONV-38."""

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.rules import omega, sequence
from tests.support.close import EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import drawn, earlier, results, split_call, times, without

BARE = {"newton_schulz": "none"}
RULES = ("omega", "titans_lmm", "delta", "hebbian")


def same(one, two, tolerance=EXACT):
    assert one.keys() == two.keys()
    for name in one:
        assert_close(name, np.asarray(two[name]), np.asarray(one[name]), tolerance)


@pytest.mark.clause("CONV-37")
@pytest.mark.parametrize(
    ("rule", "axes", "header", "states"),
    [
        ("hebbian", {}, {}, set()),
        ("hebbian", {"read": "chunk_start"}, {"span": 2}, {"M_ref", "phase"}),
        ("delta", {}, {}, set()),
        ("delta", {"reference": "call_start"}, {}, {"M_ref", "phase"}),
        ("titans_lmm", {}, {}, {"S"}),
        ("omega", BARE, {}, {"S"}),
        ("omega", BARE, {"window": 3}, {"S", "window_k", "window_v"}),
        (
            "omega",
            {**BARE, "reference": "chunk_start"},
            {"window": 3, "span": 2},
            {"S", "window_k", "window_v", "M_ref", "phase"},
        ),
        (
            "omega",
            {**BARE, "reference": "chunk_start", "window_at_boundary": "carry"},
            {"window": 3, "span": 2},
            {"S", "window_k", "window_v", "window_residual", "M_ref", "phase"},
        ),
        (
            "omega",
            {**BARE, "order": "momentum_then_window"},
            {"window": 3},
            {"S", "window_k", "window_v", "window_momentum"},
        ),
    ],
)
def test_the_state_is_what_the_table_says(rule, axes, header, states):
    assert (
        results(
            rule,
            drawn(rule, **({"window": header["window"]} if "window" in header else {})),
            axes,
            **header,
        ).keys()
        == {"y", "M"} | states
    )


@pytest.mark.clause("CONV-37")
def test_the_state_holds_the_gates_of_tokens_that_bring_their_weight_and_no_momentum_where_there_is_none():
    p = without(drawn(window=3), "window_weights") | {"window_gate": np.full(6, 0.5)}
    assert results("omega", p, BARE, window=3).keys() == {
        "y",
        "M",
        "S",
        "window_k",
        "window_v",
        "window_gate_before",
    }
    assert results("omega", without(p, "momentum", "S0", "window_gate"), BARE).keys() == {"y", "M"}


@pytest.mark.clause("CONV-37")
@pytest.mark.parametrize("T", [1, 2, 5])
def test_fewer_pairs_than_c_minus_one_are_carried_while_fewer_exist(T):
    p = drawn(T=T, window=4)
    assert len(results("omega", p, BARE, window=4)["window_k"]) == min(T, 3)
    assert len(results("omega", p | earlier(1), BARE, window=4)["window_k"]) == min(T + 1, 3)
    momenta = results("omega", p, {**BARE, "order": "momentum_then_window"}, window=4)[
        "window_momentum"
    ]
    assert len(momenta) == min(T, 3)


@pytest.mark.clause("CONV-37")
@pytest.mark.parametrize("rule", RULES)
def test_nothing_else_of_the_past_influences_the_future(rule):
    window = {"window": 3} if rule == "omega" else {}
    p, other = drawn(rule, T=6, seed=1, **window), drawn(rule, T=3, seed=2, **window)
    first = results(rule, {**p, **times(p, 0, 3)}, BARE if rule == "omega" else "spec", **window)
    carried = {name: value for name, value in first.items() if name.startswith("window_")}
    state = {f"{name}0": first[name] for name in ("M", "S") if name in first}
    result = results(
        rule, {**times(p, 3, 6), **state, **carried}, BARE if rule == "omega" else "spec", **window
    )
    # another past that ends in the same state: the window's pairs are set by two silent tokens
    if rule == "omega":
        past = {
            **times(other, 0, 3),
            "k": np.concatenate([other["k"][:1], p["k"][1:3]]),
            "v": np.concatenate([other["v"][:1], p["v"][1:3]]),
        }
    else:
        past = times(other, 0, 3)
    whole = {name: np.concatenate([past[name], value]) for name, value in times(p, 3, 6).items()}
    second = results(
        rule,
        {**whole, **state, "active": np.arange(6) > 2},
        BARE if rule == "omega" else "spec",
        **window,
    )
    assert_close("y", second["y"][3:], result["y"], EXACT)
    assert_close("M", second["M"], result["M"], EXACT)


@pytest.mark.clause("CONV-38", "OMEGA-28")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("at", [1, 4, 6])
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"reference": "chunk_start", "decay": "before_error"},
        {"reference": "call_start", "read": "before"},
        {"read": "chunk_start", "k_norm": "l2"},
    ],
    ids=str,
)
def test_a_split_of_many_heads_equals_one_call_to_the_bit(rule, axes, at):
    window = {"window": 3} if rule == "omega" else {}
    p = drawn(rule, T=8, lead=(2,), per_dimension=True, seed=3, **window)
    header = {"span": 3, **window}
    one = results(rule, p, axes, **header)
    first = {name: value if name in ("M0", "S0") else value[:, :at] for name, value in p.items()}
    first = results(rule, first, axes, **header)
    state = {f"{name}0": first[name] for name in ("M", "S") if name in first}
    state |= {
        name: value
        for name, value in first.items()
        if name.startswith("window_") or name == "M_ref"
    }
    rest = {name: value[:, at:] for name, value in p.items() if name not in ("M0", "S0")}
    header |= {"phase": first["phase"]} if "phase" in first else {}
    second = results(rule, rest | state, axes, **header)
    assert_close("y", np.concatenate([first["y"], second["y"]], axis=1), one["y"], EXACT)
    same(
        {name: value for name, value in one.items() if name != "y"},
        {name: value for name, value in second.items() if name != "y"},
    )


@pytest.mark.clause("CONV-38", "CASE-13")
@pytest.mark.parametrize(
    "feature_map",
    [{"kind": "random_fourier"}, {"kind": "polynomial", "degree": 2}, {"kind": "elu"}],
    ids=str,
)
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_split_behind_a_feature_map_equals_one_call_up_to_the_products_of_a_matrix_map(
    feature_map, at
):
    case = new(
        Request(
            rule="omega",
            tokens=8,
            heads=1,
            window=3,
            span=3,
            feature_map=feature_map,
            convention={"reference": "chunk_start"},
        )
    )
    p = {
        name.removeprefix("in/"): value if name.startswith("in/phi") else value[0]
        for name, value in case.inputs.items()
    }
    header, axes = (
        {"window": 3, "span": 3, "feature_map": feature_map},
        {"reference": "chunk_start"},
    )
    tolerance = (
        reordered(8, amplification=500) if feature_map["kind"] == "random_fourier" else EXACT
    )
    same(results("omega", p, axes, **header), split_call("omega", p, axes, at, **header), tolerance)


@pytest.mark.clause("CONV-38", "CASE-13")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_split_at_level_token_equals_one_call_up_to_the_projections(rule, at):
    weights = (
        {"kind": "product", "of": [{"kind": "softmax"}, {"kind": "gate"}]}
        if rule == "omega"
        else {}
    )
    request = Request(
        rule=rule,
        level="token",
        tokens=8,
        window=3 if rule == "omega" else 1,
        window_weights=weights,
    )
    case = new(request)
    header = {key: getattr(case.header, key) for key in ("level", "window")}
    header |= {"window_weights": weights} if weights else {}
    inputs = dict(case.inputs)
    call = {"schema": 1, "rule": rule, **header}

    def part(start, stop, states):
        tensors = {**inputs, **states, "in/x": inputs["in/x"][:, start:stop]}
        return atlas_ref.evaluate(atlas_ref.make(call, tensors)).tensors

    one, first = part(0, 8, {}), part(0, at, {})
    resumed = {
        "in/" + name.removeprefix("out/") + ("0" if name in ("out/M", "out/S") else ""): value
        for name, value in first.items()
    }
    del resumed["in/y"]
    second = part(at, 8, resumed)
    assert_close(
        "y",
        np.concatenate([first["out/y"], second["out/y"]], axis=-2),
        one["out/y"],
        reordered(48, amplification=500),
    )
    for name in set(one) - {"out/y"}:
        assert_close(name, second[name], one[name], reordered(48, amplification=500))


@pytest.mark.clause("CONV-37", "CONV-38", "WINDOW-16", "WINDOW-25")
@pytest.mark.parametrize("at", [4, 5, 7])
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"window_edge": "renormalise"},
        {"order": "momentum_then_window"},
        {"reference": "chunk_start", "window_at_boundary": "carry"},
        {"reference": "call_start", "window_at_boundary": "cut"},
    ],
    ids=str,
)
@pytest.mark.parametrize("weights", ["table", "gate", "both"])
def test_a_state_in_python_continues_the_call(weights, axes, at):
    p = without(drawn(T=9, window=4, seed=5), "M0", "S0") | {"reset": np.arange(9) == 3}
    p |= (
        {} if weights == "table" else {"window_gate": np.random.default_rng(0).uniform(0.2, 0.8, 9)}
    )
    p = without(p, "window_weights") if weights == "gate" else p
    config = omega.Config(d_in=4, d_out=3, window=4, span=2, convention=BARE | axes)

    def call(state, start, stop):
        return sequence.run(omega.RULE, config, sequence.Tokens(**times(p, start, stop)), state)

    whole, y = call(omega.start(config), 0, 9)
    middle, first = call(omega.start(config), 0, at)
    end, second = call(middle, at, 9)
    assert_close("y", np.concatenate([first, second]), y, EXACT)
    assert end == whole


@pytest.mark.clause("CONV-33", "CONV-38")
@pytest.mark.parametrize("rule", RULES)
def test_a_reset_restores_the_first_state_of_its_own_call(rule):
    p = drawn(rule, T=8, seed=6) | {"reset": np.arange(8) == 5}
    one, two = results(rule, p), split_call(rule, p, "spec", 3)
    assert_close("until the reset", two["y"][:5], one["y"][:5], EXACT)
    assert_differs("after it", two["y"][5:], one["y"][5:], 1e-2)
    state = {
        f"{name}0": each
        for name, each in results(rule, {**p, **times(p, 0, 3)}).items()
        if name in "MS"
    }
    after = results(rule, without(p, "reset") | state | times(without(p, "reset"), 5, 8))
    assert_close("from the state of the cut", two["y"][5:], after["y"], EXACT)


@pytest.mark.clause("CONV-38")
def test_call_start_and_call_end_are_about_the_call():
    p = drawn("delta", seed=4)
    one = results("delta", p, {"reference": "call_start"})
    first = results("delta", {**p, **times(p, 0, 3)}, {"reference": "call_start"})
    second = {**times(p, 3, 6), "M0": first["M"]}
    with_reference = results(
        "delta", second | {"M_ref": first["M_ref"]}, {"reference": "call_start"}
    )
    assert_close("carried reference", with_reference["y"], one["y"][3:], EXACT)
    assert_differs(
        "own reference",
        results("delta", second, {"reference": "call_start"})["y"],
        one["y"][3:],
        1e-3,
    )
    end, split = (
        results("delta", p, {"read": "call_end"}),
        split_call("delta", p, {"read": "call_end"}, 3),
    )
    assert_close("second call", split["y"][3:], end["y"][3:], EXACT)
    assert_differs("first call", split["y"][:3], end["y"][:3], 1e-3)


@pytest.mark.clause("CASE-12")
def test_a_continuation_gets_as_many_tokens_as_the_last_packed_sequence_has():
    for order, names in (
        ("window_then_momentum", ()),
        ("momentum_then_window", ("window_momentum",)),
    ):
        axes = {**BARE, "order": order}
        p = without(drawn(T=4, window=4, seed=7), "window_weights")
        gate = {"window_gate": np.random.default_rng(0).uniform(0.2, 0.8, 4)}
        names = ("window_k", "window_v", "window_gate_before", *names)
        for given, rows in (
            (p | gate, 3),
            (times(p | gate, 0, 2), 2),
            (p | gate | {"reset": np.arange(4) == 3}, 1),
        ):
            found = results("omega", given, axes, window=4)
            assert found.keys() - {"y", "M", "S"} == set(names)
            assert {name: len(found[name]) for name in names} == dict.fromkeys(names, rows)
    one = without(drawn(T=2, window=1, seed=8), "M0", "S0")
    assert results("omega", one, BARE).keys() == {"y", "M", "S"}
    frozen = {"reference": "call_start"}
    assert results("hebbian", drawn("hebbian"), frozen).keys() == {"y", "M"}
    assert results("delta", drawn("delta"), frozen).keys() == {"y", "M", "M_ref", "phase"}
