"""The backward of Omega as its spec writes it, against the tape and complex step through literal
loops.
"""

import numpy as np
import pytest

from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.sequences import drawn, results, without
from tests.truth.longhand import Setting, backward, complex_step, forward

FROZEN = {"reference": "chunk_start", "span": 2}
SETTINGS = {
    "running": Setting(c=3),
    "memory": Setting(c=2, rate="memory"),
    "both": Setting(c=2, rate="both"),
    "split": Setting(c=2, rate="split"),
    "gradient_scale": Setting(c=3, s=1.7),
    "before_error": Setting(c=3, decay="before_error"),
    "zero": Setting(c=3, reference="zero"),
    "recompute": Setting(c=3, **FROZEN),
    "recompute-before_error": Setting(c=3, decay="before_error", **FROZEN),
    "cut": Setting(c=3, boundary="cut", **FROZEN),
    "cut-before_error": Setting(c=4, boundary="cut", decay="before_error", **FROZEN),
    "carry": Setting(c=4, boundary="carry", **FROZEN),
    "carry-before_error": Setting(c=4, boundary="carry", decay="before_error", **FROZEN),
    "carry-phase": Setting(c=3, boundary="carry", reference="chunk_start", span=3, phase=1),
    "call_start": Setting(c=3, reference="call_start", rate="memory"),
    "call_start-carry": Setting(c=3, reference="call_start", boundary="carry"),
    "renormalise": Setting(c=4, edge="renormalise"),
    "renormalise-cut": Setting(c=4, edge="renormalise", boundary="cut", **FROZEN),
    "newton_schulz": Setting(c=3, rate="both", argument="S"),
    "newton_schulz-carry": Setting(c=3, rate="both", argument="S", boundary="carry", **FROZEN),
    "nesterov": Setting(c=2, rate="split", argument="nesterov"),
    "written_back": Setting(c=2, rate="both", argument="written_back"),
    "accumulated": Setting(c=2, argument="accumulated"),
    "accumulated-frozen": Setting(c=2, argument="accumulated", rate="memory", **FROZEN),
    "momentum_first": Setting(c=3, order="momentum_then_window"),
    "momentum_first-before_error": Setting(
        c=3, order="momentum_then_window", decay="before_error", rate="memory"
    ),
    "momentum_first-frozen": Setting(c=3, order="momentum_then_window", **FROZEN),
    "momentum_first-nesterov": Setting(
        c=3, order="momentum_then_window", rate="both", argument="nesterov"
    ),
    "momentum_first-accumulated": Setting(
        c=3, order="momentum_then_window", argument="accumulated"
    ),
}


def sequence(o, *, per_dimension=False, initial=True, masks=True, T=5, seed=0):
    """Inputs with an inactive token, a reset, initial contents and cotangents of all three
    results.
    """
    random = np.random.default_rng(100 + seed)
    d_in, d_out = 3, 2
    p = drawn(
        T=T,
        d_in=d_in,
        d_out=d_out,
        window=o.c,
        per_dimension=per_dimension,
        split=o.rate == "split",
        seed=seed,
    )
    n = min(2, o.c - 1) if initial else 0
    if n and not o.momentum_first:
        p |= {
            "window_k": random.standard_normal((n, d_in)),
            "window_v": random.standard_normal((n, d_out)),
        }
        if o.boundary == "carry":
            p["window_residual"] = random.standard_normal((n, d_out))
    if n and o.momentum_first:
        p["window_momentum"] = random.standard_normal((n, d_out, d_in))
    if o.frozen and (o.phase or o.reference == "call_start"):
        p["M_ref"] = random.standard_normal((d_out, d_in))
    if masks:
        p["active"] = np.array([True, False, True, True, True])
        p["reset"] = np.array([False, False, False, initial, False])
    p |= {
        "y_bar": random.standard_normal((T, d_out)),
        "M_bar": random.standard_normal((d_out, d_in)),
    }
    return p | {"S_bar": random.standard_normal((d_out, d_in))}


def compare(o, p):
    """The tape's gradient and the complex step's of every input against the longhand one."""
    result = results("omega", p, o.convention, grad=True, **o.header)
    longhand = backward(p, o)
    for name, want in longhand.items():
        assert_close(f"tape, {name}", result[f"grad/{name}"], want, ANALYTIC)
        assert_close(f"complex step, {name}", complex_step(p, o, name), want, ANALYTIC)
    assert {
        name.removeprefix("grad/") for name in result if name.startswith("grad/")
    } == longhand.keys()


@pytest.mark.clause(
    "OMEGA-23",
    "OMEGA-24",
    "OMEGA-25",
    "OMEGA-26",
    "OMEGA-13",
    "WINDOW-22",
    "WINDOW-23",
    "WINDOW-24",
    "WINDOW-13",
    "CONV-32",
    "CONV-33",
)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_pullback_is_the_one_written_out(name):
    compare(SETTINGS[name], sequence(SETTINGS[name]))


@pytest.mark.clause("OMEGA-23", "OMEGA-24", "OMEGA-26", "GATES-3")
@pytest.mark.parametrize(
    "name",
    [
        "running",
        "both",
        "split",
        "carry-before_error",
        "nesterov",
        "written_back",
        "momentum_first-before_error",
    ],
)
def test_gates_per_output_dimension_take_the_inner_products_row_by_row(name):
    compare(SETTINGS[name], sequence(SETTINGS[name], per_dimension=True, seed=1))


@pytest.mark.clause("OMEGA-26", "WINDOW-24")
@pytest.mark.parametrize("name", ["recompute", "cut", "carry", "momentum_first-frozen"])
def test_the_pullback_holds_without_initial_contents_and_resets(name):
    compare(SETTINGS[name], sequence(SETTINGS[name], initial=False, seed=2))


@pytest.mark.clause("OMEGA-23")
def test_the_forward_loop_of_this_file_is_the_rule():
    for name, o in SETTINGS.items():
        p = sequence(o)
        result, (want, _) = results("omega", p, o.convention, **o.header), forward(p, o)
        for key in ("y", "M", "S"):
            assert_close(f"{name}, {key}", result[key], want[key], ANALYTIC)


@pytest.mark.clause("OMEGA-23")
def test_under_memory_the_whole_step_size_gradient_comes_from_the_update():
    o = SETTINGS["memory"]
    p = sequence(o, initial=False, masks=False)
    result = results("omega", p, o.convention, grad=True, **o.header)
    M_T_bar = p["M_bar"] + np.outer(p["y_bar"][-1], p["q"][-1])
    _, record = forward(p, o)
    assert_close(
        "last step size", result["grad/step_size"][-1], -np.sum(M_T_bar * record[-1].U), ANALYTIC
    )


@pytest.mark.clause("OMEGA-23")
def test_under_both_the_update_is_the_whole_step_size_gradient_of_a_first_token():
    settings = {"coefficients": "cubic", "steps": 5, "eps": 0.0}
    p = without(drawn(T=1, seed=3), "S0")
    p |= {"y_bar": np.random.default_rng(0).standard_normal((1, 3))}
    result = results("omega", p, {"newton_schulz": settings}, grad=True)
    U = (p["retain"][0] * p["M0"] - result["M"]) / p["step_size"][0]
    assert_close(
        "step size",
        result["grad/step_size"][0],
        -np.sum(np.outer(p["y_bar"][0], p["q"][0]) * U),
        ANALYTIC,
    )
    p["S0"] = np.random.default_rng(1).standard_normal((3, 4))
    result = results("omega", p, {"newton_schulz": settings}, grad=True)
    U = (p["retain"][0] * p["M0"] - result["M"]) / p["step_size"][0]
    assert_differs(
        "from S0",
        result["grad/step_size"][0],
        -np.sum(np.outer(p["y_bar"][0], p["q"][0]) * U),
        1e-3,
    )


@pytest.mark.clause("OMEGA-25")
def test_the_window_weight_occurs_once_in_the_memory_gradient():
    p = without(drawn(T=1, window=2, seed=4), "S0", "momentum", "q") | {"q": np.zeros((1, 4))}
    p |= {"y_bar": np.zeros((1, 3)), "M_bar": np.random.default_rng(2).standard_normal((3, 4))}
    gradient = results("omega", p, {"newton_schulz": "none"}, window=2, grad=True)["grad/M0"]
    k, w, h, M_bar = p["k"][0], p["window_weights"][0, 0], p["step_size"][0], p["M_bar"]
    assert_close(
        "once", gradient, p["retain"][0] * M_bar - h * w * M_bar @ np.outer(k, k), ANALYTIC
    )


@pytest.mark.clause("OMEGA-26")
def test_an_inactive_token_passes_the_carries_and_gives_its_gates_nothing():
    o = Setting(c=1)
    p = sequence(o) | {
        "active": np.zeros(5, bool),
        "reset": np.zeros(5, bool),
        "y_bar": np.zeros((5, 2)),
    }
    result = results("omega", p, o.convention, grad=True)
    assert_close("M0", result["grad/M0"], p["M_bar"], ANALYTIC)
    assert_close("S0", result["grad/S0"], p["S_bar"], ANALYTIC)
    for gate in ("retain", "momentum", "step_size"):
        assert not result[f"grad/{gate}"].any()


@pytest.mark.clause("WINDOW-24")
def test_a_cut_token_receives_nothing_from_the_times_after_the_cut():
    o = Setting(c=4, boundary="cut", reference="chunk_start", span=2)
    p = sequence(o, initial=False, masks=False)
    p["y_bar"] = np.where(np.arange(5)[:, None] == 3, p["y_bar"], 0.0)  # the read of token 3 alone
    p |= {
        "M_bar": np.zeros((2, 3)),
        "S_bar": np.zeros((2, 3)),
        "momentum": np.zeros(5),
        "retain": np.zeros(5),
    }
    results_of = {
        name: results(
            "omega", p, {**o.convention, "window_at_boundary": name}, grad=True, **o.header
        )
        for name in ("cut", "recompute")
    }
    reference_alone = results(
        "omega",
        {**p, "window_weights": p["window_weights"] * [1, 1, 0, 0]},
        o.convention,
        grad=True,
        **o.header,
    )
    assert_close("cut", results_of["cut"]["grad/v"][:2], reference_alone["grad/v"][:2], ANALYTIC)
    assert_differs(
        "recompute", results_of["recompute"]["grad/v"][:2], results_of["cut"]["grad/v"][:2], 1e-3
    )
