"""Settings that cannot be told apart on some data, and data that separate them: CONV-39 to
CONV-51.
"""

import numpy as np
import pytest

from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import drawn, earlier, results, without

BARE = {"newton_schulz": "none"}
PLAIN = reordered(72)
ARGUMENTS = [
    ("window_then_momentum", name)
    for name in ("none", "S", "nesterov", "written_back", "accumulated")
]
ARGUMENTS += [("momentum_then_window", name) for name in ("none", "S", "nesterov", "accumulated")]
MASKS = {"active": np.array([1, 1, 0, 1, 1, 1], bool), "reset": np.array([0, 0, 0, 0, 1, 0], bool)}


def sequence(**more):
    """A window of three, an inactive token and a reset."""
    return drawn(window=3, **more) | MASKS


def same(one, other, tolerance, *names):
    for name in names or ("y", "M"):
        assert_close(name, other[name], one[name], tolerance)


def differ(one, other, least=1e-3):
    assert_differs("y", other["y"], one["y"], least)


def pair(p, first, second, *, base=BARE, rule="omega", other=None, **header):
    """Results under two settings, the second on `other` inputs where given."""
    header = {"window": 3, "span": 2, **header} if rule == "omega" else {"span": 2, **header}
    return results(rule, p, {**base, **first}, **header), results(
        rule, p if other is None else other, {**base, **second}, **header
    )


@pytest.mark.clause("CONV-39", "CONV-40")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta", "hebbian"])
def test_forget_is_retain_where_every_gate_of_an_active_token_is_one_half(rule):
    base = BARE if rule == "omega" else {}
    p = drawn(rule, window=3, seed=1) | MASKS
    p = without(p, *([] if rule == "omega" else ["window_weights"]))
    half = p | {"retain": np.where(MASKS["active"], 0.5, p["retain"])}
    same(*pair(half, {"gate": "retain"}, {"gate": "forget"}, base=base, rule=rule), EXACT)
    differ(*pair(p, {"gate": "retain"}, {"gate": "forget"}, base=base, rule=rule))
    ones = p | {"retain": np.ones(6)}
    same(
        *pair(ones, {}, {"gate": "none"}, base=base, rule=rule, other=without(ones, "retain")),
        EXACT,
    )


@pytest.mark.clause("CONV-41")
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"reference": "chunk_start", "window_at_boundary": "carry"},
        {"order": "momentum_then_window"},
    ],
    ids=str,
)
def test_decay_is_invisible_where_nothing_decays(axes):
    p = sequence(seed=2)
    one = p | {"retain": np.where(MASKS["active"], 1.0, p["retain"])}
    same(*pair(one, axes, {**axes, "decay": "before_error"}), EXACT)
    differ(*pair(p, axes, {**axes, "decay": "before_error"}))


@pytest.mark.clause("CONV-41", "CONV-5")
def test_decay_is_invisible_under_a_reference_of_zero():
    p = sequence(seed=3)
    same(*pair(p, {"reference": "zero"}, {"reference": "zero", "decay": "before_error"}), EXACT)
    from_zero = without(p, "M0")
    call = {"reference": "call_start"}
    same(*pair(from_zero, call, {**call, "decay": "before_error"}), EXACT)
    running = pair(from_zero, {}, {"decay": "before_error"})
    # zero only before the first write
    assert_close("first token", running[1]["y"][0], running[0]["y"][0], EXACT)
    differ(*running)


@pytest.mark.clause("CONV-42")
@pytest.mark.parametrize("per_dimension", [False, True])
def test_momentum_and_memory_agree_without_momentum(per_dimension):
    p = sequence(seed=4, per_dimension=per_dimension)
    still = p | {"momentum": 0 * p["momentum"]}
    same(*pair(still, {"rate": "momentum"}, {"rate": "memory"}), PLAIN)
    first = {"order": "momentum_then_window"}
    differ(*pair(still, {**first, "rate": "momentum"}, {**first, "rate": "memory"}))
    one = still | {"window_weights": np.ones((6, 1))}
    same(*pair(one, {**first, "rate": "momentum"}, {**first, "rate": "memory"}, window=1), PLAIN)
    differ(*pair(p, {"rate": "momentum"}, {"rate": "memory"}))


@pytest.mark.clause("CONV-42")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"order": "momentum_then_window"},
        {"reference": "chunk_start", "window_at_boundary": "carry"},
    ],
    ids=str,
)
def test_momentum_and_memory_agree_for_a_constant_step_from_zero(axes, per_dimension):
    p = sequence(seed=5, per_dimension=per_dimension)
    constant = p | {"step_size": np.broadcast_to(p["step_size"][0], p["step_size"].shape)}
    one, other = pair(
        without(constant, "S0"), {**axes, "rate": "momentum"}, {**axes, "rate": "memory"}
    )
    same(one, other, PLAIN)
    assert_close("S", np.reshape(constant["step_size"][0], (-1, 1)) * other["S"], one["S"], PLAIN)
    differ(*pair(constant, {**axes, "rate": "momentum"}, {**axes, "rate": "memory"}))
    if axes.get("order"):
        momenta = {"window_momentum": np.random.default_rng(0).standard_normal((2, 3, 4))}
        differ(
            *pair(
                without(constant, "S0") | momenta,
                {**axes, "rate": "momentum"},
                {**axes, "rate": "memory"},
            )
        )


@pytest.mark.clause("CONV-43")
@pytest.mark.parametrize(
    ("rule", "base"),
    [("omega", BARE), ("omega", {}), ("titans_lmm", {}), ("delta", {})],
    ids=["omega", "newton_schulz", "titans_lmm", "delta"],
)
def test_rates_coincide_where_their_factors_do(rule, base):
    p = drawn(rule, window=3, split=True, seed=6)
    p = p if rule == "omega" else without(p, "window_weights")
    ones = np.ones(6)
    h = without(p, "step_size_memory")
    neither = without(h, "step_size")
    for split, rate, single in (
        (p | {"step_size_memory": p["step_size"]}, "both", h),
        (p | {"step_size_memory": ones}, "momentum", h),
        (p | {"step_size": ones}, "memory", h | {"step_size": p["step_size_memory"]}),
        (p | {"step_size": ones, "step_size_memory": ones}, "none", neither),
    ):
        same(
            *pair(split, {"rate": "split"}, {"rate": rate}, base=base, rule=rule, other=single),
            ANALYTIC,
        )
    for rate in ("momentum", "memory", "both"):
        same(
            *pair(
                h | {"step_size": ones},
                {"rate": rate},
                {"rate": "none"},
                base=base,
                rule=rule,
                other=neither,
            ),
            EXACT,
        )


@pytest.mark.clause("CONV-44", "TITANS-8")
@pytest.mark.parametrize(("order", "argument"), ARGUMENTS)
@pytest.mark.parametrize("direction", ["descent", "ascent"])
def test_the_sign_of_the_momentum_is_invisible_from_zero(argument, order, direction):
    base = {
        "newton_schulz": "none" if argument == "none" else {"argument": argument},
        "order": order,
        "direction": direction,
    }
    p = sequence(seed=7)
    one, other = pair(without(p, "S0"), {}, {"momentum_sign": "minus"}, base=base)
    same(one, other, EXACT)
    assert_close("S", -other["S"], one["S"], EXACT)
    differ(*pair(p, {}, {"momentum_sign": "minus"}, base=base))


@pytest.mark.clause("CONV-45")
@pytest.mark.parametrize("settings", ["none", {}], ids=["bare", "newton_schulz"])
def test_from_zero_the_reference_of_the_call_is_zero(settings):
    base, p = {"newton_schulz": settings}, sequence(seed=8)
    call, zero = {"reference": "call_start"}, {"reference": "zero"}
    start = without(p, "M0")
    same(*pair(start, call, zero, base=base), EXACT, "y", "M", "S")
    same(*pair(start | earlier(2), call, zero, base=base), EXACT)  # recompute
    differ(*pair(p, call, zero, base=base))  # M_0
    given = start | {"M_ref": np.ones((3, 4))}
    differ(*pair(given, call, zero, base=base, other=start))
    cut = {**call, "window_at_boundary": "cut"}
    same(*pair(start, cut, zero, base=base), EXACT)
    differ(*pair(start | earlier(2), cut, zero, base=base))
    differ(
        *pair(
            start | earlier(2, residual=True),
            {**call, "window_at_boundary": "carry"},
            zero,
            base=base,
            other=start | earlier(2),
        )
    )
    differ(
        *pair(start, {**call, "read": "chunk_start"}, {**zero, "read": "chunk_start"}, base=base)
    )


@pytest.mark.clause("CONV-45", "HEBBIAN-9")
def test_from_zero_without_error_correction_it_is_decayed_linear_attention_with_momentum():
    p = without(drawn("titans_lmm", seed=9), "M0", "S0")
    S, M, y = np.zeros((3, 4)), np.zeros((3, 4)), []
    for t in range(6):
        S = p["momentum"][t] * S - p["step_size"][t] * np.outer(p["v"][t], p["k"][t])
        M = p["retain"][t] * M - S
        y.append(M @ p["q"][t])
    assert_close(
        "y", results("titans_lmm", p, {"reference": "call_start"})["y"], np.array(y), ANALYTIC
    )


@pytest.mark.clause("CONV-46")
@pytest.mark.parametrize("settings", ["none", {}], ids=["bare", "newton_schulz"])
def test_spans_of_one_token_are_the_running_reference(settings):
    base, p = {"newton_schulz": settings}, sequence(seed=10)
    chunk, running = {"reference": "chunk_start"}, {"reference": "running"}
    same(*pair(p, chunk, running, base=base, span=1), EXACT, "y", "M", "S")
    differ(*pair(p, chunk, running, base=base, span=2))
    for boundary in ("cut", "carry"):
        at = {"window_at_boundary": boundary}
        differ(*pair(p, chunk | at, running | at, base=base, span=1))
        one = without(p, "window_weights")
        same(*pair(one, chunk | at, running | at, base=base, span=1, window=1), EXACT)
        first = {**at, "order": "momentum_then_window"}
        same(*pair(p, chunk | first, running | first, base=base, span=1), EXACT)


@pytest.mark.clause("CONV-47")
@pytest.mark.parametrize("boundary", ["recompute", "cut", "carry"])
def test_a_span_over_the_call_is_call_start(boundary):
    at = {"window_at_boundary": boundary}
    chunk, call = {"reference": "chunk_start", **at}, {"reference": "call_start", **at}
    p = drawn(window=3, seed=11)
    history = p | earlier(2, residual=boundary == "carry")
    for tensors in (p, history):
        same(*pair(tensors, chunk, call, span=6), EXACT)
        differ(*pair(tensors, chunk, call, span=5))
        differ(*pair(tensors, chunk | {"span_origin": "multiple"}, call, span=6))
        phased = tensors | {"M_ref": np.ones((3, 4))}
        same(*pair(phased, chunk, call, span=8, phase=2), EXACT)
        differ(*pair(phased, chunk, call, span=7, phase=2))
        # a given reference is replaced at p(0) = 0
        differ(*pair(phased, chunk, call, span=8, phase=0))
    same(*pair(p, chunk | {"span_origin": "multiple"}, call, span=7), EXACT)
    packed = p | {"reset": MASKS["reset"]}  # sequences of four and two
    same(*pair(packed, chunk, call, span=4), EXACT)
    differ(*pair(packed, chunk, call, span=3))


@pytest.mark.clause("CONV-47")
def test_counted_from_one_an_initial_token_stands_in_another_span():
    p = drawn(window=3, seed=11)
    chunk, call = (
        {"reference": "chunk_start", "span_origin": "multiple"},
        {"reference": "call_start"},
    )
    same(*pair(p | earlier(1), chunk, call, span=7), EXACT)  # recompute
    for boundary in ("cut", "carry"):
        at = {"window_at_boundary": boundary}
        differ(*pair(p | earlier(1, residual=boundary == "carry"), chunk | at, call | at, span=7))


@pytest.mark.clause("CONV-48")
@pytest.mark.parametrize(
    "settings", ["none", {}, {"argument": "nesterov"}, {"argument": "accumulated"}], ids=str
)
def test_with_one_token_of_weight_one_the_order_is_void(settings):
    base, p = {"newton_schulz": settings}, without(sequence(seed=12), "window_weights")
    window, first = {}, {"order": "momentum_then_window"}
    same(*pair(p, window, first, base=base, window=1), EXACT)
    differ(*pair(sequence(seed=12), window, first, base=base))


@pytest.mark.clause("CONV-48")
def test_with_one_token_of_another_weight_the_order_shows_unless_momentum_is_zero_or_the_weight_constant_from_zero():
    p, first = without(sequence(seed=13), "window_weights"), {"order": "momentum_then_window"}
    varying = p | {"window_weights": np.linspace(0.4, 0.9, 6)[:, None]}
    constant = p | {"window_weights": np.full((6, 1), 0.7)}
    differ(*pair(varying, {}, first, window=1))
    differ(*pair(constant, {}, first, window=1))
    same(*pair(varying | {"momentum": np.zeros(6)}, {}, first, window=1), PLAIN)
    same(*pair(without(constant, "S0"), {}, first, window=1), PLAIN)
    differ(*pair(without(varying, "S0"), {}, first, window=1))
    still = varying | {"momentum": np.zeros(6)}
    # nesterov's g_t has no weight, and eps and scale see that
    for argument, equal in (
        ("S", True),
        ("nesterov", False),
    ):
        base = {"newton_schulz": {"argument": argument, "eps": 0.1}}
        if equal:
            same(*pair(still, {}, first, base=base, window=1), reordered(72, amplification=500))
        else:
            differ(*pair(still, {}, first, base=base, window=1))


@pytest.mark.clause("CONV-49")
def test_written_back_is_void_without_momentum():
    p = sequence(seed=14)
    still = p | {"momentum": np.zeros(6)}
    base, back = (
        {"newton_schulz": {"argument": "S"}},
        {"newton_schulz": {"argument": "written_back"}},
    )
    one, other = pair(still, {}, back, base=base)
    same(one, other, EXACT)
    assert_differs("S", other["S"], one["S"], 1e-2)
    differ(*pair(p, {}, back, base=base))


@pytest.mark.clause("CONV-50")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta"])
def test_two_outputs_hide_the_mean(rule):
    base = BARE if rule == "omega" else {}
    for d_out, tell in ((2, same), (3, None)):
        p = drawn(rule, d_out=d_out, seed=15)
        found = pair(
            p, {"gradient_scale": 1}, {"gradient_scale": "2/d_out"}, base=base, rule=rule, window=1
        )
        same(*found, EXACT) if tell else differ(*found)


@pytest.mark.clause("CONV-50")
@pytest.mark.parametrize(("d_in", "d_out"), [(4, 3), (3, 3), (3, 4)])
def test_wide_matrices_hide_the_root_and_no_matrix_shows_the_transpose(d_in, d_out):
    p = drawn(d_in=d_in, d_out=d_out, seed=16)
    root = pair(
        p, {"newton_schulz": {"scale": "1"}}, {"newton_schulz": {"scale": "sqrt"}}, window=1
    )
    same(*root, EXACT) if d_out <= d_in else differ(*root)
    turned = pair(
        p,
        {"newton_schulz": {"transpose": "tall"}},
        {"newton_schulz": {"transpose": "never"}},
        window=1,
    )
    same(*turned, reordered(72, amplification=500))


@pytest.mark.clause("CONV-51", "CONV-25")
def test_layout_is_invisible_in_reads_where_matrices_are_symmetric_or_zero():
    p = drawn(d_in=3, d_out=3, seed=17)
    symmetric = p | {name: p[name] + p[name].T for name in ("M0", "S0")}
    plain, turned = {"layout": "plain"}, {"layout": "transposed"}
    for tensors in (symmetric, without(p, "M0", "S0")):
        one, other = pair(tensors, plain, turned, base={}, window=1)
        same(one, other, EXACT, "y")
        assert_close("M", other["M"], one["M"].T, EXACT)
        assert_close("S", other["S"], one["S"].T, EXACT)
    differ(*pair(p, plain, turned, base={}, window=1))
    symmetric_momenta = {"window_momentum": np.stack([symmetric["S0"], np.eye(3)])}
    momenta = {"window_momentum": np.random.default_rng(1).standard_normal((2, 3, 3))}
    first = {"order": "momentum_then_window"}
    same(*pair(symmetric | symmetric_momenta, plain | first, turned | first), EXACT, "y")
    differ(*pair(symmetric | momenta, plain | first, turned | first))
    frozen = {"reference": "call_start"}
    differ(*pair(symmetric | {"M_ref": p["M0"]}, plain | frozen, turned | frozen, window=1))


@pytest.mark.clause("CONV-51")
def test_a_rectangular_matrix_in_the_wrong_layout_does_not_fit():
    p = drawn(seed=17)
    with pytest.raises(ValueError, match=r"in/M0: shape \(3, 4\) makes d_"):
        results("omega", p, {"layout": "transposed"})
