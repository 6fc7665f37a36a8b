"""The Delta rule, DELTA-1 to DELTA-15: loops, numbers by hand, and the backward written out."""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import delta
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.counting import counted, multiply_adds
from tests.support.sequences import case, drawn, results, split_call, without

STEP = 1e-30
NAMES = ("k", "v", "q", "retain", "step_size", "step_size_memory", "M0")


def column(gate):
    return np.reshape(gate, (-1, 1))


def product(p, o, t):
    """The product of the rates, a_t b_t."""
    h, h_memory = p["step_size"][t], p["step_size_memory"][t]
    return {
        "momentum": h,
        "memory": h,
        "both": h * h,
        "split": h * h_memory,
        "none": np.ones_like(h),
    }[o.get("rate", "momentum")]


def loop(p, o):
    """y, M_T, and per token (M_{t-1}, M_ref, R, e, g, M), for spans of 2."""
    M, start, record = p["M0"], p["M0"], []
    s = {"2/d_out": 2 / 3}.get(o.get("gradient_scale"), o.get("gradient_scale", 1))
    for t in range(len(p["k"])):
        before = M
        start = M if o.get("reference") == "chunk_start" and t % 2 == 0 else start
        reference = {"zero": 0 * M, "chunk_start": start, "call_start": start}.get(
            o.get("reference"), M
        )
        R = column(p["retain"][t]) * reference if o.get("decay") == "before_error" else reference
        e = R @ p["k"][t] + (p["v"][t] if o.get("value_sign") == "plus" else -p["v"][t])
        g = s * np.outer(e, p["k"][t])
        change = column(product(p, o, t)) * g
        M = column(p["retain"][t]) * M + (change if o.get("direction") == "ascent" else -change)
        record.append((before, reference, R, e, g, M))
    return {
        "y": np.array([each[-1] @ q for each, q in zip(record, p["q"], strict=True)]),
        "M": M,
    }, record


def inputs(o, **more):
    surplus = {"split": (), "none": ("step_size", "step_size_memory")}.get(
        o.get("rate"), ("step_size_memory",)
    )
    p = drawn("delta", split=True, **more)
    return p, without(p, *surplus)


@pytest.mark.clause("DELTA-1")
def test_the_memory_has_the_length_of_a_key_starts_at_zero_and_is_the_only_state():
    p = without(drawn("delta"), "M0")
    result = results("delta", p)
    assert result.keys() == {"y", "M"}
    assert result["M"].shape == (3, 4)
    assert_close("y", result["y"], results("delta", p | {"M0": np.zeros((3, 4))})["y"], EXACT)


@pytest.mark.clause("DELTA-1", "CASE-16")
@pytest.mark.parametrize(
    ("more", "header", "message"),
    [
        (
            {"momentum": np.full(6, 0.5)},
            {},
            (
                "in/momentum: not part of this case: delta has none; it belongs to omega and "
                "titans_lmm"
            ),
        ),
        ({"S0": np.zeros((3, 4))}, {}, "in/S0: not part of this case: delta has none"),
        ({}, {"window": 2}, "window: delta looks at one token, found 2"),
        ({}, {"feature_map": {"kind": "elu"}}, "feature_map: delta has none, found elu"),
        (
            {},
            {"convention": {"newton_schulz": {}}},
            "newton_schulz is not part of delta; only none is possible",
        ),
    ],
)
def test_what_the_rule_does_not_have_is_refused(more, header, message):
    with pytest.raises(CaseError, match=message):
        case("delta", drawn("delta") | more, **header)


@pytest.mark.clause("DELTA-2", "DELTA-3", "DELTA-4")
def test_two_tokens_by_hand():
    # retain 1/2, step 1/10. Token 1: M = 4, k = 2, v = 3: e = 5, g = 10, M = 2 - 1 = 1, y = 3.
    # Token 2: k = 1, v = 6: e = -5, M = 0.5 + 0.5 = 1, y = -1
    p = {
        "k": [[2.0], [1.0]],
        "v": [[3.0], [6.0]],
        "q": [[3.0], [-1.0]],
        "M0": [[4.0]],
        "retain": [0.5, 0.5],
        "step_size": [0.1, 0.1],
    }
    assert_close("y", results("delta", p)["y"], np.array([[3.0], [-1.0]]), ANALYTIC)


@pytest.mark.clause("DELTA-2", "DELTA-3", "DELTA-4")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize(
    "o",
    [
        {},
        {"decay": "before_error"},
        {"value_sign": "plus"},
        {"gradient_scale": 2},
        {"gradient_scale": "2/d_out"},
        {"direction": "ascent"},
        {"rate": "memory"},
        {"rate": "both"},
        {"rate": "split"},
        {"rate": "none"},
        {"reference": "zero"},
        {"reference": "call_start", "decay": "before_error"},
        {"reference": "chunk_start"},
    ],
    ids=str,
)
def test_the_step_is_the_loop(o, per_dimension):
    p, tensors = inputs(o, per_dimension=per_dimension, seed=1)
    result, (want, _) = results("delta", tensors, o, span=2), loop(p, o)
    for name in want:
        assert_close(name, result[name], want[name], ANALYTIC)


@pytest.mark.clause("DELTA-3", "CONV-3", "CONV-8")
def test_momentum_sign_is_void():
    p = drawn("delta", seed=2)
    assert_close(
        "M", results("delta", p, {"momentum_sign": "minus"})["M"], results("delta", p)["M"], EXACT
    )
    assert case("delta", p, {"momentum_sign": "minus"}).void == {
        "momentum_sign": "delta has no momentum"
    }


@pytest.mark.clause("DELTA-5", "CONV-32")
def test_an_inactive_token_keeps_the_memory_and_reads():
    p = drawn("delta", seed=3)
    result = results("delta", p | {"active": np.zeros(6, bool)})
    assert_close("M", result["M"], p["M0"], EXACT)
    assert_close("y", result["y"], p["q"] @ p["M0"].T, ANALYTIC)


def full_step(keys, values, M0, s=1.0):
    T = len(keys)
    p = {
        "k": keys,
        "v": values,
        "q": keys,
        "M0": M0,
        "retain": np.ones(T),
        "step_size": np.full(T, 1 / s),
    }
    return results("delta", p, {"gradient_scale": s})


@pytest.mark.clause("DELTA-6")
@pytest.mark.parametrize("s", [1.0, 2.0, 0.7])
def test_a_full_step_stores_the_pair_and_leaves_what_is_orthogonal(s):
    random = np.random.default_rng(4)
    k, v, M0, u = (
        random.standard_normal(4),
        random.standard_normal(3),
        random.standard_normal((3, 4)),
        random.standard_normal(4),
    )
    k /= np.linalg.norm(k)
    u -= (u @ k) * k
    M = full_step(k[None], v[None], M0, s)["M"]
    assert_close("M k", M @ k, v, ANALYTIC)
    assert_close("M u", M @ u, M0 @ u, ANALYTIC)


@pytest.mark.clause("DELTA-6")
def test_d_in_orthonormal_pairs_are_stored_exactly_and_writing_a_key_again_replaces_its_value():
    random = np.random.default_rng(5)
    keys, values = np.linalg.qr(random.standard_normal((4, 4)))[0], random.standard_normal((5, 3))
    M = full_step(np.vstack([keys, keys[1]]), values, random.standard_normal((3, 4)))["M"]
    assert_close("M k", M @ keys.T, values[[0, 4, 2, 3]].T, ANALYTIC)


@pytest.mark.clause("DELTA-7")
@pytest.mark.parametrize("strength", [0.4, 1.0, 1.9, 2.1])
def test_the_step_scales_the_component_along_the_key_and_decays_the_rest(strength):
    random = np.random.default_rng(6)
    k, M0, retain, s, h = random.standard_normal(4), random.standard_normal((3, 4)), 0.9, 1.5, 0.3
    k *= np.sqrt(strength / (s * h)) / np.linalg.norm(k)  # s h |k|^2 = strength
    p = {
        "k": k[None],
        "v": np.zeros((1, 3)),
        "q": k[None],
        "M0": M0,
        "retain": [retain],
        "step_size": [h],
    }
    M = results("delta", p, {"gradient_scale": s})["M"]
    along = np.outer(k, k) / (k @ k)
    assert_close("along", M @ along, (retain - strength) * M0 @ along, ANALYTIC)
    assert_close("across", M @ (np.eye(4) - along), retain * M0 @ (np.eye(4) - along), ANALYTIC)


@pytest.mark.clause("DELTA-7")
@pytest.mark.parametrize(
    ("retain", "strength", "grows"),
    [(1.0, 1.99, False), (1.0, 2.01, True), (0.5, 1.49, False), (0.5, 1.51, True)],
)
def test_it_does_not_amplify_up_to_the_stated_bound(retain, strength, grows):
    p = {"k": np.ones((40, 1)), "v": np.zeros((40, 1)), "q": np.ones((40, 1)), "M0": [[1.0]]}
    M = results("delta", p | {"retain": np.full(40, retain), "step_size": np.full(40, strength)})[
        "M"
    ]
    assert (abs(M[0, 0]) > 1) == grows


@pytest.mark.clause("DELTA-8")
def test_the_map_of_the_memory_is_affine_with_data_dependent_coefficients():
    p, s = drawn("delta", seed=7), 1.5
    A, B = np.eye(4), np.zeros((3, 4))  # M_T = M_0 A + B, composed from the steps' pairs
    for t in range(6):
        strength = s * p["step_size"][t]
        step = p["retain"][t] * np.eye(4) - strength * np.outer(p["k"][t], p["k"][t])
        A, B = A @ step, B @ step + strength * np.outer(p["v"][t], p["k"][t])
    assert_close("M", results("delta", p, {"gradient_scale": s})["M"], p["M0"] @ A + B, ANALYTIC)


@pytest.mark.clause("DELTA-8")
def test_every_step_depends_on_the_history():
    p, other = drawn("delta", seed=8), drawn("delta", seed=9)
    gains = []
    for tensors in (p, p | {"M0": other["M0"]}):
        M = results("delta", tensors)["M"]
        # with scalar factors this would not depend on M_0
        gains.append(M - np.prod(p["retain"]) * tensors["M0"])
    assert_differs("what was added", gains[1], gains[0], 1e-2)


@pytest.mark.clause("DELTA-9")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
def test_later_tokens_leave_earlier_reads_unless_read_is_call_end(read):
    p, other = drawn("delta", seed=10), drawn("delta", seed=11)
    mixed = {
        name: np.concatenate([p[name][:3], other[name][3:]]) if len(p[name]) == 6 else p[name]
        for name in p
    }
    want, reads = (results("delta", each, {"read": read}, span=2)["y"][:3] for each in (p, mixed))
    if read == "call_end":
        assert_differs("y", reads, want, 1e-2)
    else:
        assert_close("y", reads, want, EXACT)


@pytest.mark.clause("DELTA-10")
@pytest.mark.parametrize(("d_in", "d_out"), [(4, 3), (2, 7)])
@pytest.mark.host("counts products of NumPy arrays")
def test_a_token_costs_three_products_and_the_state_one_matrix(d_in, d_out):
    config = delta.Config(d_in=d_in, d_out=d_out)
    gates = Gates(retain=np.ones((1, 1)), step_size=np.ones((1, 1)))
    state, k, v = counted(delta.start(config)), counted(np.ones(d_in)), counted(np.ones(d_out))
    assert (
        multiply_adds(lambda: delta.read(config, delta.write(config, state, k, v, gates), k))
        == 3 * d_out * d_in
    )
    assert results("delta", drawn("delta", d_in=d_in, d_out=d_out))["M"].size == d_out * d_in


@pytest.mark.clause("DELTA-12")
def test_before_error_is_gated_deltanet_and_with_retain_one_deltanet():
    p = drawn("delta", seed=12)
    for retain in (p["retain"], np.ones(6)):
        M = p["M0"]
        for t in range(6):
            strength, k = 1.5 * p["step_size"][t], p["k"][t]
            M = retain[t] * M @ (np.eye(4) - strength * np.outer(k, k)) + strength * np.outer(
                p["v"][t], k
            )
        memory = results(
            "delta", p | {"retain": retain}, {"decay": "before_error", "gradient_scale": 1.5}
        )["M"]
        assert_close("M", memory, M, ANALYTIC)
    either = results(
        "delta", p | {"retain": np.ones(6)}, {"decay": "after_error", "gradient_scale": 1.5}
    )["M"]
    assert_close("deltanet", either, memory, EXACT)


@pytest.mark.clause("DELTA-12", "CONV-60")
def test_before_error_is_after_error_with_step_and_value_rescaled():
    p = drawn("delta", seed=13)
    rescaled = p | {"step_size": p["retain"] * p["step_size"], "v": p["v"] / p["retain"][:, None]}
    before = results("delta", p, {"decay": "before_error"})
    assert_close("M", results("delta", rescaled)["M"], before["M"], ANALYTIC)
    assert_differs("not rescaled", results("delta", p)["M"], before["M"], 1e-2)


@pytest.mark.clause("DELTA-12", "DELTA-13", "HEBBIAN-8")
@pytest.mark.parametrize("axes", [{}, {"decay": "before_error"}], ids=str)
def test_no_gate_values_make_it_linear_attention(axes):
    p = drawn("hebbian", seed=14)
    want = results("hebbian", p | {"retain": np.ones(6)})["M"]
    for h in (0.0, 0.01, 0.5, 1.0, 2.0):
        memory = results("delta", p | {"retain": np.ones(6), "step_size": np.full(6, h)}, axes)["M"]
        assert_differs(f"step size {h}", memory, want, 1e-2)


def inner(gate, X, Y):
    return np.sum(X * Y, axis=1) if np.ndim(gate) else np.sum(X * Y)


def pullback(p, o):
    """The backward of DELTA-14, with the references of OMEGA-26."""
    _, record = loop(p, o)
    bar = {name: np.zeros(p[name].shape) for name in NAMES}
    M_bar, waiting, s, rate = (
        p["M_bar"],
        np.zeros((3, 4)),
        o.get("gradient_scale", 1),
        o.get("rate", "momentum"),
    )
    for t in reversed(range(len(p["k"]))):
        M_before, reference, R, e, g, M = record[t]
        retain, h, k, mu = p["retain"][t], p["step_size"][t], p["k"][t], product(p, o, t)
        M_bar = M_bar + np.outer(p["y_bar"][t], p["q"][t])
        bar["q"][t] = M.T @ p["y_bar"][t]
        bar["retain"][t] = inner(retain, M_bar, M_before)
        mu_bar = -inner(h, M_bar, g)
        g_bar = -column(mu) * M_bar
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
        factor = {"both": 2 * h, "split": p["step_size_memory"][t]}.get(rate, 1.0)
        bar["step_size"][t] = factor * mu_bar
        if rate == "split":
            bar["step_size_memory"][t] = h * mu_bar
    return bar | {"M0": M_bar}


@pytest.mark.clause("DELTA-14")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize(
    "o",
    [
        {},
        {"rate": "memory", "gradient_scale": 1.7},
        {"rate": "both", "decay": "before_error"},
        {"rate": "split", "reference": "chunk_start"},
        {"rate": "none", "reference": "chunk_start", "decay": "before_error"},
        {"reference": "call_start"},
        {"reference": "zero"},
    ],
    ids=str,
)
def test_the_pullback_is_the_one_written_out(o, per_dimension):
    random = np.random.default_rng(0)
    p, tensors = inputs(o, per_dimension=per_dimension, seed=15)
    bars = {"y_bar": random.standard_normal((6, 3)), "M_bar": random.standard_normal((3, 4))}
    result, longhand = results("delta", tensors | bars, o, grad=True, span=2), pullback(p | bars, o)
    for name in NAMES:
        if name not in tensors:
            continue
        derivative = np.zeros(p[name].shape)
        for place in np.ndindex(*p[name].shape):
            moved = p[name].astype(complex)
            moved[place] += 1j * STEP
            out, _ = loop(p | {name: moved}, o)
            derivative[place] = (
                sum(np.sum(bars[f"{key}_bar"] * out[key]).imag for key in ("y", "M")) / STEP
            )
        assert_close(f"complex step, {name}", derivative, longhand[name], ANALYTIC)
        assert_close(f"tape, {name}", result[f"grad/{name}"], longhand[name], ANALYTIC)


@pytest.mark.clause("DELTA-15", "CONV-38")
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
    p = drawn("delta", seed=16)
    one, two = results("delta", p, axes, span=2), split_call("delta", p, axes, at, span=2)
    assert one.keys() == two.keys()
    for name in one:
        assert_close(name, np.asarray(two[name]), np.asarray(one[name]), EXACT)
