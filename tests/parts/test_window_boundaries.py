"""The window at the boundary of a span, at the start and at a reset: WINDOW-10 to WINDOW-17."""

import numpy as np
import pytest

from atlas_ref import CaseError, evaluate, make
from atlas_ref.certify import certify
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.replay.trace import trace
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.sequences import case, drawn, earlier, results, without
from tests.support.strategies import header_of
from tests.truth import literal

BARE = {"newton_schulz": "none"}
FROZEN = {**BARE, "reference": "chunk_start"}


def rows(gate, matrix):
    return np.reshape(gate, (-1, 1)) * matrix


def memories(
    p, boundary, *, c, span, decay="after_error", phase=0, initial=None, reference="chunk_start"
):
    """M_T and S_T under a frozen reference: each older token as the clause of `boundary` says."""
    n = len(initial["window_k"]) if initial else 0
    keys = np.concatenate([initial["window_k"], p["k"]]) if n else p["k"]
    values = np.concatenate([initial["window_v"], p["v"]]) if n else p["v"]
    arrived = list(initial.get("window_residual", [None] * n)) if n else []
    M, S, start, position = p["M0"], p["S0"], p.get("M_ref"), phase
    for t in range(len(p["k"])):
        if start is None or (reference == "chunk_start" and position == 0):
            start = M
        active = p["active"][t] if "active" in p else True
        retain = p["retain"][t] if active else 1.0
        R = rows(retain, start) if decay == "before_error" else start
        i = n + t
        arrived.append(R @ keys[i] - values[i])
        if active:
            g = np.zeros((3, 4))
            for j in range(min(c, i + 1)):
                e = R @ keys[i - j] - values[i - j]
                if j > position:  # of an older span
                    e = {"recompute": e, "cut": 0 * e, "carry": arrived[i - j]}[boundary]
                g += p["window_weights"][t, j] * np.outer(e, keys[i - j])
            S = rows(p["momentum"][t], S) + rows(p["step_size"][t], g)
            M = rows(retain, M) - S
        position = position + 1 if reference == "call_start" else (position + 1) % span
    return M, S


@pytest.mark.clause("WINDOW-10", "WINDOW-11", "WINDOW-12", "WINDOW-13", "CONV-14", "CONV-5")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
@pytest.mark.parametrize("boundary", ["recompute", "cut", "carry"])
@pytest.mark.parametrize(("c", "span"), [(3, 2), (2, 3), (5, 2), (3, 1)])
def test_older_tokens_contribute_what_the_boundary_says(boundary, decay, c, span, per_dimension):
    p = drawn(T=7, window=c, per_dimension=per_dimension, seed=1)
    M, S = memories(p, boundary, c=c, span=span, decay=decay)
    found = results(
        "omega", p, {**FROZEN, "decay": decay, "window_at_boundary": boundary}, window=c, span=span
    )
    assert_close("M", found["M"], M, ANALYTIC)
    assert_close("S", found["S"], S, ANALYTIC)


@pytest.mark.clause("WINDOW-10", "WINDOW-13", "WINDOW-15", "CONV-30", "CONV-34")
@pytest.mark.parametrize("phase", [0, 1, 2, 3])
@pytest.mark.parametrize("boundary", ["recompute", "cut", "carry"])
def test_an_initial_token_belongs_to_the_current_span_where_its_lag_reaches(boundary, phase):
    p, initial = drawn(T=6, window=4, seed=2), earlier(3, residual=boundary == "carry")
    p["M_ref"] = np.random.default_rng(0).standard_normal((3, 4))
    M, S = memories(p, boundary, c=4, span=4, phase=phase, initial=initial)
    found = results(
        "omega",
        p | initial,
        {**FROZEN, "window_at_boundary": boundary},
        window=4,
        span=4,
        phase=phase,
    )
    assert_close("M", found["M"], M, ANALYTIC)
    assert_close("S", found["S"], S, ANALYTIC)


@pytest.mark.clause("WINDOW-10", "WINDOW-13", "CONV-12")
@pytest.mark.parametrize("boundary", ["cut", "carry"])
def test_under_call_start_only_initial_tokens_are_older(boundary):
    p, initial = drawn(T=6, window=4, seed=3), earlier(2, residual=boundary == "carry")
    M, S = memories(p, boundary, c=4, span=None, initial=initial, reference="call_start")
    found = results(
        "omega",
        p | initial,
        {**BARE, "reference": "call_start", "window_at_boundary": boundary},
        window=4,
    )
    assert_close("M", found["M"], M, ANALYTIC)
    assert_close("S", found["S"], S, ANALYTIC)


@pytest.mark.clause("WINDOW-10")
def test_membership_by_hand():
    # span 2, c = 3, numbers. M_ref: 1 for tokens 0, 1; M_2 for tokens 2, 3. All k = 1, v = 0,
    # weights 1, step 1, retain 1, no momentum. t0: M = 1 - 1 = 0. t1: both lags current: M = 0 - 2
    # = -2. t2: M_ref = -2, lag 0 current, lags 1, 2 older: recompute -2 - 3(-2) = 4; cut -2 - (-2)
    # = 0; carry -2 - (-2 + 1 + 1) = -2
    p = {
        "k": np.ones((3, 1)),
        "v": np.zeros((3, 1)),
        "q": np.ones((3, 1)),
        "M0": [[1.0]],
        "retain": np.ones(3),
        "step_size": np.ones(3),
    }
    p["window_weights"] = np.ones((3, 3))
    for boundary, y in (("recompute", 4.0), ("cut", 0.0), ("carry", -2.0)):
        found = results("omega", p, {**FROZEN, "window_at_boundary": boundary}, window=3, span=2)[
            "y"
        ]
        assert_close(boundary, found[:, 0], np.array([0.0, -2.0, y]), EXACT)


@pytest.mark.clause("WINDOW-11", "CONV-46")
def test_with_span_one_recompute_is_the_running_reference():
    p = drawn(window=3, seed=4)
    found, want = results("omega", p, FROZEN, window=3, span=1), results("omega", p, BARE, window=3)
    for name in ("y", "M", "S"):
        assert_close(name, found[name], want[name], EXACT)
    for boundary in ("cut", "carry"):
        other = results("omega", p, {**FROZEN, "window_at_boundary": boundary}, window=3, span=1)
        assert_differs(boundary, other["M"], want["M"], 1e-2)


@pytest.mark.clause("WINDOW-10", "WINDOW-12")
def test_the_window_is_not_emptied_at_a_boundary():
    p = drawn(T=5, window=4, seed=5)
    cut = results("omega", p, {**FROZEN, "window_at_boundary": "cut"}, window=4, span=2)
    assert_close("keys", cut["window_k"], p["k"][-3:], EXACT)


@pytest.mark.clause("WINDOW-12")
def test_under_cut_the_weights_of_the_others_stay():
    p = drawn(window=3, seed=6)
    axes = {**FROZEN, "window_at_boundary": "cut"}
    poisoned = dict(p, window_weights=p["window_weights"].copy())
    for t in range(6):
        poisoned["window_weights"][t, t % 2 + 1 :] = 50.0  # weights of older tokens
    assert_close(
        "y",
        results("omega", poisoned, axes, window=3, span=2)["y"],
        results("omega", p, axes, window=3, span=2)["y"],
        EXACT,
    )


@pytest.mark.clause("WINDOW-13", "CONV-14", "CONV-32")
def test_an_inactive_token_stores_its_residual_with_retain_one():
    p = drawn(T=6, window=4, seed=7) | {"active": np.array([True, False, True, True, False, True])}
    axes = {**FROZEN, "window_at_boundary": "carry", "decay": "before_error"}
    M, S = memories(p, "carry", c=4, span=2, decay="before_error")
    found = results("omega", p, axes, window=4, span=2)
    assert_close("M", found["M"], M, ANALYTIC)
    assert_close("S", found["S"], S, ANALYTIC)
    assert_close(
        "residual", found["window_residual"][1], found["M_ref"] @ p["k"][4] - p["v"][4], ANALYTIC
    )


@pytest.mark.clause("WINDOW-13", "CONV-14")
def test_under_carry_initial_tokens_need_their_residuals():
    with pytest.raises(CaseError, match="in/window_residual: missing"):
        case(
            "omega",
            drawn(window=3) | earlier(2),
            {**FROZEN, "window_at_boundary": "carry"},
            window=3,
            span=2,
        )
    with pytest.raises(
        CaseError,
        match="in/window_residual: not part of this case: it belongs to window_at_boundary carry",
    ):
        case("omega", drawn(window=3) | earlier(2, residual=True), FROZEN, window=3, span=2)


VOID = {
    "running": ({}, {"window": 3}, {}),
    "zero": ({"reference": "zero"}, {"window": 3}, {}),
    "one token": ({"reference": "chunk_start"}, {"window": 1, "span": 2}, {}),
    "momentum_then_window": (
        {"reference": "chunk_start", "order": "momentum_then_window"},
        {"window": 3, "span": 2},
        {},
    ),
    "call_start": ({"reference": "call_start"}, {"window": 3}, {}),
    "span of the call": ({"reference": "chunk_start"}, {"window": 3, "span": 6}, {}),
    "span of the call, counted from one": (
        {"reference": "chunk_start", "span_origin": "multiple"},
        {"window": 3, "span": 7},
        {},
    ),
    "span of the call, phase": (
        {"reference": "chunk_start"},
        {"window": 3, "span": 8, "phase": 2},
        {},
    ),
    "span of a packed call": (
        {"reference": "chunk_start"},
        {"window": 3, "span": 6},
        {"reset": np.arange(6) == 2},
    ),
}
NOT_VOID = {
    "frozen": ({"reference": "chunk_start"}, {"window": 3, "span": 5}, {}),
    "counted from one": (
        {"reference": "chunk_start", "span_origin": "multiple"},
        {"window": 3, "span": 6},
        {},
    ),
    "phase": ({"reference": "chunk_start"}, {"window": 3, "span": 7, "phase": 2}, {}),
    "initial tokens": ({"reference": "call_start"}, {"window": 3}, earlier(2)),
}


@pytest.mark.clause("WINDOW-14", "CONV-3", "CONV-14")
@pytest.mark.parametrize("name", VOID)
def test_where_the_boundary_does_not_matter_it_is_listed(name):
    axes, header, more = VOID[name]
    p = drawn(window=header["window"], seed=8) | more
    want = results("omega", p, BARE | axes, **header)["y"]
    for boundary in ("cut", "carry"):
        chosen = {**BARE, **axes, "window_at_boundary": boundary}
        assert_close(boundary, results("omega", p, chosen, **header)["y"], want, EXACT)
        assert "window_at_boundary" in case("omega", p, chosen, **header).void


@pytest.mark.clause("WINDOW-14", "CONV-3", "CONV-14")
@pytest.mark.parametrize("name", NOT_VOID)
def test_where_the_boundary_matters_it_is_not_listed(name):
    axes, header, more = NOT_VOID[name]
    p = drawn(window=header["window"], seed=9) | more
    chosen = {**BARE, **axes, "window_at_boundary": "cut"}
    assert_differs(
        "y",
        results("omega", p, chosen, **header)["y"],
        results("omega", p, BARE | axes, **header)["y"],
        1e-3,
    )
    assert "window_at_boundary" not in case("omega", p, chosen, **header).void


@pytest.mark.clause("WINDOW-15", "CONV-34", "CONV-24")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_initial_pairs_are_ordinary_tokens_of_earlier_lags(n):
    # a call over n silent tokens more, whose memory stands still, is the same as starting with them
    initial, p = earlier(n), drawn(window=4, seed=10)
    header = {"window": 4, "feature_map": {"kind": "elementwise", "degree": 2}}
    axes = {**BARE, "k_norm": "l2"}  # given keys are raw
    longer = {
        name: value if len(value) == 3 else np.concatenate([value[:n], value])
        for name, value in p.items()
    }
    longer |= {
        "k": np.concatenate([initial["window_k"], p["k"]]),
        "v": np.concatenate([initial["window_v"], p["v"]]),
    }
    longer["active"] = np.arange(6 + n) >= n
    found, want = (
        results("omega", p | initial, axes, **header),
        results("omega", longer, axes, **header),
    )
    assert_close("y", found["y"], want["y"][n:], EXACT)
    assert_close("M", found["M"], want["M"], EXACT)


@pytest.mark.clause("WINDOW-15")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (earlier(3), "3 initial window tokens, at most window - 1 = 2 fit"),
        (without(earlier(2), "window_v"), "in/window_v: missing"),
    ],
)
def test_at_most_c_minus_one_pairs_fit_and_both_halves_are_needed(given, message):
    with pytest.raises(CaseError, match=message):
        case("omega", drawn(window=3) | given, BARE, window=3)


@pytest.mark.clause("WINDOW-15", "CONV-34", "OMEGA-11")
@pytest.mark.parametrize("n", [1, 2])
def test_initial_momenta_stand_in_the_window_and_pairs_are_void(n):
    p = drawn(window=3, seed=11)
    given = np.random.default_rng(3).standard_normal((n, 3, 4))
    M, Z, past = p["M0"], p["S0"], list(given)
    for t in range(6):
        Z = p["momentum"][t] * Z + p["step_size"][t] * np.outer(
            M @ p["k"][t] - p["v"][t], p["k"][t]
        )
        past.append(Z)
        M = p["retain"][t] * M - sum(
            p["window_weights"][t, j] * past[-1 - j] for j in range(min(3, len(past)))
        )
    axes = {**BARE, "order": "momentum_then_window"}
    found = results("omega", p | {"window_momentum": given}, axes, window=3)
    assert_close("M", found["M"], M, ANALYTIC)
    pairs = results("omega", p | {"window_momentum": given} | earlier(2), axes, window=3)
    assert_close("pairs", pairs["M"], found["M"], EXACT)


@pytest.mark.clause("WINDOW-16", "CONV-33")
@pytest.mark.parametrize("boundary", ["recompute", "carry", "cut"])
@pytest.mark.parametrize("weights", ["table", "gate"])
@pytest.mark.parametrize("order", ["window_then_momentum", "momentum_then_window"])
def test_after_a_reset_the_window_is_empty_and_initial_contents_do_not_return(
    order, weights, boundary
):
    p = drawn(T=8, window=4, seed=12)
    if weights == "gate":
        p = without(p, "window_weights") | {
            "window_gate": np.random.default_rng(4).uniform(0.2, 0.8, 8)
        }
    carries = boundary == "carry" and order == "window_then_momentum"
    initial = earlier(3, residual=carries, gate=weights == "gate")
    if order == "momentum_then_window":
        initial["window_momentum"] = np.random.default_rng(5).standard_normal((3, 3, 4))
    axes = {**FROZEN, "order": order, "window_at_boundary": boundary}
    packed = results("omega", p | initial | {"reset": np.arange(8) == 3}, axes, window=4, span=2)
    alone = {name: value[3:] if len(value) == 8 else value for name, value in p.items()}
    want = results("omega", alone, axes, window=4, span=2)
    assert_close("y", packed["y"][3:], want["y"], EXACT)
    for name in set(packed) - {"y"}:
        assert_close(name, np.asarray(packed[name]), np.asarray(want[name]), EXACT)


@pytest.mark.clause("WINDOW-17", "OMEGA-3")
def test_inactive_tokens_enter_the_window():
    p = drawn(T=4, window=3, seed=13) | {"active": np.zeros(4, bool)}
    assert_close("keys", results("omega", p, BARE, window=3)["window_k"], p["k"][-2:], EXACT)


def after_a_reset_at_a_silent_token(reference):
    """A case without momentum gate whose initial momenta a reset drops before an inactive token."""
    p = without(drawn(T=6, window=3, seed=14, lead=(1,)), "momentum", "S0")
    draw = np.random.default_rng(15)
    p |= {
        "window_momentum": draw.standard_normal((1, 2, 3, 4)),
        "y_bar": draw.standard_normal(p["v"].shape),
    }
    p |= {"active": np.arange(6) != 3, "reset": np.arange(6) == 3}
    axes = {**BARE, "reference": reference, "order": "momentum_then_window"}
    return case("omega", p, axes, window=3, span=2)


@pytest.mark.clause("WINDOW-16", "CONV-33", "GATES-4")
@pytest.mark.parametrize(
    ("form", "reference"),
    [
        ("sequential", "running"),
        ("exact", "running"),
        ("kernel", "running"),
        ("sequential", "chunk_start"),
        ("chunkwise", "chunk_start"),
    ],
)
def test_a_reset_drops_the_initial_momentum_that_an_inactive_token_would_repeat(form, reference):
    packed = after_a_reset_at_a_silent_token(reference)
    found = evaluate(packed, grad=True, form=form).tensors
    header = header_of(packed)
    want = literal.evaluate(header, packed.inputs)
    for name in ("out/y", "out/M", "out/window_momentum"):
        assert_close(name, found[name], want[name], ANALYTIC)
    given = packed.inputs["in/window_momentum"]
    direction = np.random.default_rng(16).standard_normal(given.shape)
    moved = {**packed.inputs, "in/window_momentum": given + 1e-30j * direction}
    slope = (
        np.imag(np.sum(literal.evaluate(header, moved)["out/y"] * packed.inputs["in/y_bar"]))
        / 1e-30
    )
    assert_close("gradient", np.sum(found["grad/window_momentum"] * direction), slope, ANALYTIC)


@pytest.mark.clause("WINDOW-16", "CONV-33", "TOL-3", "REPLAY-1")
@pytest.mark.parametrize("reference", ["running", "chunk_start"])
def test_the_other_evaluations_drop_it_as_well(reference):
    packed = after_a_reset_at_a_silent_token(reference)
    want = literal.evaluate(header_of(packed), packed.inputs)
    plain = ensemble.evaluate(packed, convert(packed, "float64"), MEMBERS[0])
    for name in ("out/y", "out/M"):
        assert_close(f"plain {name}", plain[name], want[name], ANALYTIC)
        certified = certify(packed).values[name]
        assert_close(f"certified {name}", certified, want[name], ANALYTIC)
    traced = trace(packed)["trace/M"][:, -1]
    assert_close("trace", traced, want["out/M"], ANALYTIC)


@pytest.mark.clause("CONV-34", "TOL-3")
def test_a_window_of_no_initial_momenta_is_a_window_without_any():
    packed = after_a_reset_at_a_silent_token("running")
    empty = {**packed.inputs, "in/window_momentum": np.zeros((1, 0, 3, 4))}
    plain = make(packed.header.plain(), empty)
    found = ensemble.evaluate(plain, convert(plain, "float64"), MEMBERS[0])
    want = literal.evaluate(header_of(packed), without(empty, "in/window_momentum"))
    assert_close("M", found["out/M"], want["out/M"], ANALYTIC)


@pytest.mark.clause("OMEGA-11", "CONV-16", "CONV-8")
@pytest.mark.parametrize("sign", ["plus", "minus"])
def test_without_a_momentum_gate_a_silent_first_token_repeats_the_newest_given_momentum(sign):
    p = without(drawn(T=4, window=3, seed=17), "momentum", "S0") | {"active": np.arange(4) > 0}
    given = np.random.default_rng(18).standard_normal((2, 3, 4))
    into = 1.0 if sign == "plus" else -1.0
    axes = {**BARE, "order": "momentum_then_window", "momentum_sign": sign}
    for initial in (list(given), []):
        M, past = p["M0"], [*initial, initial[-1] if initial else np.zeros((3, 4))]
        for t in range(1, 4):
            e = M @ p["k"][t] - p["v"][t]
            past.append(into * p["step_size"][t] * np.outer(e, p["k"][t]))
            P = sum(p["window_weights"][t, j] * past[-1 - j] for j in range(min(3, len(past))))
            M = p["retain"][t] * M - into * P
        more = {"window_momentum": given} if initial else {}
        assert_close("M", results("omega", p | more, axes, window=3)["M"], M, ANALYTIC)


@pytest.mark.clause("CONV-33", "WINDOW-16")
@pytest.mark.parametrize("order", ["window_then_momentum", "momentum_then_window"])
def test_a_reset_before_the_first_token_leaves_initial_contents_without_effect(order):
    p = drawn(T=5, window=3, seed=19)
    axes = {**FROZEN, "order": order}
    initial = earlier(2) | {"M_ref": 0.5 * p["M0"]}
    if order == "momentum_then_window":
        initial["window_momentum"] = np.random.default_rng(20).standard_normal((2, 3, 4))
    fresh = p | {"reset": np.arange(5) == 0}
    want = results("omega", p, axes, window=3, span=2)
    found = results("omega", fresh | initial, axes, window=3, span=2, phase=1)
    assert found.keys() == want.keys()
    for name, value in want.items():
        assert_close(name, np.asarray(found[name]), np.asarray(value), EXACT)
    resumed = results("omega", p | initial, axes, window=3, span=2, phase=1)
    assert_differs("resumed", resumed["y"], want["y"], 1e-3)
