"""Bounds of gates: CONV-66 and GATES-16, in every form, certified, identified and refused."""

import numpy as np
import pytest

from atlas_ref import CaseError, evaluate, make
from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.replay.replay import exit_code, first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.parts import gates
from atlas_ref.rules import deep_memory
from tape import grad, ops
from tests.support.certified import assert_certified
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.identified import made, results, same_point
from tests.support.literally import assert_literal
from tests.truth.literal import evaluate as literal

RETAIN, STEP = [0.55, 0.7], [0.15, 0.3]
BOUNDS = {"retain_bounds": RETAIN, "step_bounds": STEP}
PLAIN = {"newton_schulz": "none"}
#: Rule, form, and what the case has beside its bounds.
CASES = {
    "titans": ("titans_lmm", "sequential", {}),
    "titans forget": ("titans_lmm", "exact", {"convention": {"gate": "forget"}}),
    "titans rows": ("titans_lmm", "scan", {"per_dimension_gates": True}),
    "titans both": ("titans_lmm", "scan", {"convention": {"rate": "both"}}),
    "titans split": ("titans_lmm", "exact", {"convention": {"rate": "split"}}),
    "delta early": ("delta", "exact", {"convention": {"decay": "before_error"}, "pulse": 2}),
    "hebbian": ("hebbian", "chunkwise", {"reset": 3}),
    "omega": ("omega", "sequential", {"window": 2}),
    "omega kernel": ("omega", "kernel", {"window": 2}),
    "omega frozen": (
        "omega",
        "atlas_parallel",
        {"window": 2, "span": 2, "convention": {"reference": "chunk_start"}},
    ),
}


def case_of(rule, more, bounds=BOUNDS):
    """A case whose gates lie below, between, above and on their bounds."""
    sizes = {"tokens": 5, "d_in": 3, "d_out": 2, "seed": 7, "cotangent": True}
    axes = more.get("convention", {}) | bounds
    drawn = new(Request(**{"rule": rule, **sizes, **more, "convention": axes}))
    inputs = dict(drawn.inputs)
    for name, (low, high) in {"in/retain": RETAIN, "in/step_size": STEP}.items():
        if name in inputs:
            values = np.array(
                [low - 0.1, 0.5 * (low + high), high, high + 0.1, 0.6 * low + 0.4 * high]
            )
            rows = values.reshape(5, 1) if inputs[name].ndim == inputs["in/v"].ndim else values
            inputs[name] = np.broadcast_to(rows, inputs[name].shape).copy()
    return drawn.replaced(inputs=inputs)


@pytest.mark.clause("CONV-66", "GATES-16")
@pytest.mark.parametrize(("rule", "form", "more"), CASES.values(), ids=CASES)
def test_every_form_bounds_gates_as_the_literal_loop_does_with_its_gradients(rule, form, more):
    case = case_of(rule, more)
    ours = assert_literal(case, form=form)
    free = evaluate(case, convention=dict.fromkeys(BOUNDS, "none")).tensors["out/y"]
    assert_differs("y", ours["out/y"], free, 1e-4)
    writes = case.inputs.get("in/active", np.ones(5, bool)).astype(bool)
    for bar in (ours[f"grad/{gate}"] for gate in ("retain", "step_size") if f"grad/{gate}" in ours):
        bar = bar.sum(-1) if bar.ndim == ours["out/y"].ndim else bar
        assert np.all(bar[..., [0, 2, 3]] == 0.0)
        assert np.all(bar[..., [t for t in (1, 4) if writes[t]]] != 0.0)


@pytest.mark.clause("CONV-66")
def test_the_second_rate_has_no_bounds():
    case = case_of("titans_lmm", {"convention": {"rate": "split"}})
    beyond = np.full_like(case.inputs["in/step_size_memory"], 0.9)
    inputs = dict(case.inputs) | {"in/step_size_memory": beyond}
    wide = case.replaced(inputs=inputs)
    truth = literal(wide.header.plain(), dict(wide.inputs))
    assert_close("M", evaluate(wide).tensors["out/M"], truth["out/M"], ANALYTIC)


@pytest.mark.clause("CONV-66")
def test_computed_gates_are_bounded():
    case = new(
        Request(
            rule="titans_lmm", level="token", tokens=5, d_in=3, d_out=2, seed=3, cotangent=True,
            convention={"retain_bounds": [0.2, 0.2], "step_bounds": [0.5, 0.5]},
        )
    )  # fmt: skip
    ours = evaluate(case, grad=True).tensors
    assert_close(
        "y", ours["out/y"], literal(case.header.plain(), dict(case.inputs))["out/y"], ANALYTIC
    )
    for gate in ("retain", "step_size"):
        assert not ours[f"grad/param/W_{gate}"].any()
        assert not ours[f"grad/param/b_{gate}"].any()
    assert ours["grad/param/W_momentum"].all()


@pytest.mark.clause("GATES-16")
def test_a_gate_on_a_bound_has_derivative_zero():
    u = np.array([0.1, 0.2, 0.5, 0.8, 0.9])
    assert_close("value", gates.bounded(u, (0.2, 0.8)), [0.2, 0.2, 0.5, 0.8, 0.8], EXACT)
    slope = grad(lambda x: ops.sum(gates.bounded(x, (0.2, 0.8))))(u)
    assert_close("slope", slope, [0.0, 0.0, 1.0, 0.0, 0.0], EXACT)
    assert gates.bounded(u, "none") is u
    assert gates.bounded(None, (0.2, 0.8)) is None


@pytest.mark.clause("CONV-66")
@pytest.mark.parametrize("name", ["titans forget", "titans rows", "delta early", "omega"])
def test_bounded_gates_are_certified(name):
    rule, _, more = CASES[name]
    case = case_of(rule, more)
    assert_certified(case, ANALYTIC)


@pytest.mark.clause("CONV-66")
def test_a_replay_passes_and_names_bounds_that_a_program_does_without():
    case = case_of("titans_lmm", {}, {"step_bounds": STEP})
    assert exit_code(replay(case, trace(case, dtype="float32"))) == 0
    free = make(case.header.plain() | {"convention": "spec"}, case.inputs)
    first = first_wrong(replay(case, trace(free, dtype="float32")))
    assert first.op == "S"
    assert "step_bounds none" in first.nearest.split(" or ")


@pytest.mark.clause("CONV-66", "IDENT-2")
def test_a_program_without_the_bounds_is_identified_and_bounds_out_of_reach_are_twins():
    case = made("titans_lmm", convention=BOUNDS)
    free = dict.fromkeys(BOUNDS, "none")
    answer = identify(case, results(case, free, "out/y"), depth=1)
    assert answer.verdict == "MATCH"
    assert same_point(case, answer.match.convention, free)
    wide = made("titans_lmm", convention={"retain_bounds": [0.0, 1.0], "step_bounds": [0.0, 9.0]})
    twins = identify(wide, results(wide, free, "out/y"), depth=1).twins
    reasons = {next(iter(each.changes)): each.reason for each in twins if len(each.changes) == 1}
    for axis, gate in (("retain_bounds", "retain"), ("step_bounds", "step_size")):
        assert reasons[axis].startswith(f"CONV-66: no {gate} is outside its bounds")


@pytest.mark.clause("CONV-66")
@pytest.mark.parametrize(
    "value",
    [[0.5, 0.4], [-0.1, 0.5], [0.5, 1.5], [0.5], 0.5, "wide", [True, 1], [0.1, None]],
    ids=str,
)
def test_bounds_that_are_no_range_of_their_gate_are_refused(value):
    with pytest.raises(
        CaseError, match='retain_bounds must be "none" or \\[least, greatest\\] with 0'
    ):
        new(Request(rule="delta", tokens=2, d_in=2, d_out=2, convention={"retain_bounds": value}))


@pytest.mark.clause("CONV-66")
def test_bounds_of_a_deep_memory_are_refused():
    with pytest.raises(ValueError, match="step_bounds is not defined for deep_memory"):
        deep_memory.Config(d_in=3, d_out=2, convention={"step_bounds": STEP})
    assert resolve({"step_bounds": STEP}, rule="delta").step_bounds == tuple(STEP)
