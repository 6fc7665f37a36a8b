"""The Hebbian rule, HEBBIAN-1 to HEBBIAN-12: loops, closed form, limit, and the backward written
out.
"""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.parts.gates import Gates
from atlas_ref.rules import hebbian
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.counting import counted, multiply_adds
from tests.support.sequences import case, drawn, results, split_call, without

STEP = 1e-30


def column(gate):
    return np.reshape(gate, (-1, 1))


def loop(p):
    """y and M_T, entry by entry."""
    M, reads = p["M0"], []
    for t in range(len(p["k"])):
        written = np.array([[p["v"][t, o] * p["k"][t, i] for i in range(4)] for o in range(3)])
        M = column(p["retain"][t]) * M + written
        reads.append(M @ p["q"][t])
    return {"y": np.array(reads), "M": M}


@pytest.mark.clause("HEBBIAN-1")
def test_the_memory_starts_at_zero_and_is_the_only_state():
    p = without(drawn("hebbian"), "M0")
    result = results("hebbian", p)
    assert result.keys() == {"y", "M"}
    assert result["M"].shape == (3, 4)
    assert_close("y", result["y"], results("hebbian", p | {"M0": np.zeros((3, 4))})["y"], EXACT)


@pytest.mark.clause("HEBBIAN-1", "CASE-16")
@pytest.mark.parametrize(
    ("more", "header", "message"),
    [
        (
            {"momentum": np.full(6, 0.5)},
            {},
            (
                "in/momentum: not part of this case: hebbian has none; it belongs to omega and "
                "titans_lmm"
            ),
        ),
        (
            {"step_size": np.full(6, 0.5)},
            {},
            "in/step_size: not part of this case: hebbian has none",
        ),
        ({"S0": np.zeros((3, 4))}, {}, "in/S0: not part of this case: hebbian has none"),
        ({}, {"window": 2}, "window: hebbian looks at one token, found 2"),
        ({}, {"feature_map": {"kind": "elu"}}, "feature_map: hebbian has none, found elu"),
        (
            {},
            {"convention": {"newton_schulz": {}}},
            "newton_schulz is not part of hebbian; only none is possible",
        ),
    ],
)
def test_what_the_rule_does_not_have_is_refused(more, header, message):
    with pytest.raises(CaseError, match=message):
        case("hebbian", drawn("hebbian") | more, **header)


@pytest.mark.clause("HEBBIAN-2", "HEBBIAN-3")
def test_two_tokens_by_hand():
    # retain 1/2: M = 0.5 * 4 + 3 * 2 = 8, y = 8; M = 4 - 1 * 5 = -1, y = 2
    p = {
        "k": [[2.0], [1.0]],
        "v": [[3.0], [-5.0]],
        "q": [[1.0], [-2.0]],
        "M0": [[4.0]],
        "retain": [0.5, 0.5],
    }
    assert_close("y", results("hebbian", p)["y"], np.array([[8.0], [2.0]]), EXACT)


@pytest.mark.clause("HEBBIAN-2", "HEBBIAN-3")
@pytest.mark.parametrize("per_dimension", [False, True])
def test_the_step_is_the_loop(per_dimension):
    p = drawn("hebbian", per_dimension=per_dimension, seed=1)
    result, want = results("hebbian", p), loop(p)
    for name in want:
        assert_close(name, result[name], want[name], ANALYTIC)


@pytest.mark.clause("HEBBIAN-4", "CONV-32")
def test_an_inactive_token_writes_nothing_and_reads():
    p = drawn("hebbian", seed=2)
    result = results("hebbian", p | {"active": np.zeros(6, bool)})
    assert_close("M", result["M"], p["M0"], EXACT)
    assert_close("y", result["y"], p["q"] @ p["M0"].T, ANALYTIC)


VOID = {
    "decay": ["before_error"],
    "gradient_scale": [2, "2/d_out"],
    "rate": ["memory", "both", "split", "none"],
    "momentum_sign": ["minus"],
    "direction": ["ascent"],
    "value_sign": ["plus"],
    "window_edge": ["renormalise"],
    "window_at_boundary": ["cut", "carry"],
    "order": ["momentum_then_window"],
}


@pytest.mark.clause(
    "HEBBIAN-5",
    "CONV-3",
    "CONV-5",
    "CONV-6",
    "CONV-7",
    "CONV-8",
    "CONV-9",
    "CONV-10",
    "CONV-14",
    "CONV-15",
    "CONV-16",
)
@pytest.mark.parametrize(
    ("axis", "value"), [(axis, value) for axis, values in VOID.items() for value in values]
)
@pytest.mark.parametrize("read", ["after", "chunk_start"])
def test_an_axis_of_the_error_is_accepted_listed_and_changes_nothing(axis, value, read):
    p = drawn("hebbian", seed=3)
    assert_close(
        "y",
        results("hebbian", p, {axis: value, "read": read}, span=2)["y"],
        results("hebbian", p, {"read": read}, span=2)["y"],
        EXACT,
    )
    assert axis in case("hebbian", p, {axis: value, "read": read}, span=2).void


@pytest.mark.clause("HEBBIAN-5", "CONV-3", "CONV-11", "CONV-12")
def test_reference_and_span_matter_only_for_the_read_at_the_start_of_a_span():
    p = drawn("hebbian", seed=4)
    for reference in ("chunk_start", "call_start", "zero"):
        variant = case("hebbian", p, {"reference": reference}, span=2)
        assert_close(
            reference,
            results("hebbian", p, {"reference": reference}, span=2)["y"],
            results("hebbian", p)["y"],
            EXACT,
        )
        assert "reference" in variant.void
    assert case("hebbian", p, {"span_origin": "multiple"}, span=3).void.keys() == {
        "span_origin",
        "span",
    }
    reads = {
        "first": results("hebbian", p, {"read": "chunk_start"}, span=3),
        "multiple": results(
            "hebbian", p, {"read": "chunk_start", "span_origin": "multiple"}, span=3
        ),
        "span 2": results("hebbian", p, {"read": "chunk_start"}, span=2),
        "call_start": results(
            "hebbian", p, {"read": "chunk_start", "reference": "call_start"}, span=3
        ),
    }
    for name in list(reads)[1:]:
        assert_differs(name, reads[name]["y"], reads["first"]["y"], 1e-2)
        assert_close(name, reads[name]["M"], reads["first"]["M"], EXACT)
    assert (
        "reference"
        not in case("hebbian", p, {"read": "chunk_start", "reference": "call_start"}, span=3).void
    )


@pytest.mark.clause("HEBBIAN-5")
@pytest.mark.parametrize(
    "axes",
    [
        {"gate": "forget"},
        {"read": "before"},
        {"query_scale": "1/sqrt(d_in)"},
        {"q_norm": "l2"},
        {"k_norm": "rms"},
    ],
    ids=str,
)
def test_gate_read_query_scale_and_norms_act_as_in_every_rule(axes):
    p = drawn("hebbian", seed=5)
    M, reads = p["M0"], []
    for t in range(6):
        k, q, before = p["k"][t], p["q"][t], M
        if "k_norm" in axes:
            k = k / np.sqrt(np.mean(k * k) + 1e-6)
        if "q_norm" in axes:
            q = q / np.sqrt(np.sum(q * q) + 1e-6)
        q = q / 2 if "query_scale" in axes else q
        M = (1 - p["retain"][t] if "gate" in axes else p["retain"][t]) * M + np.outer(p["v"][t], k)
        reads.append((before if "read" in axes else M) @ q)
    assert_close("y", results("hebbian", p, axes)["y"], np.array(reads), ANALYTIC)


@pytest.mark.clause("HEBBIAN-5", "CONV-25")
def test_layout_transposes_the_matrices_of_the_file():
    p = drawn("hebbian", seed=5)
    plain, transposed = (
        results("hebbian", p),
        results("hebbian", p | {"M0": p["M0"].T}, {"layout": "transposed"}),
    )
    assert_close("M", transposed["M"], plain["M"].T, EXACT)
    assert_close("y", transposed["y"], plain["y"], EXACT)


@pytest.mark.clause("HEBBIAN-6")
@pytest.mark.parametrize("per_dimension", [False, True])
def test_the_memory_is_the_sum_of_decayed_outer_products_and_the_read_linear_attention(
    per_dimension,
):
    p = drawn("hebbian", per_dimension=per_dimension, seed=6)
    retain = p["retain"].reshape(6, -1, 1)
    M = np.prod(retain, axis=0) * p["M0"]
    y = M @ p["q"][-1]
    for t in range(6):
        decay = np.prod(retain[t + 1 :], axis=0)
        M = M + decay * np.outer(p["v"][t], p["k"][t])
        y = y + decay[:, 0] * p["v"][t] * (p["k"][t] @ p["q"][-1])
    result = results("hebbian", p)
    assert_close("M", result["M"], M, ANALYTIC)
    assert_close("y", result["y"][-1], y, ANALYTIC)


@pytest.mark.clause("HEBBIAN-7")
def test_it_answers_with_the_sum_where_delta_answers_with_the_last():
    random = np.random.default_rng(7)
    k, values = random.standard_normal(4), random.standard_normal((5, 3))
    k /= np.linalg.norm(k)
    p = {"k": np.tile(k, (5, 1)), "v": values, "q": np.tile(k, (5, 1)), "retain": np.ones(5)}
    assert_close("hebbian", results("hebbian", p)["M"] @ k, np.sum(values, axis=0), ANALYTIC)
    assert_close(
        "delta", results("delta", p | {"step_size": np.ones(5)})["M"] @ k, values[-1], ANALYTIC
    )


@pytest.mark.clause("HEBBIAN-7")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
def test_later_tokens_leave_earlier_reads_unless_read_is_call_end(read):
    p, other = drawn("hebbian", seed=8), drawn("hebbian", seed=9)
    mixed = {
        name: np.concatenate([p[name][:3], other[name][3:]]) if len(p[name]) == 6 else p[name]
        for name in p
    }
    want, reads = (results("hebbian", each, {"read": read}, span=2)["y"][:3] for each in (p, mixed))
    if read == "call_end":
        assert_differs("y", reads, want, 1e-2)
    else:
        assert_close("y", reads, want, EXACT)


@pytest.mark.clause("HEBBIAN-8", "DELTA-13")
def test_it_is_the_limit_of_delta_with_an_error_of_first_order():
    p = drawn("hebbian", seed=10)
    want = results("hebbian", p)["M"]

    def error(h):
        scaled = p | {"step_size": np.full(6, h), "v": p["v"] / h}
        return np.linalg.norm(results("delta", scaled)["M"] - want) / np.linalg.norm(want)

    assert 1e-7 < error(1e-6) < 1e-5
    assert 9.9 < error(1e-3) / error(1e-4) < 10.1


@pytest.mark.clause("HEBBIAN-8")
def test_one_step_of_the_limit_misses_by_the_stated_term():
    p, h = drawn("hebbian", T=1, seed=11), 0.25
    memory = results("delta", p | {"step_size": [h], "v": p["v"] / h})["M"]
    stated = (
        p["retain"][0] * p["M0"]
        + np.outer(p["v"][0], p["k"][0])
        - h * p["M0"] @ np.outer(p["k"][0], p["k"][0])
    )
    assert_close("M", memory, stated, ANALYTIC)


@pytest.mark.clause("HEBBIAN-9")
@pytest.mark.parametrize(
    "more", [{"rate": "none"}, {"rate": "momentum"}, {"rate": "both"}], ids=str
)
def test_it_is_delta_from_the_zero_reference(more):
    p = drawn("hebbian", seed=12)
    gates = {} if more["rate"] == "none" else {"step_size": np.ones(6)}
    result = results("delta", p | gates, {"reference": "zero", **more})
    for name, want in results("hebbian", p).items():
        assert_close(name, result[name], want, EXACT)


@pytest.mark.clause("HEBBIAN-10")
@pytest.mark.parametrize(("d_in", "d_out"), [(4, 3), (2, 7)])
@pytest.mark.host("counts products of NumPy arrays")
def test_a_token_costs_two_products_and_the_state_one_matrix(d_in, d_out):
    config = hebbian.Config(d_in=d_in, d_out=d_out)
    state, k, v = counted(hebbian.start(config)), counted(np.ones(d_in)), counted(np.ones(d_out))
    work = multiply_adds(
        lambda: hebbian.read(
            config, hebbian.write(config, state, k, v, Gates(retain=np.ones((1, 1)))), k
        )
    )
    assert work == 2 * d_out * d_in
    assert results("hebbian", drawn("hebbian", d_in=d_in, d_out=d_out))["M"].size == d_out * d_in


@pytest.mark.clause("HEBBIAN-11")
@pytest.mark.parametrize("per_dimension", [False, True])
def test_the_pullback_is_the_one_written_out(per_dimension):
    random = np.random.default_rng(0)
    p = drawn("hebbian", per_dimension=per_dimension, seed=13)
    bars = {"y_bar": random.standard_normal((6, 3)), "M_bar": random.standard_normal((3, 4))}
    memories = [p["M0"]]
    for t in range(6):
        memories.append(column(p["retain"][t]) * memories[-1] + np.outer(p["v"][t], p["k"][t]))
    bar, M_bar = {name: np.zeros(tensor.shape) for name, tensor in p.items()}, bars["M_bar"]
    for t in reversed(range(6)):
        M_bar = M_bar + np.outer(bars["y_bar"][t], p["q"][t])
        bar["q"][t] = memories[t + 1].T @ bars["y_bar"][t]
        bar["retain"][t] = (
            np.sum(M_bar * memories[t], axis=1) if per_dimension else np.sum(M_bar * memories[t])
        )
        bar["v"][t], bar["k"][t] = M_bar @ p["k"][t], M_bar.T @ p["v"][t]
        M_bar = column(p["retain"][t]) * M_bar
    bar["M0"] = M_bar
    result = results("hebbian", p | bars, grad=True)
    for name in p:
        derivative = np.zeros(p[name].shape)
        for place in np.ndindex(*p[name].shape):
            moved = p[name].astype(complex)
            moved[place] += 1j * STEP
            out = loop(p | {name: moved})
            derivative[place] = (
                sum(np.sum(bars[f"{key}_bar"] * out[key]).imag for key in ("y", "M")) / STEP
            )
        assert_close(f"complex step, {name}", derivative, bar[name], ANALYTIC)
        assert_close(f"tape, {name}", result[f"grad/{name}"], bar[name], ANALYTIC)


@pytest.mark.clause("HEBBIAN-12", "CONV-38")
@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"read": "before"},
        {"read": "chunk_start"},
        {"read": "chunk_start", "reference": "call_start"},
    ],
    ids=str,
)
def test_a_split_call_equals_one_call_to_the_bit(axes, at):
    p = drawn("hebbian", seed=14)
    one, two = results("hebbian", p, axes, span=2), split_call("hebbian", p, axes, at, span=2)
    assert one.keys() == two.keys()
    for name in one:
        assert_close(name, np.asarray(two[name]), np.asarray(one[name]), EXACT)


@pytest.mark.clause("HEBBIAN-12")
def test_the_read_at_the_start_of_a_span_needs_its_memory_and_the_position():
    p = drawn("hebbian", seed=15)
    one = results("hebbian", p, {"read": "chunk_start"}, span=4)
    first = results(
        "hebbian",
        {name: value[:2] if len(value) == 6 else value for name, value in p.items()},
        {"read": "chunk_start"},
        span=4,
    )
    second = {name: value[2:] for name, value in p.items() if len(value) == 6} | {"M0": first["M"]}
    for more, header in (({}, {"phase": 2}), ({"M_ref": first["M_ref"]}, {})):
        lost = results("hebbian", second | more, {"read": "chunk_start"}, span=4, **header)
        assert_differs("y", lost["y"], one["y"][2:], 1e-2)
