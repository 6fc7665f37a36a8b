"""Readings of formulas of rule dplr: every setting and every mistake is found in what is returned."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr import formulas, parameters
from atlas_ref.oracle.dplr.program import program_and_parameters
from atlas_ref.oracle.dplr.readings import of_formulas
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.program.derive.readings import context_of_case
from atlas_ref.oracle.subjects.dplr import SUBJECT
from tests.support.close import ANALYTIC, assert_close, relative_error
from tests.truth import dplr_mistakes, gate_formula_loops

STEP = 1e-30

#: Raw numbers, and what a formula has beside them.
NAMES = {*(name[3:] for name in formulas.RAW)}


def made(member: str, seed: int = 5, shift: float = 0.0, rate: float = 0.0, **chosen: Any) -> Any:
    """A case of one head, 7 tokens, 3 channels and values."""
    sizes = {"tokens": 7, "d_in": 3, "d_out": 3, "heads": 1, "seed": seed, "cotangent": True}
    case = new(Request(rule="dplr", draw=1, parameters={"member": member, **chosen}, **sizes))
    x = dict(case.inputs)
    if "in/gate_input" in x:
        x["in/gate_input"] = x["in/gate_input"] + shift
    if "in/gate_log_rate" in x:
        x["in/gate_log_rate"] = x["in/gate_log_rate"] + rate
    return make(case.header.plain(), x)


CASES = {
    "softplus": made("kda", gate_formula="softplus", beta_formula="sigmoid"),
    "far": made("kda", gate_formula="softplus", shift=-14.0, rate=9.0),
    "high": made("gla", gate_formula="softplus", shift=20.5, rate=-3.0),
    "bounded": made("kda", gate_formula="bounded", gate_lower_bound=-2.0),
    "log_sigmoid": made("gla", gate_formula="log_sigmoid", gate_normalizer=4.0, gate_least=-0.2),
    "floor": made("gdn2", gate_formula="floored_sigmoid"),
    "exponential": made("rwkv7", gate_formula="exponential"),
    "twice": made("delta", beta_formula="twice_sigmoid"),
}


def of_case(case: Any) -> Any:
    """Settings in force, for the loop of the tests."""
    own = parameters.parse(case.header)
    scale = 1.0 if own.scale == 1 else case.inputs["in/k"].shape[-1] ** -0.5
    return types.SimpleNamespace(
        erase=own.of.erase, decay=own.order, scale=scale, steps=1, groups=1, k_norm="none",
        q_norm="none", eps=own.norm_eps, second="", floor=0.0,
    )  # fmt: skip


def planted(case: Any, mistake: str = "", **tensors: Any) -> dict[str, Any]:
    """Results of the loop of the tests, with one mistake in its formula."""
    own = case.header.parameters
    bare = {name.removeprefix("in/"): value for name, value in case.inputs.items()} | tensors
    x = {n: value for n, value in bare.items() if n not in NAMES and not n.endswith("_bar")}
    if "gate_formula" in own:
        of = {n[5:]: own[n] for n in formulas.SETTINGS if own.get(n) is not None}
        of |= {"floor": bare["gate_floor"]} if "gate_floor" in bare else {}
        raw = (bare["gate_input"], bare.get("gate_log_rate", np.zeros(1)), bare["gate_bias"])
        gates = gate_formula_loops.run(own["gate_formula"], *raw, mistake, **of)
        x["log_retain"] = gates if tensors else gates.real
    if "beta_formula" in own:
        z = bare["beta_input"].real if mistake == "beta_input held" else bare["beta_input"]
        x["beta"] = (2 if own["beta_formula"] == "twice_sigmoid" else 1) / (1 + np.exp(-z))
    return dplr_mistakes.run(x, of_case(case), "" if mistake in OWN else mistake)


#: Mistakes of formulas, which the loop behind them does not know.
OWN = {
    each.name
    for case in CASES.values()
    for at in [context_of_case(program_and_parameters, case)]
    for each in (*of_formulas.mistakes(at), *of_formulas.constants(at))
}


def results(case: Any, mistake: str = "") -> dict[str, Any]:
    return {f"out/{n}": x.astype(np.float32) for n, x in planted(case, mistake).items()}


def shows(case: Any, mistake: str) -> bool:
    """Whether results are others, and of a size that float32 holds."""
    with np.errstate(all="ignore"):
        own, other = planted(case), planted(case, mistake)
    if not all(np.abs(x).max() < 1e30 for x in other.values()):
        return False
    return any(relative_error(other[name], own[name]) > 1e-5 for name in own)


MISTAKES = [
    (name, each)
    for name, case in CASES.items()
    for each in SUBJECT.searched.departures(case)
    if each.name in OWN and not each.grad and shows(case, each.name)
]
SETTINGS = [
    (name, each)
    for name, case in CASES.items()
    for each in SUBJECT.searched.settings(case)
    if any("_formula" in key or "gate_" in key for key in each.change)
]
HELD = [
    (name, each.name)
    for name, case in CASES.items()
    for each in SUBJECT.searched.departures(case)
    if each.name in OWN and each.grad
]


@pytest.mark.clause("DPLRCASE-18", "DPLRCASE-9")
@pytest.mark.parametrize("name", CASES)
def test_own_results_match_the_case(name: str) -> None:
    mine = results(CASES[name])
    if name == "high":  # float32 cannot tell whether there is a threshold
        mine = {n: x for n, x in evaluate(CASES[name]).tensors.items() if n[:4] == "out/"}
    answer = identify(CASES[name], mine, depth=1)
    assert (answer.verdict, answer.own) == ("MATCH", True), (answer.undecided, answer.why)


@pytest.mark.clause("DPLRCASE-18", "IDENT-7")
@pytest.mark.parametrize(("name", "each"), SETTINGS, ids=lambda each: getattr(each, "name", each))
def test_every_other_formula_and_setting_is_found(name: str, each: Any) -> None:
    case, header = CASES[name], CASES[name].header.plain()
    header["parameters"] = {**header["parameters"], **each.settings}
    dtype = "float64" if "gate_threshold" in each.settings else "float32"
    stated = make(header, case.inputs)
    ours = {n: x for n, x in evaluate(stated, dtype=dtype).tensors.items() if n[:4] == "out/"}
    answer = identify(case, ours)
    assert answer.verdict in ("MATCH", "UNDECIDABLE")
    twins = [dict(twin.changes) for twin in answer.twins]
    assert dict(each.change) in [answer.from_own, *twins], (answer.from_own, twins)
    assert not answer.own


@pytest.mark.clause("DPLRCASE-18", "IDENT-14")
@pytest.mark.parametrize(("name", "each"), MISTAKES, ids=lambda each: getattr(each, "name", each))
def test_every_mistake_is_named(name: str, each: Any) -> None:
    answer = identify(CASES[name], results(CASES[name], each.name))
    words = [one.words for one in answer.departures]
    assert answer.verdict == "NO MATCH"
    assert each.words in words, (answer.from_own, words)


@pytest.mark.clause("DPLRCASE-18")
def test_every_mistake_and_setting_is_shown_by_some_case() -> None:
    graded = {name for _, name in HELD}
    assert {each.name for _, each in MISTAKES} == OWN - graded
    assert graded == {f"{name} held" for name in NAMES}
    changed = {key for _, each in SETTINGS for key in each.change}
    assert changed == {
        f"parameters.{n}" for n in ("gate_formula", "beta_formula", *formulas.SETTINGS)
    }
    bound = [each for name, each in SETTINGS if name == "bounded"]
    assert "softplus" in [each.change.get("parameters.gate_formula") for each in bound]


def gradients(case: Any, mistake: str) -> dict[str, Any]:
    """Derivatives by complex steps, in which a part that is held fixed has no imaginary part."""
    found = {}
    for name in (n[3:] for n in case.inputs if n != "in/y_bar"):
        x, slopes = case.inputs[f"in/{name}"], []
        for place in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[place] += 1j * STEP
            out = planted(case, mistake, **{name: moved})
            slopes.append(np.sum(case.inputs["in/y_bar"] * out["y"]).imag / STEP)
        found[f"grad/{name}"] = np.reshape(slopes, x.shape)
    return found


@pytest.mark.clause("DPLRCASE-16", "DPLRCASE-17")
@pytest.mark.parametrize(
    "name", [name for name in CASES if name != "far"]
)  # loops lose digits there
def test_complex_steps_without_a_mistake_are_the_gradients_of_the_rule(name: str) -> None:
    case = CASES[name]
    want = evaluate(case, grad=True).tensors
    for each, value in gradients(case, "").items():
        assert_close(each, value, want[each], ANALYTIC)


@pytest.mark.sample(8)
@pytest.mark.clause("DPLRCASE-18", "IDENT-14")
@pytest.mark.parametrize(("name", "mistake"), HELD)
def test_a_gradient_that_a_tensor_does_not_get_is_named(name: str, mistake: str) -> None:
    case = CASES[name]
    (each,) = [one for one in SUBJECT.searched.departures(case) if one.name == mistake]
    slopes = {n: x.astype(np.float32) for n, x in gradients(case, mistake).items()}
    answer = identify(case, results(case) | slopes, depth=1)
    assert each.words in [one.words for one in answer.departures], answer
