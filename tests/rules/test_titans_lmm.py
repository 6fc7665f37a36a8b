"""Titans LMM, TITANS-1 to TITANS-16: loops, numbers by hand, and the backward written out."""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import titans_lmm
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs, reordered
from tests.support.counting import counted, multiply_adds
from tests.support.sequences import case, drawn, results, split_call, without

STEP = 1e-30
NAMES = ("k", "v", "q", "retain", "momentum", "step_size", "step_size_memory", "M0", "S0")


def column(gate):
    return np.reshape(gate, (-1, 1))


def references(o, t, M, start):
    """M_ref of token t."""
    if o.get("reference") == "chunk_start":
        return start if t % 2 else M
    return {"call_start": start, "zero": 0 * M}.get(o.get("reference"), M)


def loop(p, o):
    """y, M_T, S_T, and per token (M_{t-1}, S_{t-1}, M_ref, R, e, g, S, M), for spans of 2."""
    M, S, start, record = p["M0"], p["S0"], p["M0"], []
    s = {"2/d_out": 2 / 3}.get(o.get("gradient_scale"), o.get("gradient_scale", 1))
    sign = -1 if o.get("momentum_sign") == "minus" else 1
    into_memory = sign if o.get("direction") == "ascent" else -sign
    for t in range(len(p["k"])):
        before, trace = M, S
        reference = start = references(o, t, M, start)
        R = column(p["retain"][t]) * reference if o.get("decay") == "before_error" else reference
        e = R @ p["k"][t] + (p["v"][t] if o.get("value_sign") == "plus" else -p["v"][t])
        g = s * np.outer(e, p["k"][t])
        h, h_memory = column(p["step_size"][t]), column(p["step_size_memory"][t])
        a, b = {"momentum": (h, 1), "memory": (1, h), "both": (h, h), "split": (h, h_memory)}[
            o.get("rate", "momentum")
        ]
        S = column(p["momentum"][t]) * S + sign * a * g
        M = column(p["retain"][t]) * M + into_memory * b * S
        record.append((before, trace, reference, R, e, g, S, M))
    return {
        "y": np.array([each[-1] @ q for each, q in zip(record, p["q"], strict=True)]),
        "M": M,
        "S": S,
    }, record


def inputs(o, **more):
    surplus = () if o.get("rate") == "split" else ("step_size_memory",)
    p = drawn("titans_lmm", split=True, **more)
    return p, without(p, *surplus)


@pytest.mark.clause("TITANS-1")
def test_memory_and_momentum_have_the_length_of_a_key_and_start_at_zero():
    p = without(drawn("titans_lmm"), "M0", "S0")
    result = results("titans_lmm", p)
    assert result["M"].shape == result["S"].shape == (3, 4)
    zero = {"M0": np.zeros((3, 4)), "S0": np.zeros((3, 4))}
    assert_close("y", result["y"], results("titans_lmm", p | zero)["y"], EXACT)


@pytest.mark.clause("TITANS-1", "CASE-16")
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"window": 2}, "window: titans_lmm looks at one token, found 2"),
        ({"feature_map": {"kind": "elu"}}, "feature_map: titans_lmm has none, found elu"),
        (
            {"convention": {"newton_schulz": {"steps": 3}}},
            "newton_schulz is not part of titans_lmm; only none is possible",
        ),
    ],
)
def test_a_window_a_map_and_newton_schulz_are_refused(header, message):
    with pytest.raises(CaseError, match=message):
        case("titans_lmm", drawn("titans_lmm"), **header)


@pytest.mark.clause("TITANS-2", "TITANS-3", "TITANS-4", "TITANS-6")
def test_two_tokens_by_hand():
    # retain 1/2, momentum 1/2, step 1/10. Token 1: k = 2, v = 1, M = 1, S = 4: e = 1, g = 2, S =
    # 2.2, M = 0.5 - 2.2 = -1.7, y = -3.4 token 2: k = 1, v = 0.3: e = -2, g = -2, S = 1.1 - 0.2 =
    # 0.9, M = -0.85 - 0.9 = -1.75, y = 1.75
    p = {
        "k": [[2.0], [1.0]],
        "v": [[1.0], [0.3]],
        "q": [[2.0], [-1.0]],
        "M0": [[1.0]],
        "S0": [[4.0]],
    }
    result = results(
        "titans_lmm", p | {"retain": [0.5, 0.5], "momentum": [0.5, 0.5], "step_size": [0.1, 0.1]}
    )
    assert_close("y", result["y"], np.array([[-3.4], [1.75]]), ANALYTIC)
    assert_close("S", result["S"], np.array([[0.9]]), ANALYTIC)


@pytest.mark.clause("TITANS-2", "TITANS-3", "TITANS-4", "TITANS-5", "TITANS-6")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize(
    "o",
    [
        {},
        {"decay": "before_error"},
        {"value_sign": "plus"},
        {"gradient_scale": 2},
        {"gradient_scale": "2/d_out"},
        {"momentum_sign": "minus"},
        {"direction": "ascent"},
        {"momentum_sign": "minus", "direction": "ascent"},
        {"rate": "memory"},
        {"rate": "both"},
        {"rate": "split"},
        {"reference": "zero"},
        {"reference": "call_start", "decay": "before_error"},
        {"reference": "chunk_start"},
    ],
    ids=str,
)
def test_the_step_is_the_loop(o, per_dimension):
    p, tensors = inputs(o, per_dimension=per_dimension, seed=1)
    result, (want, _) = results("titans_lmm", tensors, o, span=2), loop(p, o)
    for name in want:
        assert_close(name, result[name], want[name], ANALYTIC)


@pytest.mark.clause("TITANS-2", "TITANS-3", "TITANS-4", "CONV-26")
def test_the_paper_forgets_adds_and_differentiates_the_whole_square():
    p = drawn("titans_lmm", seed=2)
    M, S = p["M0"], p["S0"]
    for t in range(6):
        S = p["momentum"][t] * S - p["step_size"][t] * 2 * np.outer(
            M @ p["k"][t] - p["v"][t], p["k"][t]
        )
        M = (1 - p["retain"][t]) * M + S
    result = results("titans_lmm", p, "titans-paper")
    assert_close("M", result["M"], M, ANALYTIC)
    assert_close("S", result["S"], S, ANALYTIC)


@pytest.mark.clause("TITANS-5")
def test_gates_of_equal_entries_give_the_result_of_the_number():
    p = drawn("titans_lmm", seed=3)
    spread = p | {
        gate: np.repeat(p[gate][:, None], 3, axis=1) for gate in ("retain", "momentum", "step_size")
    }
    assert_close("y", results("titans_lmm", spread)["y"], results("titans_lmm", p)["y"], EXACT)


@pytest.mark.clause("TITANS-7", "CONV-32")
def test_an_inactive_token_keeps_memory_and_momentum_and_reads():
    p = drawn("titans_lmm", seed=4)
    result = results("titans_lmm", p | {"active": np.zeros(6, bool)})
    assert_close("M", result["M"], p["M0"], EXACT)
    assert_close("S", result["S"], p["S0"], EXACT)
    assert_close("y", result["y"], p["q"] @ p["M0"].T, ANALYTIC)
    some = p | {"active": np.array([1, 0, 1, 1, 0, 1], bool)}
    shorter = {
        name: value[some["active"]] if len(value) == 6 else value for name, value in p.items()
    }
    assert_close("M", results("titans_lmm", some)["M"], results("titans_lmm", shorter)["M"], EXACT)


@pytest.mark.clause("TITANS-8", "CONV-44")
def test_the_sign_of_the_momentum_is_a_matter_of_storage():
    p = drawn("titans_lmm", seed=5)
    plus, minus = (
        results("titans_lmm", p),
        results("titans_lmm", p | {"S0": -p["S0"]}, {"momentum_sign": "minus"}),
    )
    assert_close("y", minus["y"], plus["y"], EXACT)
    assert_close("M", minus["M"], plus["M"], EXACT)
    assert_close("S", -minus["S"], plus["S"], EXACT)


@pytest.mark.clause("TITANS-9")
@pytest.mark.parametrize("decay", ["after_error", "before_error"])
def test_an_affine_scan_over_pairs_of_states_is_exact(decay):
    p = drawn("titans_lmm", d_in=2, d_out=2, seed=6)

    def step(t, x):
        token = {name: value[t : t + 1] for name, value in p.items() if len(value) == 6}
        result = results(
            "titans_lmm",
            token | {"M0": x[:4].reshape(2, 2), "S0": x[4:].reshape(2, 2)},
            {"decay": decay},
        )
        return np.concatenate([result["M"].ravel(), result["S"].ravel()])

    offsets = [step(t, np.zeros(8)) for t in range(6)]
    slopes = [
        np.stack([step(t, unit) - offsets[t] for unit in np.eye(8)], axis=1) for t in range(6)
    ]

    def scan(low, high):  # composed as a tree, not in order
        if high - low == 1:
            return slopes[low], offsets[low]
        (A, a), (B, b) = scan(low, (low + high) // 2), scan((low + high) // 2, high)
        return B @ A, B @ a + b

    A, a = scan(0, 6)
    result = results("titans_lmm", p, {"decay": decay})
    final = np.concatenate([result["M"].ravel(), result["S"].ravel()])
    assert_close(
        "state", A @ np.concatenate([p["M0"].ravel(), p["S0"].ravel()]) + a, final, reordered(48)
    )


@pytest.mark.clause("TITANS-9")
def test_under_a_frozen_reference_momentum_alone_is_a_scalar_recurrence():
    p = drawn("titans_lmm", seed=7)
    S = np.prod(p["momentum"]) * p["S0"]
    for t in range(6):
        S = S + np.prod(p["momentum"][t + 1 :]) * p["step_size"][t] * np.outer(
            p["M0"] @ p["k"][t] - p["v"][t], p["k"][t]
        )
    assert_close("frozen", results("titans_lmm", p, {"reference": "call_start"})["S"], S, ANALYTIC)
    assert_differs("running", results("titans_lmm", p)["S"], S, 1e-2)


@pytest.mark.clause("TITANS-10")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
def test_later_tokens_leave_earlier_reads_unless_read_is_call_end(read):
    p, other = drawn("titans_lmm", seed=8), drawn("titans_lmm", seed=9)
    mixed = {
        name: np.concatenate([p[name][:3], other[name][3:]]) if len(p[name]) == 6 else p[name]
        for name in p
    }
    want, reads = (
        results("titans_lmm", each, {"read": read}, span=2)["y"][:3] for each in (p, mixed)
    )
    if read == "call_end":
        assert_differs("y", reads, want, 1e-2)
    else:
        assert_close("y", reads, want, EXACT)


@pytest.mark.clause("TITANS-11")
@pytest.mark.parametrize(("d_in", "d_out"), [(4, 3), (2, 7)])
@pytest.mark.host("counts products of NumPy arrays")
def test_a_token_costs_three_products_and_the_state_two_matrices(d_in, d_out):
    config = titans_lmm.Config(d_in=d_in, d_out=d_out)
    gates = Gates(retain=np.ones((1, 1)), momentum=np.ones((1, 1)), step_size=np.ones((1, 1)))
    state, k, v = counted(titans_lmm.start(config)), counted(np.ones(d_in)), counted(np.ones(d_out))
    work = multiply_adds(
        lambda: titans_lmm.read(config, titans_lmm.write(config, state, k, v, gates), k)
    )
    assert work == 3 * d_out * d_in
    result = results("titans_lmm", drawn("titans_lmm", d_in=d_in, d_out=d_out))
    assert result.keys() == {"y", "M", "S"}
    assert result["M"].size + result["S"].size == 2 * d_out * d_in


@pytest.mark.clause("TITANS-12", "DELTA-11")
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"decay": "before_error"},
        {"reference": "chunk_start", "read": "before", "gradient_scale": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("rate", ["momentum", "memory", "both", "split", "none"])
def test_without_momentum_it_is_the_delta_rule(rate, axes):
    surplus = {"split": (), "none": ("step_size", "step_size_memory")}.get(
        rate, ("step_size_memory",)
    )
    p = without(drawn("delta", split=True, seed=10), *surplus)
    result, want = (
        results(rule, p, {**axes, "rate": rate}, span=2) for rule in ("titans_lmm", "delta")
    )
    for name in ("y", "M"):
        assert_close(name, result[name], want[name], ANALYTIC)


@pytest.mark.clause("TITANS-12", "DELTA-11")
def test_a_small_momentum_only_comes_close_to_the_delta_rule():
    p = without(drawn("titans_lmm", seed=11), "S0")
    want = results("delta", without(p, "momentum"))["M"]
    distances = [
        np.linalg.norm(results("titans_lmm", p | {"momentum": np.full(6, m)})["M"] - want)
        for m in (1e-2, 1e-3, 1e-4)
    ]
    assert 0 < distances[2] < distances[1] < distances[0]
    assert 9.5 < distances[1] / distances[2] < 10.5  # of first order


@pytest.mark.clause("TITANS-14", "CONV-42")
@pytest.mark.parametrize("per_dimension", [False, True])
def test_rate_momentum_and_rate_memory_agree_for_a_constant_step_from_zero_or_without_momentum(
    per_dimension,
):
    p = drawn("titans_lmm", per_dimension=per_dimension, seed=12)
    constant = p | {"step_size": np.broadcast_to(p["step_size"][0], p["step_size"].shape)}
    for name, tensors, equal in (
        ("constant, S_0 = 0", without(constant, "S0"), True),
        ("no momentum", without(p, "S0", "momentum"), True),
        ("momentum 0, S_0", p | {"momentum": 0 * p["momentum"]}, True),
        ("varying", without(p, "S0"), False),
        ("constant, S_0", constant, False),
    ):
        other, want = (
            results("titans_lmm", tensors, {"rate": rate}) for rate in ("memory", "momentum")
        )
        for result in ("y", "M"):
            if equal:
                assert_close(f"{name}, {result}", other[result], want[result], ANALYTIC)
            else:
                assert_differs(f"{name}, {result}", other[result], want[result], 1e-2)


def inner(gate, X, Y):
    return np.sum(X * Y, axis=1) if np.ndim(gate) else np.sum(X * Y)


def pullback(p, o):
    """The backward of TITANS-15 for momentum_sign plus and descent, with the references of
    OMEGA-26.
    """
    _, record = loop(p, o)
    bar = {name: np.zeros(p[name].shape) for name in NAMES}
    M_bar, S_bar, waiting, s = p["M_bar"], p["S_bar"], np.zeros((3, 4)), o.get("gradient_scale", 1)
    for t in reversed(range(len(p["k"]))):
        M_before, S_before, reference, R, e, g, S, M = record[t]
        retain, momentum, h, h_memory, k = (
            p[name][t] for name in ("retain", "momentum", "step_size", "step_size_memory", "k")
        )
        rate = o.get("rate", "momentum")
        a, b = {"momentum": (h, 1), "memory": (1, h), "both": (h, h), "split": (h, h_memory)}[rate]
        M_bar = M_bar + np.outer(p["y_bar"][t], p["q"][t])
        bar["q"][t] = M.T @ p["y_bar"][t]
        bar["retain"][t] = inner(retain, M_bar, M_before)
        b_bar = -inner(h, M_bar, S)
        S_bar = S_bar - column(b) * M_bar
        bar["momentum"][t] = inner(momentum, S_bar, S_before)
        a_bar = inner(h, S_bar, g)
        g_bar = column(a) * S_bar
        S_bar = column(momentum) * S_bar
        e_bar = s * g_bar @ k
        bar["v"][t] = -e_bar
        bar["k"][t] = s * g_bar.T @ e + R.T @ e_bar
        R_bar = np.outer(e_bar, k)
        M_bar = column(retain) * M_bar
        if o.get("decay") == "before_error":
            bar["retain"][t] += inner(retain, R_bar, reference)
            R_bar = column(retain) * R_bar
        kind = o.get("reference", "running")
        waiting = waiting + R_bar if kind != "zero" else waiting
        if kind == "running" or (kind == "chunk_start" and t % 2 == 0) or t == 0:
            M_bar, waiting = M_bar + waiting, np.zeros((3, 4))
        bar["step_size"][t] = {
            "momentum": a_bar,
            "memory": b_bar,
            "both": a_bar + b_bar,
            "split": a_bar,
        }[rate]
        if rate == "split":
            bar["step_size_memory"][t] = b_bar
    return bar | {"M0": M_bar, "S0": S_bar}


@pytest.mark.clause("TITANS-15")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize(
    "o",
    [
        {},
        {"gradient_scale": 1.7, "rate": "both"},
        {"rate": "memory", "decay": "before_error"},
        {"rate": "split", "reference": "chunk_start"},
        {"reference": "chunk_start", "decay": "before_error"},
        {"reference": "call_start"},
        {"reference": "zero", "rate": "memory"},
    ],
    ids=str,
)
def test_the_pullback_is_the_one_written_out(o, per_dimension):
    random = np.random.default_rng(0)
    bars = {
        "y_bar": random.standard_normal((6, 3)),
        "M_bar": random.standard_normal((3, 4)),
        "S_bar": random.standard_normal((3, 4)),
    }
    p, tensors = inputs(o, per_dimension=per_dimension, seed=13)
    result, longhand = (
        results("titans_lmm", tensors | bars, o, grad=True, span=2),
        pullback(p | bars, o),
    )
    for name in NAMES:
        if name not in tensors:
            continue
        derivative = np.zeros(p[name].shape)
        for place in np.ndindex(*p[name].shape):
            moved = p[name].astype(complex)
            moved[place] += 1j * STEP
            out, _ = loop(p | {name: moved}, o)
            derivative[place] = (
                sum(np.sum(bars[f"{key}_bar"] * out[key]).imag for key in ("y", "M", "S")) / STEP
            )
        assert_close(f"complex step, {name}", derivative, longhand[name], ANALYTIC)
        assert_close(f"tape, {name}", result[f"grad/{name}"], longhand[name], ANALYTIC)


@pytest.mark.clause("TITANS-16", "CONV-38")
@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"reference": "chunk_start", "decay": "before_error"},
        {"reference": "call_start"},
        {"read": "chunk_start"},
    ],
    ids=str,
)
def test_a_split_call_equals_one_call_to_the_bit(axes, at):
    p = drawn("titans_lmm", seed=14)
    one, two = results("titans_lmm", p, axes, span=2), split_call("titans_lmm", p, axes, at, span=2)
    assert one.keys() == two.keys()
    for name in one:
        assert_close(name, np.asarray(two[name]), np.asarray(one[name]), EXACT)


@pytest.mark.clause("TITANS-16")
def test_a_momentum_that_restarts_at_a_boundary_is_another_rule():
    p = drawn("titans_lmm", seed=15)
    first = results(
        "titans_lmm", {name: value[:3] if len(value) == 6 else value for name, value in p.items()}
    )
    restarted = {name: value[3:] for name, value in p.items() if len(value) == 6} | {
        "M0": first["M"]
    }
    assert_differs("M", results("titans_lmm", restarted)["M"], results("titans_lmm", p)["M"], 1e-2)
