"""Delta momentum, which forgets more the larger a gradient is: CONV-70."""

import numpy as np
import pytest

from atlas_ref import CaseError, evaluate, make
from atlas_ref.conventions import resolve
from atlas_ref.forms import support
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.identify.equivalence import TESTS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.properties import Numbers
from atlas_ref.oracle.judge import op_steps
from atlas_ref.oracle.replay.replay import exit_code, first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.parts.momentum import MARGIN, faded
from tape import check, ops, vjp
from tests.support.certified import assert_certified
from tests.support.close import ANALYTIC, EXACT, assert_close, assert_differs
from tests.support.identified import made, results, same_point
from tests.support.literally import assert_literal

DELTA = {"momentum_kind": "delta_momentum"}
PLAIN = {"newton_schulz": "none"}
#: Rule, and what the case has beside delta momentum.
CASES = {
    "titans": ("titans_lmm", {}),
    "titans minus": ("titans_lmm", {"pulse": 2, "convention": {"momentum_sign": "minus"}}),
    "titans rows": ("titans_lmm", {"per_dimension_gates": True}),
    "titans split": ("titans_lmm", {"convention": {"rate": "split"}}),
    "titans token": ("titans_lmm", {"level": "token"}),
    "titans frozen": ("titans_lmm", {"span": 2, "convention": {"reference": "chunk_start"}}),
    "omega": ("omega", {"window": 2}),
    "omega reset": ("omega", {"window": 2, "reset": 3, "convention": PLAIN}),
    "omega momenta": (
        "omega",
        {"window": 2, "convention": {**PLAIN, "order": "momentum_then_window"}},
    ),
}


def case_of(rule, more, change=DELTA):
    """A case whose gradients are small enough for the clamp to act at some tokens only."""
    sizes = {"tokens": 5, "d_in": 3, "d_out": 2, "seed": 7, "cotangent": True}
    axes = more.get("convention", {}) | change
    case = new(Request(**{"rule": rule, **sizes, **more, "convention": axes}))
    small = {
        name: 0.5 * np.asarray(x)
        for name, x in case.inputs.items()
        if name in ("in/k", "in/v", "in/x")
    }
    return case.replaced(inputs=dict(case.inputs) | small)


@pytest.mark.clause("CONV-70", "CONV-64")
@pytest.mark.parametrize(("rule", "more"), CASES.values(), ids=CASES)
def test_the_rule_is_the_literal_loop_with_its_gradients(rule, more):
    case = case_of(rule, more)
    ours = assert_literal(case)
    other = evaluate(case, convention={"momentum_kind": "sum"}).tensors["out/y"]
    assert_differs("y", ours["out/y"], other, 1e-4)


@pytest.mark.clause("CONV-70")
def test_the_factor_is_clamped_on_both_sides_and_constant_there():
    gate, g = np.array([[[0.9]], [[0.3]], [[1.0]]]), np.zeros((3, 2, 2))
    g[0, 0], g[1, 1] = 0.5, 0.5  # |g|^2 is 0.5, 0.5 and 0
    value, pullback = vjp(faded, gate, g)
    assert_close("factor", value, np.array([[[0.4]], [[MARGIN]], [[1.0 - MARGIN]]]), ANALYTIC)
    to_gate, to_g = pullback(np.ones((3, 1, 1)))
    assert_close("gate", to_gate, np.array([[[1.0]], [[0.0]], [[0.0]]]), EXACT)
    assert_close("g", to_g, -2.0 * g * to_gate, ANALYTIC)
    check.check_gradient(lambda both: ops.sum(faded(*both)), (gate, g))


@pytest.mark.clause("CONV-70")
def test_gates_per_dimension_share_the_norm_of_the_matrix():
    gate, g = np.array([[0.9], [0.6]]), np.array([[0.3, 0.1], [0.2, 0.2]])
    assert_close("factor", faded(gate, g), gate - 0.18, ANALYTIC)


@pytest.mark.clause("CONV-70", "CERT-1")
@pytest.mark.parametrize("name", ["titans rows", "titans token", "omega", "omega momenta"])
def test_it_is_certified(name):
    case = case_of(*CASES[name])
    assert_certified(case, ANALYTIC)


@pytest.mark.clause("CONV-70")
@pytest.mark.parametrize("name", ["titans", "omega momenta"])
def test_a_replay_passes_and_names_it_where_a_sum_was_stated(name):
    rule, more = CASES[name]
    case = case_of(rule, more)
    ours = trace(case, dtype="float32")
    assert exit_code(replay(case, ours)) == 0
    stated = make(
        case.header.plain() | {"convention": more.get("convention") or "spec"}, case.inputs
    )
    first = first_wrong(replay(stated, ours))
    assert first.op == "S"
    assert "momentum_kind delta_momentum" in first.nearest.split(" or ")


@pytest.mark.clause("CONV-70", "TOL-9")
@pytest.mark.parametrize("way", MEMBERS, ids=lambda way: way.name)
def test_a_step_is_judged_with_the_factor_of_its_gradient(way):
    random = np.random.default_rng(5)
    S, g = random.standard_normal((2, 3, 4))
    g *= 0.1
    inputs = {"S": S, "gradient": g, "momentum": np.full((3, 1), 0.8), "a": np.full((3, 1), 0.3)}
    got = op_steps.evaluate("S", inputs, resolve(DELTA, rule="titans_lmm"), way)
    assert_close("S", got, (0.8 - np.sum(g**2)) * S + 0.3 * g, ANALYTIC)


@pytest.mark.clause("CONV-70", "IDENT-2")
@pytest.mark.parametrize("rule", ["titans_lmm", "omega"])
def test_it_is_identified(rule):
    case = made(rule, convention=PLAIN if rule == "omega" else "spec")
    planted = DELTA | (PLAIN if rule == "omega" else {})
    answer = identify(case, results(case, planted, "out/y"), depth=1)
    assert answer.verdict == "MATCH"
    assert same_point(case, answer.match.convention, planted)


@pytest.mark.clause("CONV-70")
def test_only_a_case_without_a_momentum_gate_hides_it():
    case = made("titans_lmm")
    still = dict(case.inputs) | {"in/momentum": np.zeros_like(case.inputs["in/momentum"])}
    none = {name: x for name, x in case.inputs.items() if name not in ("in/momentum", "in/S0")}
    twin = {}
    for label, inputs in {"still": still, "none": none}.items():
        numbers = Numbers(case.replaced(inputs=inputs), inputs, case.convention)
        twin[label] = TESTS["momentum_kind"](numbers, "sum", "delta_momentum", frozenset({"out/y"}))
    assert twin == {"still": None, "none": ("CONV-70", "the case has no momentum")}
    bare = case.replaced(inputs=none)
    sums, fading = (evaluate(bare, convention=each).tensors for each in ("spec", DELTA))
    assert_close("y", fading["out/y"], sums["out/y"], EXACT)


@pytest.mark.clause("CONV-70", "CHUNK-21")
@pytest.mark.parametrize("form", [f for f in support.FORMS if f not in ("sequential", "tnt")])
def test_forms_of_several_tokens_refuse_it(form):
    frozen = form in ("chunkwise", "atlas_parallel")
    more = {"span": 2, "convention": {"reference": "chunk_start"}} if frozen else {}
    case = case_of("titans_lmm", more)
    with pytest.raises(
        CaseError, match="momentum_kind delta_momentum is known only with each gradient"
    ):
        evaluate(case, form=form)


@pytest.mark.clause("CONV-64", "CONV-70")
def test_nesterov_and_deep_memories_refuse_it():
    nesterov = DELTA | {"newton_schulz": {"argument": "nesterov"}}
    with pytest.raises(
        ValueError, match="momentum_kind delta_momentum is not defined for newton_schulz"
    ):
        resolve(nesterov, rule="omega")
    with pytest.raises(
        ValueError, match="momentum_kind delta_momentum is not defined for deep_memory"
    ):
        resolve(DELTA, rule="deep_memory")
