"""Single axes as loops, and their refusals: CONV-4, CONV-7, CONV-11 to CONV-13, CONV-17 to CONV-21,
CONV-25.
"""

import numpy as np
import pytest

from atlas_ref import CaseError
from atlas_ref.conventions import resolve
from atlas_ref.parts.newton_schulz import newton_schulz
from atlas_ref.rules import delta, hebbian, omega, titans_lmm
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.sequences import case, drawn, earlier, results, without

BARE = {"newton_schulz": "none"}
RULES = ("omega", "titans_lmm", "delta", "hebbian")
CONFIGS = {
    "omega": omega.Config,
    "titans_lmm": titans_lmm.Config,
    "delta": delta.Config,
    "hebbian": hebbian.Config,
}
STEP = 1e-30


def bare(rule, **axes):
    return (BARE if rule == "omega" else {}) | axes


@pytest.mark.clause("CONV-4", "GATES-2")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_gate_says_what_its_number_does_to_the_memory(rule, per_dimension):
    p = drawn(rule, per_dimension=per_dimension, seed=1)
    u = p["retain"]
    for tensors, gate, retain in (
        (p, "retain", u),
        (p, "forget", 1 - u),
        (without(p, "retain"), "none", np.ones(6)),
    ):
        found = results(rule, tensors, bare(rule, gate=gate))
        want = results(rule, p | {"retain": retain}, bare(rule, gate="retain"))
        assert_close(gate, found["M"], want["M"], EXACT)
    assert_close(
        "default",
        results(rule, p, bare(rule))["M"],
        results(rule, p, bare(rule, gate="retain"))["M"],
        EXACT,
    )


@pytest.mark.clause("CONV-4")
@pytest.mark.parametrize("rule", RULES)
def test_a_retain_gate_under_none_and_a_missing_one_elsewhere_are_refused(rule):
    with pytest.raises(
        CaseError, match="in/retain: not part of this case: gate none has no retain gate"
    ):
        case(rule, drawn(rule), {"gate": "none"})
    for gate in ("retain", "forget"):
        with pytest.raises(CaseError, match="in/retain: missing"):
            case(rule, without(drawn(rule), "retain"), {"gate": gate})


@pytest.mark.clause("CONV-7")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta"])
def test_rates_that_do_not_fit_are_refused(rule):
    p = drawn(rule, split=True)
    one, none = without(p, "step_size_memory"), without(p, "step_size", "step_size_memory")
    for rate in ("momentum", "memory", "both"):
        with pytest.raises(CaseError, match="in/step_size: missing"):
            case(rule, none, bare(rule, rate=rate))
        with pytest.raises(
            CaseError, match=f"in/step_size_memory: not part of this case: rate {rate} has one rate"
        ):
            case(rule, p, bare(rule, rate=rate))
    with pytest.raises(
        CaseError, match="in/step_size: not part of this case: rate none has no step size"
    ):
        case(rule, one, bare(rule, rate="none"))
    with pytest.raises(CaseError, match="in/step_size_memory: missing"):
        case(rule, one, bare(rule, rate="split"))
    token = {
        "x": np.ones((1, 2, 3)),
        **{f"param/{W}": np.ones((1, 2, 3)) for W in ("W_K", "W_V", "W_Q")},
    }
    with pytest.raises(CaseError, match="rate split has no second rate at level token"):
        case(rule, token, bare(rule, rate="split"), level="token")


def memories(p, span=None, reference="running", origin=0, reset=()):
    """M_0 .. M_T of the Delta rule with two places for every token.

    The places are the number of its span start and of its packed sequence's last memory.
    """
    M, start, position, out, starts, ends = p["M0"], None, origin, [p["M0"]], [], []
    held = None
    for t in range(len(p["k"])):
        if t in reset:
            M, start, position = p["M0"], None, origin
        if start is None or (span and position == 0 and reference != "call_start"):
            start, held = M, M
        M_ref = {"running": M, "zero": 0 * M}.get(reference, start)
        M = p["retain"][t] * M - p["step_size"][t] * np.outer(
            M_ref @ p["k"][t] - p["v"][t], p["k"][t]
        )
        out.append(M)
        starts.append(held)
        ends.append(min([r for r in reset if r > t], default=len(p["k"])))
        position = (position + 1) % span if span else position + 1
    return out, starts, [out[end] for end in ends]


@pytest.mark.clause("CONV-11")
@pytest.mark.parametrize("reference", ["running", "chunk_start", "call_start", "zero"])
@pytest.mark.parametrize("reset", [(), (3,)], ids=["one sequence", "packed"])
def test_read_says_which_memory_the_query_meets(reference, reset):
    p = drawn("delta", T=7, seed=2)
    after, starts, ends = memories(p, span=3, reference=reference, reset=reset)
    before = [p["M0"] if t in reset else after[t] for t in range(7)]
    masks = {"reset": np.isin(np.arange(7), reset)}
    for read, met in (
        ("after", after[1:]),
        ("before", before),
        ("chunk_start", starts),
        ("call_end", ends),
    ):
        found = results("delta", p | masks, {"read": read, "reference": reference}, span=3)["y"]
        assert_close(
            read, found, np.array([M @ q for M, q in zip(met, p["q"], strict=True)]), ANALYTIC
        )


@pytest.mark.clause("CONV-11")
@pytest.mark.parametrize("rule", RULES)
def test_under_call_start_the_read_at_the_start_of_a_span_is_that_of_the_first_memory(rule):
    p = drawn(rule, seed=3)
    found = results(rule, p, bare(rule, read="chunk_start", reference="call_start"), span=2)["y"]
    assert_close("y", found, p["q"] @ p["M0"].T, ANALYTIC)


@pytest.mark.clause("CONV-11", "OMEGA-9")
@pytest.mark.parametrize("read", ["after", "before", "chunk_start", "call_end"])
def test_reads_have_the_derivative_of_the_memory_that_they_meet(read):
    p = drawn("delta", T=5, seed=4) | {"y_bar": np.random.default_rng(0).standard_normal((5, 3))}

    def value(q):
        after, starts, ends = memories(q, span=2)
        met = {"after": after[1:], "before": after[:-1], "chunk_start": starts, "call_end": ends}[
            read
        ]
        return sum(np.sum(bar * (M @ x)) for bar, M, x in zip(p["y_bar"], met, q["q"], strict=True))

    found = results("delta", p, {"read": read}, span=2, grad=True)
    for name in ("k", "v", "q", "retain", "step_size", "M0"):
        derivative = np.zeros(p[name].shape)
        for place in np.ndindex(*p[name].shape):
            moved = p[name].astype(complex)
            moved[place] += 1j * STEP
            derivative[place] = value(p | {name: moved}).imag / STEP
        assert_close(name, found[f"grad/{name}"], derivative, ANALYTIC)


@pytest.mark.clause("CONV-12", "CONV-13")
@pytest.mark.parametrize("rule", ["omega", "titans_lmm", "delta"])
@pytest.mark.parametrize(
    ("axes", "want"),
    [
        ({"reference": "running"}, [0, 1, 2, 3, 4, 5]),
        ({"reference": "chunk_start"}, [0, 0, 0, 0, 4, 4]),
        ({"reference": "chunk_start", "span_origin": "multiple"}, [0, 0, 0, 3, 3, 3]),
        ({"reference": "call_start"}, [0] * 6),
        ({"reference": "zero"}, [None] * 6),
    ],
    ids=str,
)
def test_reference_says_under_which_memory_residuals_are_taken(rule, axes, want):
    p = drawn(rule, seed=5) | {"step_size": np.full(6, 0.3)}
    p |= {} if rule == "delta" else {"momentum": np.zeros(6)}
    states = [p["M0"]]
    for t in range(6):
        R = 0 * p["M0"] if want[t] is None else states[want[t]]
        states.append(
            p["retain"][t] * states[t] - 0.3 * np.outer(R @ p["k"][t] - p["v"][t], p["k"][t])
        )
    found = results(rule, p, bare(rule, **axes), span=4)["y"]
    assert_close(
        "y", found, np.array([M @ q for M, q in zip(states[1:], p["q"], strict=True)]), ANALYTIC
    )


@pytest.mark.clause("CONV-11", "CONV-12")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("axis", ["reference", "read"])
def test_a_case_of_chunk_start_without_a_span_is_refused(rule, axis):
    with pytest.raises(CaseError, match=f"span: missing, {axis} chunk_start needs one"):
        case(rule, drawn(rule), {axis: "chunk_start"})


@pytest.mark.clause("CONV-11", "CONV-12")
@pytest.mark.parametrize(
    ("rule", "axis"),
    [(rule, "read") for rule in RULES] + [(rule, "reference") for rule in RULES[:3]],
)
def test_a_configuration_of_chunk_start_without_a_span_is_refused(rule, axis):
    with pytest.raises(ValueError, match=f"span: missing, {axis} chunk_start needs one"):
        CONFIGS[rule](d_in=4, d_out=3, convention={axis: "chunk_start"})


@pytest.mark.clause("HEBBIAN-5", "CONV-12")
def test_a_configuration_without_errors_needs_no_span_for_its_reference():
    assert hebbian.Config(d_in=4, d_out=3, convention={"reference": "chunk_start"}).span is None


@pytest.mark.clause("CONV-12")
@pytest.mark.parametrize("rule", RULES)
def test_a_chunk_never_changes_a_result_and_a_span_does(rule):
    p = drawn(rule, seed=5)
    axes = bare(rule, reference="chunk_start", read="chunk_start")
    want = results(rule, p, axes, span=2)["y"]
    for chunk in (1, 3, 100):
        assert_close(
            f"chunk {chunk}", results(rule, p, axes, span=2, chunk=chunk)["y"], want, EXACT
        )
    assert_differs("span", results(rule, p, axes, span=3)["y"], want, 1e-3)


@pytest.mark.clause("CONV-13")
def test_phase_overrides_the_origin_for_the_tokens_before_a_reset():
    p = drawn("delta", T=8, seed=6) | {"reset": np.arange(8) == 4}
    axes = {"reference": "chunk_start"}
    first, multiple = (
        results("delta", p, {**axes, "span_origin": origin}, span=3, phase=2)["y"]
        for origin in ("first", "multiple")
    )
    assert_close("before", multiple[:4], first[:4], EXACT)
    assert_differs("after", multiple[4:], first[4:], 1e-3)


@pytest.mark.clause("CONV-17", "CONV-1")
def test_omega_orthogonalises_unless_told_not_to():
    p = drawn(seed=7)
    default = {
        "coefficients": "muon",
        "steps": 5,
        "eps": 1e-7,
        "norm_factor": 1,
        "guard": "add",
        "transpose": "tall",
        "scale": "1",
        "argument": "S",
    }
    spec = results("omega", p)["y"]
    assert_close("written out", results("omega", p, {"newton_schulz": default})["y"], spec, EXACT)
    assert_differs("none", results("omega", p, BARE)["y"], spec, 1e-2)


def applied(S, rows, *, steps=None, eps=0.01, factor=1.0, guard="add", scale="1"):
    """Newton-Schulz as in CONV-18 to CONV-21."""
    norm = np.sqrt(np.sum(S * S))
    if not norm or (guard == "return" and norm < eps):
        return S
    X = S / (max(factor * norm, eps) if guard == "clamp" else factor * norm + eps)
    for i in range(steps or len(rows)):
        a, b, c = rows[min(i, len(rows) - 1)]
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X * {"1": 1.0, "sqrt": np.sqrt(max(1.0, S.shape[0] / S.shape[1])), "norm": norm}[scale]


MUON, CUBIC = (3.4445, -4.7750, 2.0315), (1.5, -0.5, 0.0)


@pytest.mark.clause("CONV-18", "CONV-19", "CONV-20", "CONV-21")
@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
@pytest.mark.parametrize("size", [1e-3, 0.02, 2.0])
@pytest.mark.parametrize(
    ("keys", "stated"),
    [
        ({}, {"rows": [MUON] * 5}),
        ({"coefficients": "cubic", "steps": 3}, {"rows": [CUBIC] * 3}),
        (
            {"coefficients": [[2, -1.5, 0.5], [1.5, -0.5, 0]], "steps": 4},
            {"rows": [(2.0, -1.5, 0.5), CUBIC], "steps": 4},
        ),
        (
            {"coefficients": [[2, -1.5, 0.5], [1.5, -0.5, 0]], "steps": 1},
            {"rows": [(2.0, -1.5, 0.5)]},
        ),
        ({"steps": 1}, {"rows": [MUON]}),
        ({"norm_factor": 1.5}, {"rows": [MUON] * 5, "factor": 1.5}),
        ({"guard": "clamp"}, {"rows": [MUON] * 5, "guard": "clamp"}),
        (
            {"guard": "clamp", "norm_factor": 2},
            {"rows": [MUON] * 5, "guard": "clamp", "factor": 2.0},
        ),
        ({"guard": "return"}, {"rows": [MUON] * 5, "guard": "return"}),
        ({"transpose": "never"}, {"rows": [MUON] * 5}),
        ({"scale": "sqrt"}, {"rows": [MUON] * 5, "scale": "sqrt"}),
        ({"scale": "norm"}, {"rows": [MUON] * 5, "scale": "norm"}),
    ],
    ids=str,
)
def test_each_key_of_newton_schulz_is_part_of_the_function(keys, stated, size, shape):
    S = np.random.default_rng(8).standard_normal(shape)
    S *= size / np.linalg.norm(S)
    settings = resolve(
        {"newton_schulz": {"eps": 0.01, **keys}}, rule="omega"
    ).newton_schulz_settings
    assert_close("NS(S)", newton_schulz(S, settings), applied(S, **stated), ANALYTIC)


@pytest.mark.clause("CONV-20")
@pytest.mark.parametrize("eps", [0.0, 1e-7])
@pytest.mark.parametrize("guard", ["add", "clamp", "return"])
def test_zero_goes_to_zero_under_every_guard(guard, eps):
    settings = resolve(
        {"newton_schulz": {"guard": guard, "eps": eps}}, rule="omega"
    ).newton_schulz_settings
    assert not newton_schulz(np.zeros((3, 4)), settings).any()


@pytest.mark.clause("CONV-21", "CONV-25")
def test_transpose_and_scale_refer_to_the_matrix_whatever_the_layout_of_files():
    p = drawn(d_in=2, d_out=4, seed=9)
    turned = p | {"M0": p["M0"].T, "S0": p["S0"].T}
    settings = {"newton_schulz": {"scale": "sqrt"}}
    assert_close(
        "y",
        results("omega", turned, {**settings, "layout": "transposed"})["y"],
        results("omega", p, settings)["y"],
        EXACT,
    )
    rate = {"rate": "none", "gate": "none", **BARE}
    one = {
        name: value[:1] if len(value) == 6 else value
        for name, value in without(p, "retain", "step_size").items()
    }
    S = results("omega", one, rate)["S"]
    U = p["M0"] - results("omega", one, rate | settings)["M"]
    assert_close("U", U, applied(S, [MUON] * 5, eps=1e-7, scale="sqrt"), ANALYTIC)


@pytest.mark.clause("CONV-25", "CASE-14")
@pytest.mark.parametrize("order", ["window_then_momentum", "momentum_then_window"])
def test_layout_transposes_states_references_momenta_cotangents_and_gradients(order):
    random = np.random.default_rng(10)
    p = drawn(window=3, seed=10) | {
        "M_ref": random.standard_normal((3, 4)),
        "y_bar": random.standard_normal((6, 3)),
    }
    p |= {"M_bar": random.standard_normal((3, 4)), "S_bar": random.standard_normal((3, 4))}
    if order == "momentum_then_window":
        p["window_momentum"] = random.standard_normal((2, 3, 4))
    else:
        p |= earlier(2)
    axes = {**BARE, "order": order, "reference": "call_start"}
    matrices = ("M0", "S0", "M_ref", "M_bar", "S_bar", "window_momentum")
    turned = p | {name: np.swapaxes(p[name], -1, -2) for name in matrices if name in p}
    plain, found = (
        results("omega", p, axes, window=3, grad=True),
        results("omega", turned, {**axes, "layout": "transposed"}, window=3, grad=True),
    )
    assert plain.keys() == found.keys()
    for name in plain:
        want = np.asarray(plain[name])
        if name.removeprefix("grad/") in ("M", "S", *matrices):
            want = np.swapaxes(want, -1, -2)
        assert_close(name, np.asarray(found[name]), want, ANALYTIC)


@pytest.mark.clause("CONV-8", "CONV-16", "CONV-44")
def test_initial_momenta_in_files_carry_the_sign_of_the_case():
    p = drawn(window=3, seed=11) | {
        "window_momentum": np.random.default_rng(0).standard_normal((2, 3, 4))
    }
    axes = {**BARE, "order": "momentum_then_window"}
    plus = results("omega", p, axes, window=3)
    minus = results(
        "omega",
        p | {name: -p[name] for name in ("S0", "window_momentum")},
        {**axes, "momentum_sign": "minus"},
        window=3,
    )
    assert_close("M", minus["M"], plus["M"], EXACT)
    assert_close("S", minus["S"], -plus["S"], EXACT)
    assert_close("window_momentum", minus["window_momentum"], -plus["window_momentum"], EXACT)
