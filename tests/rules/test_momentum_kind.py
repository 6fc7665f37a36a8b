"""Momentum as an average of gradients: CONV-64 and CONV-65, in every form and certified."""

import numpy as np
import pytest

from atlas_ref import CaseError, evaluate, make
from atlas_ref.conventions import resolve
from atlas_ref.forms import tnt
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.identify.equivalence import TESTS
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.properties import Numbers
from atlas_ref.oracle.judge import op_steps
from atlas_ref.oracle.replay.replay import exit_code, first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.rules import deep_memory, omega, titans_lmm
from tests.support.certified import assert_certified
from tests.support.close import ANALYTIC, assert_close, assert_differs
from tests.support.identified import made, results, same_point
from tests.support.literally import assert_literal

AVERAGE = {"momentum_kind": "average"}
PLAIN = {"newton_schulz": "none"}
#: Rule, form, and what the case has beside an average.
CASES = {
    "titans": ("titans_lmm", "sequential", {}),
    "titans exact": ("titans_lmm", "exact", {"pulse": 2}),
    "titans scan": ("titans_lmm", "scan", {"convention": {"momentum_sign": "minus"}}),
    "titans rows": ("titans_lmm", "exact", {"per_dimension_gates": True}),
    "titans memory": ("titans_lmm", "sequential", {"convention": {"rate": "memory"}}),
    "titans split": ("titans_lmm", "scan", {"convention": {"rate": "split"}}),
    "titans token": ("titans_lmm", "exact", {"level": "token"}),
    "titans frozen": (
        "titans_lmm",
        "chunkwise",
        {"span": 2, "convention": {"reference": "chunk_start"}},
    ),
    "omega": ("omega", "sequential", {"window": 2}),
    "omega kernel": ("omega", "kernel", {"window": 2, "reset": 3}),
    "omega exact": ("omega", "exact", {"window": 3, "convention": PLAIN}),
    "omega momenta": (
        "omega",
        "exact",
        {"window": 2, "convention": {**PLAIN, "order": "momentum_then_window"}},
    ),
    "omega parallel": (
        "omega",
        "atlas_parallel",
        {"window": 2, "span": 2, "convention": {"reference": "chunk_start"}},
    ),
}


def case_of(rule, more):
    sizes = {"tokens": 5, "d_in": 3, "d_out": 2, "seed": 7, "cotangent": True}
    axes = more.get("convention", {}) | AVERAGE
    return new(Request(**{"rule": rule, **sizes, **more, "convention": axes}))


@pytest.mark.clause("CONV-64", "OMEGA-6", "TITANS-3")
@pytest.mark.parametrize(("rule", "form", "more"), CASES.values(), ids=CASES)
def test_every_form_computes_the_average_of_the_literal_loop_with_its_gradients(rule, form, more):
    case = case_of(rule, more)
    ours = assert_literal(case, form=form)
    other = evaluate(case, convention={"momentum_kind": "sum"}).tensors["out/y"]
    assert_differs("y", ours["out/y"], other, 1e-4)


@pytest.mark.clause("CONV-64")
@pytest.mark.parametrize("name", ["titans rows", "titans token", "omega", "omega momenta"])
def test_an_average_is_certified(name):
    rule, _, more = CASES[name]
    case = case_of(rule, more)
    assert_certified(case, ANALYTIC)


@pytest.mark.clause("CONV-64")
@pytest.mark.parametrize("name", ["titans", "omega momenta"])
def test_a_replay_of_an_average_passes_and_names_it_where_a_sum_was_stated(name):
    rule, _, more = CASES[name]
    case = case_of(rule, more)
    ours = trace(case, dtype="float32")
    assert exit_code(replay(case, ours)) == 0
    stated = make(
        case.header.plain() | {"convention": more.get("convention") or "spec"}, case.inputs
    )
    first = first_wrong(replay(stated, ours))
    assert first.op == "S"
    assert "momentum_kind average" in first.nearest.split(" or ")


@pytest.mark.clause("CONV-64", "TOL-9")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_of_an_average_is_judged_as_an_average(sign):
    random = np.random.default_rng(5)
    S, g = random.standard_normal((2, 3, 4))
    m, a = random.uniform(0.1, 0.9, (2, 3, 1))
    inputs = {"S": S, "gradient": g, "momentum": m, "a": a}
    axes = AVERAGE | {"momentum_sign": "plus" if sign > 0 else "minus"}
    got = op_steps.evaluate("S", inputs, resolve(axes, rule="titans_lmm"), MEMBERS[0])
    assert_close("S", got, m * S + sign * (1.0 - m) * a * g, ANALYTIC)
    alone = op_steps.evaluate(
        "S", {"S": S, "gradient": g}, resolve(axes, rule="titans_lmm"), MEMBERS[0]
    )
    assert_close("S without momentum", alone, sign * g, ANALYTIC)


@pytest.mark.clause("CONV-64")
def test_the_weights_of_an_average_sum_to_one():
    case = case_of("titans_lmm", {"convention": {"rate": "memory", "reference": "zero"}})
    ones = {name: np.ones_like(case.inputs[name]) for name in ("in/k", "in/v")}
    rest = {"in/S0": -np.ones_like(evaluate(case).tensors["out/S"])}
    constant = case.replaced(inputs=dict(case.inputs) | ones | rest)  # every gradient is -1
    assert_close("S", evaluate(constant).tensors["out/S"], rest["in/S0"], ANALYTIC)


@pytest.mark.clause("CONV-64", "IDENT-2")
@pytest.mark.parametrize("rule", ["titans_lmm", "omega"])
def test_an_average_is_identified(rule):
    case = made(rule, convention=PLAIN if rule == "omega" else "spec")
    planted = AVERAGE | (PLAIN if rule == "omega" else {})
    answer = identify(case, results(case, planted, "out/y"), depth=1)
    assert answer.verdict == "MATCH"
    assert same_point(case, answer.match.convention, planted)


@pytest.mark.clause("CONV-65")
def test_a_constant_momentum_from_rest_is_hidden_by_newton_schulz_and_scales_the_gradient_without():
    case = made("omega", window=2)
    inputs = {name: x for name, x in case.inputs.items() if name != "in/S0"}
    inputs["in/momentum"] = np.full_like(inputs["in/momentum"], 0.75)
    still = case.replaced(inputs=inputs)
    exact = {"newton_schulz": {"eps": 0.0}}
    sums, averages = (evaluate(still, convention=exact | each).tensors for each in ({}, AVERAGE))
    assert_close("y", averages["out/y"], sums["out/y"], ANALYTIC)
    assert_close("S", averages["out/S"], 0.25 * sums["out/S"], ANALYTIC)
    scaled = evaluate(still, convention=PLAIN | {"gradient_scale": 0.25}).tensors
    plain = evaluate(still, convention=PLAIN | AVERAGE).tensors
    assert_close("M", plain["out/M"], scaled["out/M"], ANALYTIC)
    answer = identify(still, results(still, {}, "out/y"), depth=1)
    twins = [each for each in answer.twins if set(each.changes) == {"momentum_kind"}]
    assert [each.reason.split(":")[0] for each in twins] == ["CONV-65"]


@pytest.mark.clause("CONV-65")
@pytest.mark.parametrize(
    "settings",
    [{"argument": "written_back"}, {"argument": "accumulated"}, {"scale": "norm"}],
    ids=str,
)
def test_settings_that_show_the_factor_of_an_average(settings):
    case = made("omega", window=2)
    inputs = {name: x for name, x in case.inputs.items() if name != "in/S0"}
    inputs["in/momentum"] = np.full_like(inputs["in/momentum"], 0.75)
    still = case.replaced(inputs=inputs)
    exact = {"newton_schulz": {"eps": 0.0} | settings}
    sums, averages = (evaluate(still, convention=exact | each).tensors for each in ({}, AVERAGE))
    assert_differs("y", averages["out/y"], sums["out/y"], 1e-4)
    stated = still.replaced(convention=resolve(exact, rule="omega"))
    numbers = Numbers(stated, stated.inputs, stated.convention)
    assert TESTS["momentum_kind"](numbers, "sum", "average", frozenset({"out/y"})) is None


@pytest.mark.clause("CONV-65")
def test_without_momentum_a_sum_is_an_average():
    case = new(Request(rule="titans_lmm", tokens=5, d_in=3, d_out=2))
    inputs = dict(case.inputs) | {"in/momentum": np.zeros_like(case.inputs["in/momentum"])}
    still = case.replaced(inputs=inputs)
    sums, averages = (evaluate(still, convention=each).tensors for each in ("spec", AVERAGE))
    assert_close("M", averages["out/M"], sums["out/M"], ANALYTIC)


@pytest.mark.clause("CONV-64")
def test_what_has_no_average_refuses_it():
    nesterov = AVERAGE | {"newton_schulz": {"argument": "nesterov"}}
    with pytest.raises(ValueError, match="momentum_kind average is not defined for newton_schulz"):
        omega.Config(d_in=3, d_out=2, window=1, convention=nesterov)
    with pytest.raises(CaseError, match="momentum_kind average is not defined for newton_schulz"):
        new(Request(rule="omega", tokens=2, d_in=3, d_out=2, convention=nesterov))
    with pytest.raises(ValueError, match="momentum_kind average is not defined for deep_memory"):
        deep_memory.Config(d_in=3, d_out=2, convention=AVERAGE)
    stated = resolve({"momentum_kind": "average", "gate": "none"}, rule="titans_lmm")
    with pytest.raises(ValueError, match="momentum_kind average is not defined for deep_memory"):
        resolve(stated, rule="deep_memory")
    own = titans_lmm.Config(d_in=3, d_out=2, convention=stated)
    with pytest.raises(ValueError, match="momentum_kind sum"):
        tnt.Local(config=own, shard=4, span=2, base="previous")
