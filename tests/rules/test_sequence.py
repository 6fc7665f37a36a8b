"""Sequences, CONV-27 to CONV-34: leading axes, levels, the order at a token, spans, pulses,
resets.
"""

import numpy as np
import pytest

from atlas_ref import CaseError, types
from atlas_ref.layers import projection
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.sequences import MODULES, case, drawn, earlier, results, without

BARE = {"newton_schulz": "none"}
RULES = ("omega", "titans_lmm", "delta", "hebbian")


def bare(rule, **axes):
    return (BARE if rule == "omega" else {}) | axes


@pytest.mark.clause("CONV-27")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("per_dimension", [False, True])
def test_every_leading_index_is_a_run_of_its_own(rule, per_dimension):
    window = {"window": 3} if rule == "omega" else {}
    p = drawn(rule, lead=(2, 3), per_dimension=per_dimension, **window)
    result = results(rule, p, **window)
    assert result["y"].shape == (2, 3, 6, 3)
    for index in np.ndindex(2, 3):
        alone = results(rule, {name: value[index] for name, value in p.items()}, **window)
        for name in ("y", "M"):
            assert_close(
                f"{name} {index}",
                result[name][index],
                alone[name],
                reordered(18, amplification=100),
            )


@pytest.mark.clause("CONV-27")
def test_matrices_of_different_leading_indices_never_meet():
    p, other = drawn(lead=(3,), window=2), drawn(lead=(3,), window=2, seed=1)
    changed = {name: np.concatenate([p[name][:1], other[name][1:]]) for name in p}
    assert_close(
        "y",
        results("omega", changed, window=2)["y"][0],
        results("omega", p, window=2)["y"][0],
        EXACT,
    )


@pytest.mark.clause("CONV-27")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"v": np.zeros((1, 6, 3))},
            r"in/v: shape \(1, 6, 3\) makes leading axes \(1,\), but in/k makes it \(2,\)",
        ),
        ({"retain": np.ones(6)}, "in/retain: .*leading axes"),
        ({"retain": np.ones((2, 6, 2))}, "in/retain: .*makes d_out 2"),
        ({"q": np.zeros((2, 5, 4))}, "in/q: .*makes T 5"),
        ({"window_weights": np.zeros((2, 6, 2))}, "in/window_weights: .*makes c 2"),
        ({"active": np.ones((2, 6), bool)}, r"in/active: shape \(2, 6\), expected axes \(T\)"),
        ({"reset": np.ones(5, bool)}, "in/reset: .*makes T 5"),
    ],
)
def test_nothing_is_broadcast(change, message):
    with pytest.raises(CaseError, match=message):
        case("omega", drawn(lead=(2,), window=3) | change, window=3)


@pytest.mark.clause("CONV-27")
@pytest.mark.parametrize(
    ("header", "message"),
    [({"window": 0}, "window: must be at least 1"), ({"span": 0}, "span: must be at least 1")],
)
def test_window_and_span_are_at_least_one(header, message):
    with pytest.raises(CaseError, match=message):
        case("omega", drawn(), **header)


@pytest.mark.clause("CONV-27")
def test_a_call_has_at_least_one_token():
    with pytest.raises(CaseError, match="axis T has size 0, at least 1 is needed"):
        case("omega", drawn(T=0))


@pytest.mark.clause("CONV-28", "CONV-4")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [1, 2])
def test_level_token_is_level_projected_after_the_projections(rule, n):
    random = np.random.default_rng(2)
    T, H, d_in, d_out, d_model = 5, 2, 3, 2, 4
    p = {"x": random.standard_normal((2, T, d_model))}
    for name, d in (("W_K", d_in), ("W_V", d_out), ("W_Q", d_in)):
        p[f"param/{name}"] = random.standard_normal((H, d, d_model)) / 2
    gates = {"hebbian": ["retain"], "delta": ["retain", "step_size"]}.get(
        rule, ["retain", "momentum", "step_size"]
    )
    for gate in gates:
        p |= {
            f"param/W_{gate}": random.standard_normal((H, n, d_in + d_out)) / 3,
            f"param/b_{gate}": random.standard_normal((H, n)),
        }
    p["M0"] = random.standard_normal((2, H, d_out, d_in))
    sequence = {"M0": p["M0"]}
    for name, W in (("k", "W_K"), ("v", "W_V"), ("q", "W_Q")):
        sequence[name] = np.array(
            [[[p[f"param/{W}"][h] @ x for x in p["x"][b]] for h in range(H)] for b in range(2)]
        )
    for gate in gates:
        values = np.zeros((2, H, T, n))
        for b, h, t in np.ndindex(2, H, T):
            z = (
                p[f"param/W_{gate}"][h]
                @ np.concatenate([sequence["k"][b, h, t], sequence["v"][b, h, t]])
                + p[f"param/b_{gate}"][h]
            )
            values[b, h, t] = np.log(1 + np.exp(z)) if gate == "step_size" else 1 / (1 + np.exp(-z))
        sequence[gate] = values if n > 1 else values[..., 0]
    window = {"window": 3} if rule == "omega" else {}
    # at level token the other rules read the gate as what is forgotten
    gate_axis = {} if rule == "omega" else {"gate": "forget"}
    result, want = (
        results(rule, p, level="token", **window),
        results(rule, sequence, gate_axis, **window),
    )
    assert result["y"].shape == (2, H, T, d_out)
    for name in ("y", "M"):
        assert_close(name, result[name], want[name], reordered(20, amplification=500))


@pytest.mark.clause("CONV-28")
@pytest.mark.parametrize("rule", RULES)
def test_steps_one_token_at_a_time_are_the_call(rule):
    module = MODULES[rule]
    config = module.Config(
        d_in=3, d_out=2, d_model=4, heads=2, **({"window": 3} if rule == "omega" else {})
    )
    params, x = projection.init(config, seed=1), np.random.default_rng(3).standard_normal((2, 5, 4))
    state = module.start(config, (2, 2))
    active = np.array([True, True, False, True, True])
    whole, y = projection.run_tokens(module.RULE, config, params, x, state, active=active)
    for t in range(5):
        state, read = projection.step(
            config, params, state, x[:, t], types.Pulse(step=t, active=(bool(active[t]),))
        )
        assert_close(f"y {t}", read, y[:, :, t], reordered(20, amplification=500))
    assert_close("M", state.M, whole.M, reordered(20, amplification=500))


@pytest.mark.clause("CONV-28", "OMEGA-12")
@pytest.mark.parametrize("rule", RULES)
def test_parameters_have_a_head_axis_which_is_one_and_a_gate_per_head_unless_stated(rule):
    module = MODULES[rule]
    for header, heads, gates in (({}, 1, 1), ({"heads": 3, "per_dimension_gates": True}, 3, 3)):
        params = projection.init(module.Config(d_in=4, d_out=3, d_model=5, **header), seed=0)
        assert params.W_K.shape == params.W_Q.shape == (heads, 4, 5)
        assert params.W_V.shape == (heads, 3, 5)
        assert params.gates.retain.W.shape == (heads, gates, 7)


@pytest.mark.clause("CONV-29")
@pytest.mark.parametrize("boundary", ["recompute", "carry"])
def test_a_token_resets_begins_a_span_enters_writes_and_reads_in_this_order(boundary):
    p = drawn(T=7, window=3, seed=4) | {"reset": np.arange(7) == 4, "active": np.arange(7) != 5}
    M, S, start, window, position, y = p["M0"], p["S0"], None, [], 0, []
    for t in range(7):
        if p["reset"][t]:  # 1
            M, S, start, window, position = p["M0"], p["S0"], None, [], 0
        if start is None or position == 0:  # 2
            start = M
        window = [*window, (p["k"][t], p["v"][t], start @ p["k"][t] - p["v"][t])][-3:]  # 3
        if p["active"][t]:  # 4
            g = np.zeros((3, 4))
            for j, (k, v, arrived) in enumerate(reversed(window)):
                e = arrived if boundary == "carry" and j > position else start @ k - v
                g += p["window_weights"][t, j] * np.outer(e, k)
            S = p["momentum"][t] * S + p["step_size"][t] * g
            M = p["retain"][t] * M - S
        y.append(M @ p["q"][t])  # 5
        position = (position + 1) % 3
    axes = {**BARE, "reference": "chunk_start", "window_at_boundary": boundary}
    result = results("omega", p, axes, window=3, span=3)
    assert_close("y", result["y"], np.array(y), ANALYTIC)
    assert result["phase"] == position


def positions(header, axes, T=9, **more):
    """The positions that a call of T tokens passes through, from the phases of calls of 1, 2, ...
    tokens.
    """
    phases = []
    for t in range(1, T + 1):
        p = {
            name: value[:t] if len(value) == T else value
            for name, value in (drawn(T=T) | more).items()
        }
        phases.append(results("omega", p, BARE | axes, **header)["phase"])
    return phases


@pytest.mark.clause("CONV-30", "CONV-13")
@pytest.mark.parametrize(
    ("header", "axes", "p0", "span"),
    [
        ({"span": 4}, {"reference": "chunk_start"}, 0, 4),
        ({"span": 4}, {"reference": "chunk_start", "span_origin": "multiple"}, 1, 4),
        ({"span": 1}, {"reference": "chunk_start", "span_origin": "multiple"}, 0, 1),
        ({"span": 4, "phase": 3}, {"reference": "chunk_start"}, 3, 4),
        ({"span": 4, "phase": 0}, {"reference": "chunk_start", "span_origin": "multiple"}, 0, 4),
        ({"span": 4}, {"read": "chunk_start"}, 0, 4),
        ({}, {"reference": "call_start"}, 0, 100),
        ({"span": 4}, {"reference": "call_start", "span_origin": "multiple"}, 0, 100),
        ({"span": 4, "phase": 7}, {"reference": "call_start"}, 7, 100),
    ],
)
def test_positions_count_tokens_and_wrap_at_the_span(header, axes, p0, span):
    want = [(p0 + t) % span for t in range(1, 10)]
    assert positions(header, axes) == want
    assert positions(header, axes, active=np.arange(9) % 2 == 0) == want  # active or not


@pytest.mark.clause("CONV-30", "CONV-33")
def test_after_a_reset_positions_begin_as_without_phase():
    reset = {"reset": np.arange(9) == 5}
    assert positions({"span": 4, "phase": 3}, {"reference": "chunk_start"}, **reset)[5:] == [
        1,
        2,
        3,
        0,
    ]
    assert positions(
        {"span": 4, "phase": 3}, {"reference": "chunk_start", "span_origin": "multiple"}, **reset
    )[5:] == [2, 3, 0, 1]
    assert positions({"phase": 3}, {"reference": "call_start"}, **reset) == [
        4,
        5,
        6,
        7,
        8,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.clause("CONV-30")
@pytest.mark.parametrize(
    ("axes", "phase", "message"),
    [
        ({"reference": "chunk_start"}, -1, "phase: must be at least 0, found -1"),
        ({"reference": "chunk_start"}, 4, "phase: must be below the span 4, found 4"),
        ({"read": "chunk_start"}, 4, "phase: must be below the span 4, found 4"),
    ],
)
def test_a_phase_outside_the_span_is_refused(axes, phase, message):
    with pytest.raises(CaseError, match=message):
        case("omega", drawn(), axes, span=4, phase=phase)


def starts(p, y):
    """For each token the number of the memory of its read: M_0, M_1, ... of one token steps."""
    memories = [p["M0"]]
    for t in range(len(y)):
        token = {
            name: value[: t + 1] if len(value) == len(y) else value for name, value in p.items()
        }
        memories.append(results("hebbian", token)["M"])
    reads = [
        [np.linalg.norm(M @ q - each) < 1e-12 for M in memories]
        for q, each in zip(p["q"], y, strict=True)
    ]
    return [read.index(True) for read in reads]


@pytest.mark.clause("CONV-31", "CONV-11", "CONV-13")
@pytest.mark.parametrize(
    ("axes", "header", "want"),
    [
        ({}, {"span": 3}, [0, 0, 0, 3, 3, 3, 6, 6]),
        ({"span_origin": "multiple"}, {"span": 3}, [0, 0, 2, 2, 2, 5, 5, 5]),
        ({}, {"span": 3, "phase": 2}, [0, 1, 1, 1, 4, 4, 4, 7]),
        ({"reference": "call_start"}, {"span": 3}, [0] * 8),
        ({"reference": "running"}, {"span": 1}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"reference": "zero"}, {"span": 4}, [0, 0, 0, 0, 4, 4, 4, 4]),
    ],
)
def test_the_memory_of_the_spans_start_is_the_one_before_its_first_token(axes, header, want):
    p = drawn("hebbian", T=8, seed=5)
    assert starts(p, results("hebbian", p, {**axes, "read": "chunk_start"}, **header)["y"]) == want


@pytest.mark.clause("CONV-31", "CONV-32")
def test_an_inactive_token_begins_a_span():
    p = drawn("hebbian", T=8, seed=6) | {"active": np.arange(8) != 3}
    assert starts(p, results("hebbian", p, {"read": "chunk_start"}, span=3)["y"])[3:6] == [3, 3, 3]


@pytest.mark.clause("CONV-31", "CONV-12")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta"])
def test_a_given_reference_serves_until_a_span_begins(rule):
    p, M_ref = drawn(rule, T=4, seed=7), np.random.default_rng(0).standard_normal((3, 4))
    gates = {"step_size": np.ones(4), "retain": np.ones(4)} | (
        {"momentum": np.zeros(4)} if rule != "delta" else {}
    )
    p |= gates

    def loop(reference, refreshed):
        M = p["M0"]
        for t in range(4):
            reference = M if t in refreshed else reference
            M = M - np.outer(reference @ p["k"][t] - p["v"][t], p["k"][t])
        return M

    # the span begins here: M_0 instead of what was given
    for axes, phase, want in (
        ({"reference": "chunk_start"}, 1, loop(M_ref, {2})),
        (
            {"reference": "chunk_start"},
            0,
            loop(M_ref, {0, 3}),
        ),
        ({"reference": "call_start"}, 0, loop(M_ref, set())),
        ({"reference": "call_start"}, 2, loop(M_ref, set())),
    ):
        memory = results(rule, p | {"M_ref": M_ref}, bare(rule, **axes), span=3, phase=phase)["M"]
        assert_close(f"{axes} phase {phase}", memory, want, ANALYTIC)
    without_it = results(rule, p, bare(rule, reference="chunk_start"), span=3, phase=1)["M"]
    assert_close("not given", without_it, loop(p["M0"], {2}), ANALYTIC)


@pytest.mark.clause("CONV-31", "CONV-11")
@pytest.mark.parametrize("reference", ["running", "zero", "chunk_start", "call_start"])
def test_a_given_reference_is_read_until_a_span_begins(reference):
    p, M_ref = drawn("hebbian", T=4, seed=7), np.random.default_rng(0).standard_normal((3, 4))
    reads = results(
        "hebbian",
        p | {"M_ref": M_ref},
        {"reference": reference, "read": "chunk_start"},
        span=3,
        phase=1,
    )["y"]
    assert_close("first span", reads[:2], p["q"][:2] @ M_ref.T, ANALYTIC)
    M = results(
        "hebbian", {name: value[:2] if len(value) == 4 else value for name, value in p.items()}
    )["M"]
    assert_close(
        "next span", reads[2:], p["q"][2:] @ (M_ref if reference == "call_start" else M).T, ANALYTIC
    )


@pytest.mark.clause("CONV-31")
def test_a_given_reference_is_refused_where_nothing_reads_it():
    with pytest.raises(
        CaseError,
        match="in/M_ref: not part of this case: the reference is not frozen and no read needs the "
        "start of a span",
    ):
        case("delta", drawn("delta") | {"M_ref": np.zeros((3, 4))})


@pytest.mark.clause("CONV-32", "WINDOW-17")
@pytest.mark.parametrize("rule", RULES)
def test_silent_tokens_change_nothing_but_the_window(rule):
    p = drawn(rule, T=7, seed=8)
    active = np.array([True, False, True, True, False, False, True])
    shorter = {name: value[active] if len(value) == 7 else value for name, value in p.items()}
    result, want = (
        results(rule, p | {"active": active}, bare(rule)),
        results(rule, shorter, bare(rule)),
    )
    assert_close("M", result["M"], want["M"], EXACT)
    assert_close("y", result["y"][active], want["y"], EXACT)
    for t in (1, 4, 5):
        assert_close(
            f"y {t}",
            result["y"][t],
            results(
                rule,
                {name: value[:t] if len(value) == 7 else value for name, value in p.items()}
                | {"active": active[:t]},
                bare(rule),
            )["M"]
            @ p["q"][t],
            ANALYTIC,
        )


@pytest.mark.clause("CONV-33")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"reference": "chunk_start"},
        {"reference": "call_start"},
        {"read": "call_end"},
        {"read": "chunk_start"},
    ],
    ids=str,
)
def test_a_packed_sequence_is_a_call_of_its_own(rule, axes):
    window = {"window": 3} if rule == "omega" else {}
    p = drawn(rule, T=9, seed=9, **window)
    header = {"span": 2, **window}
    packed = results(rule, p | {"reset": np.isin(np.arange(9), [4, 6])}, axes, **header)
    parts = [
        {name: value[a:b] if len(value) == 9 else value for name, value in p.items()}
        for a, b in ((0, 4), (4, 6), (6, 9))
    ]
    alone = [results(rule, part, axes, **header) for part in parts]
    assert_close("y", packed["y"], np.concatenate([each["y"] for each in alone]), EXACT)
    for name in set(packed) - {"y"}:
        # final states of the last one
        assert_close(name, np.asarray(packed[name]), np.asarray(alone[-1][name]), EXACT)


@pytest.mark.clause("CONV-33")
def test_a_reset_forgets_phase_reference_and_initial_contents():
    p = (
        drawn(T=8, window=3, seed=10)
        | earlier(2, residual=True)
        | {"M_ref": np.ones((3, 4)), "reset": np.arange(8) == 3}
    )
    axes = {**BARE, "reference": "chunk_start", "window_at_boundary": "carry"}
    packed = results("omega", p, axes, window=3, span=4, phase=2)["y"][3:]
    fresh = {name: value[3:] for name, value in without(p, "reset").items() if len(value) == 8} | {
        "M0": p["M0"],
        "S0": p["S0"],
    }
    assert_close("y", packed, results("omega", fresh, axes, window=3, span=4)["y"], EXACT)


@pytest.mark.clause("CONV-34")
@pytest.mark.parametrize("rule", RULES)
def test_states_are_zero_unless_given(rule):
    p = without(drawn(rule, seed=11), "M0", "S0")
    zero = {
        name: np.zeros((3, 4))
        for name in ("M0", "S0")
        if name == "M0" or rule in ("omega", "titans_lmm")
    }
    assert_close("y", results(rule, p)["y"], results(rule, p | zero)["y"], EXACT)


@pytest.mark.clause("CONV-34")
def test_pair_i_of_n_has_lag_n_minus_i_at_the_first_token():
    p = without(drawn(T=1, window=4, seed=12), "momentum", "S0") | (initial := earlier(3))
    g = p["window_weights"][0, 0] * np.outer(p["M0"] @ p["k"][0] - p["v"][0], p["k"][0])
    for i in range(3):
        k, v = initial["window_k"][i], initial["window_v"][i]
        g = g + p["window_weights"][0, 3 - i] * np.outer(p["M0"] @ k - v, k)
    assert_close(
        "M",
        results("omega", p, BARE, window=4)["M"],
        p["retain"][0] * p["M0"] - p["step_size"][0] * g,
        ANALYTIC,
    )


@pytest.mark.clause("CONV-29", "CONV-31")
def test_each_span_sees_the_memory_that_the_one_before_left():
    p = drawn("delta", T=6, seed=17)
    result = results("delta", p, {"reference": "chunk_start"}, span=3)
    first = {name: value[:3] if len(value) == 6 else value for name, value in p.items()}
    start = results("delta", first, {"reference": "call_start"})["M"]
    second = {name: value[3:] for name, value in p.items() if len(value) == 6} | {"M0": start}
    assert_close(
        "y", result["y"][3:], results("delta", second, {"reference": "call_start"})["y"], EXACT
    )
    assert_differs("y", result["y"], results("delta", p, {"reference": "call_start"})["y"], 1e-3)
