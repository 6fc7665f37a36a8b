"""Cases of rule dplr whose gates and step sizes are formulas of raw numbers, against loops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.deep import functions
from atlas_ref.oracle.dplr import formulas
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge.tolerance import tolerances
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.sweep.split import in_two, join
from tests.support.close import ANALYTIC, EXACT, Tolerance, assert_close
from tests.truth import family_loops, gate_formula_loops

STEP = 1e-30
ROUNDED = Tolerance("ROUNDED", 1e-13)

#: Name -> parameters of a formula.
FORMULAS: dict[str, dict[str, Any]] = {
    "softplus": {"gate_formula": "softplus"},
    "threshold": {"gate_formula": "softplus", "gate_threshold": 0.5},
    "bounded": {"gate_formula": "bounded", "gate_lower_bound": -5.0},
    "log_sigmoid": {"gate_formula": "log_sigmoid", "gate_normalizer": 4.0},
    "smallest": {"gate_formula": "log_sigmoid", "gate_normalizer": 1e-6},
    "clamped": {"gate_formula": "log_sigmoid", "gate_normalizer": 2.0, "gate_least": -0.4},
    "floored_sigmoid": {"gate_formula": "floored_sigmoid"},
    "exponential": {"gate_formula": "exponential"},
    "twice": {"gate_formula": "bounded", "gate_lower_bound": -5, "beta_formula": "twice_sigmoid"},
    "sigmoid": {"beta_formula": "sigmoid"},
}
GATED = [name for name, chosen in FORMULAS.items() if "gate_formula" in chosen]


def drawn(name: str, member: str = "kda", *, channels: bool = True, **fields: Any) -> Any:
    """A case with 2 heads, 5 tokens, 4 channels, 3 values."""
    sizes = {"tokens": 5, "cotangent": True, "seed": 3, **fields}
    case = new(
        Request(rule="dplr", draw=1, parameters={"member": member, **FORMULAS[name]}, **sizes)
    )
    return case if channels else of_tokens(case)


def of_tokens(case: Any) -> Any:
    """The case with one gate a token, in place of one a channel."""
    first = ("in/retain", "in/gate_input", "in/gate_bias", "in/gate_floor")
    return make(
        case.header.plain(), {n: x[..., 0] if n in first else x for n, x in case.inputs.items()}
    )


def by_loops(case: Any, member: str, x: dict[str, Any]) -> dict[str, Any]:
    """Results by the loop of the definitions of gates, then that of the recordings' members."""
    own = case.header.parameters
    bare = {name.removeprefix("in/"): value for name, value in x.items()}
    if "gate_formula" in own:
        of = {n[5:]: own[n] for n in formulas.SETTINGS if n in own}
        of |= {"floor": bare["gate_floor"]} if "gate_floor" in bare else {}
        rate = bare.get("gate_log_rate", np.zeros(2))
        raw = (bare["gate_input"], rate, bare["gate_bias"])
        bare["log_decay"] = gate_formula_loops.run(own["gate_formula"], *raw, **of)
    else:
        bare["log_decay"] = np.log(bare["retain"])
    if "beta_formula" in own:
        share = 1 / (1 + np.exp(-bare["beta_input"]))
        bare["beta"] = 2 * share if own["beta_formula"] == "twice_sigmoid" else share
    bare["state0"] = np.zeros((2, 4, 3))
    asked = ("k", "v", "q", "beta", "log_decay", "state0")
    found = family_loops.run(member, {n: bare[n][None] for n in asked if n in bare})
    return {"out/y": found["y"][0], "out/M": np.swapaxes(found["state"][0], -1, -2)}


@pytest.mark.clause("DPLRCASE-16", "DPLRCASE-17", "GATES-17", "GATES-18", "GATES-19", "GATES-20")
@pytest.mark.parametrize("channels", [True, False], ids=["channels", "one number"])
@pytest.mark.parametrize("name", FORMULAS)
def test_results_and_gradients_of_raw_numbers_are_those_of_the_loops(
    name: str, channels: bool
) -> None:
    """Gradients by complex steps of the loops, which share nothing with the tape."""
    member = "kda" if channels else "gated_delta"
    case = drawn(name, member, channels=channels)
    ours, x = evaluate(case, grad=True).tensors, dict(case.inputs)
    for each, value in by_loops(case, member, x).items():
        assert_close(each, ours[each], np.real(value), ANALYTIC)
    draw = np.random.default_rng(1)
    for each in (n for n in x if f"grad/{n[3:]}" in ours and n != "in/retain"):
        along = draw.standard_normal(x[each].shape)
        moved = by_loops(case, member, {**x, each: x[each] + 1j * STEP * along})
        want = np.sum(x["in/y_bar"] * moved["out/y"]).imag / STEP
        assert_close(each, np.sum(ours[f"grad/{each[3:]}"] * along), want, ANALYTIC)


@pytest.mark.clause("DPLRCASE-16", "DPLRCASE-17", "DPLRCASE-6")
@pytest.mark.parametrize("name", FORMULAS)
def test_the_plain_loop_is_the_rule_and_tolerances_are_measured(name: str) -> None:
    case, plain = drawn(name), SUBJECTS["dplr"].plain
    ours = evaluate(case, grad=True).tensors
    for way in MEMBERS:
        theirs = plain(case.inputs, case, Rounding(way, functions.same, functions.same, None))
        for each, value in theirs.items():
            assert_close(f"{way.name} {each}", value, ours[each], ROUNDED)
    narrow = evaluate(case, grad=True, dtype="float32").tensors
    both = make(case.header.plain(), {**case.inputs, **narrow})
    verdicts = {each.tensor: each.verdict for each in atlas_ref.check(both)}
    assert verdicts == dict.fromkeys(narrow, "PASS")
    assert all(0.0 < each.rms < 1e-5 for each in tolerances(case, dtype="float32").values())


@pytest.mark.clause("DPLRCASE-16")
@pytest.mark.parametrize("form", [{"form": "scan"}, {"form": "chunk", "chunk": 2}])
@pytest.mark.parametrize("name", GATED)
def test_every_form_computes_a_case_with_a_formula(name: str, form: dict[str, Any]) -> None:
    case = drawn(name, pulse=2, reset=3)
    want = evaluate(case, grad=True).tensors
    for each, value in evaluate(case, grad=True, **form).tensors.items():
        assert_close(each, value, want[each], ANALYTIC)


@pytest.mark.clause("DPLRCASE-16")
@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("size", [-1e3, 1e3])
def test_results_and_gradients_are_finite_far_out(name: str, size: float) -> None:
    case = drawn(name)
    raw = np.where(np.arange(4) % 2, size, case.inputs["in/gate_input"])
    case = make(case.header.plain(), {**case.inputs, "in/gate_input": raw})
    for dtype in ("float64", "float32"):
        found = evaluate(case, grad=True, dtype=dtype)
        assert found.not_finite == []


@pytest.mark.clause("DPLRCASE-16")
@pytest.mark.parametrize("name", ["softplus", "log_sigmoid"])
def test_biases_and_rates_of_all_heads_or_none_are_those_of_each_head(name: str) -> None:
    case = drawn(name)
    x = dict(case.inputs)
    shared = {n: np.asarray(x[n][0]) for n in ("in/gate_log_rate", "in/gate_bias") if n in x}
    same = {n: np.broadcast_to(value, x[n].shape).copy() for n, value in shared.items()}
    one = evaluate(make(case.header.plain(), {**x, **shared}), grad=True).tensors
    each = evaluate(make(case.header.plain(), {**x, **same}), grad=True).tensors
    assert_close("y", one["out/y"], each["out/y"], ANALYTIC)
    for n in shared:
        want = each[f"grad/{n[3:]}"].sum(axis=0)
        assert_close(n, one[f"grad/{n[3:]}"], want, ANALYTIC)
    bare = {n: value for n, value in x.items() if n not in shared}
    zeros = {n: np.zeros_like(x[n]) for n in shared}
    none = evaluate(make(case.header.plain(), bare)).tensors
    nothing = evaluate(make(case.header.plain(), {**x, **zeros})).tensors
    assert_close("none", none["out/y"], nothing["out/y"], ANALYTIC)


@pytest.mark.clause("DPLRCASE-16", "DPLRCASE-17")
@pytest.mark.parametrize(
    ("parameters", "change", "message"),
    [
        ({"gate_least": -1.0}, {}, "parameters.gate_least: belongs to gate_formula log_sigmoid"),
        ({"gate_formula": "bounded"}, {}, "parameters.gate_lower_bound: missing, gate_formula bou"),
        (
            {"gate_formula": "bounded", "gate_lower_bound": 0.0},
            {},
            "parameters.gate_lower_bound: must be less than 0",
        ),
        ({"gate_formula": "soft"}, {}, "parameters.gate_formula: must be 'softplus', "),
        (
            {"gate_formula": "log_sigmoid", "gate_normalizer": 1e-300},
            {"gate_log_rate": None},
            "parameters.gate_normalizer: must be at least 1e-06",
        ),
        (
            {"member": "delta", "gate_formula": "softplus"},
            {},
            "gate_formula: member delta has no gate that is given",
        ),
        (
            {"member": "dplr", "beta_formula": "sigmoid"},
            {},
            "beta_formula: member dplr has no step size",
        ),
        ({}, {"gate_input": None}, "in/gate_input: missing, axes"),
        ({}, {"retain": np.ones((2, 5))}, "in/retain: unknown tensor for member kda; it has"),
        (
            {"gate_formula": "exponential"},
            {},
            "in/gate_log_rate: belongs to another parameters.gate_formula, found exponential",
        ),
        (
            {"gate_formula": None},
            {},
            "in/gate_input: belongs to another parameters.gate_formula, found none",
        ),
        ({}, {"beta_input": np.ones((2, 5))}, "in/beta_input: belongs to another parameters.beta"),
        ({}, {"gate_bias": np.ones(2)}, r"in/gate_bias: shape \(2,\), expected \(2, 4\) or \(4,\)"),
        ({}, {"gate_log_rate": np.ones((2, 4))}, r"in/gate_log_rate: shape \(2, 4\), expected"),
        ({}, {"gate_log_rate": np.full(2, 65.0)}, "in/gate_log_rate: entries must be at most 64"),
        ({}, {"gate_input": np.full((2, 5, 4), 2e6)}, "in/gate_input: entries must be at most 1e"),
        (
            {"gate_formula": "floored_sigmoid"},
            {"gate_log_rate": None, "gate_floor": np.zeros((2, 4))},
            "in/gate_floor: entries must be at least 1e-30",
        ),
    ],
)
def test_what_a_formula_does_not_have_is_refused_in_one_line(
    parameters: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    case = drawn("softplus")
    header = case.header.plain()
    header["parameters"] = {**header["parameters"], **parameters}
    x = {**case.inputs, **{f"in/{name}": value for name, value in change.items()}}
    with pytest.raises(atlas_ref.CaseError, match=message):
        make(header, {name: value for name, value in x.items() if value is not None})


def far_down() -> Any:
    """A case whose softplus is small, at rates of thousands."""
    case = drawn("softplus", tokens=8)
    x = dict(case.inputs)
    x["in/gate_input"] = x["in/gate_input"] - 12.0
    x["in/gate_log_rate"] = x["in/gate_log_rate"] + 8.0
    return make(case.header.plain(), x)


def as_layers(case: Any, how: str) -> dict[str, Any]:
    """Results of a float32 program that makes log gates like this, and then runs a right kernel."""
    x = {n: value.astype(np.float32) for n, value in case.inputs.items()}
    bias = 0 if how.endswith("without bias") else x["in/gate_bias"][:, None, :]
    z = x["in/gate_input"] + bias
    size = np.logaddexp(np.float32(0), z)
    if how.startswith("printed"):
        size = np.where(z > 20, z, np.log(np.float32(1) + np.exp(z)))
    g = -np.exp(x["in/gate_log_rate"])[:, None, None] * size
    if how.startswith("bfloat16"):
        g = g.astype(ml_dtypes.bfloat16).astype(np.float32)
    kept = {n: value for n, value in x.items() if n not in formulas.RAW}
    gated = make({"schema": 1, "rule": "dplr", "parameters": {"member": "kda"}},
                 {**kept, "in/log_retain": g})  # fmt: skip
    return evaluate(gated, dtype="float32").tensors


DECLARED = {
    "printed": {"gate_softplus": "log(1+exp)"},
    "bfloat16": {"gate_dtype": "bfloat16"},
}


@pytest.mark.clause("DPLRCASE-19")
@pytest.mark.parametrize("how", DECLARED)
def test_a_program_passes_where_its_log_gates_are_declared_and_not_elsewhere(how: str) -> None:
    case = far_down()
    header = case.header.plain()
    stated = {**header, "parameters": {**header["parameters"], **DECLARED[how]}}

    def verdicts(header: dict[str, Any], mine: dict[str, Any]) -> set[str]:
        rows = atlas_ref.check(make(header, {**case.inputs, **mine}))
        return {row.verdict for row in rows}

    mine = as_layers(case, how)
    assert verdicts(stated, mine) == {"PASS"}
    assert "WRONG" in verdicts(header, mine)
    assert verdicts(header, as_layers(case, "log1p")) == {"PASS"}
    assert "WRONG" in verdicts(stated, as_layers(case, f"{how} without bias"))
    declared = make(stated, dict(case.inputs))
    for name, value in evaluate(case, grad=True).tensors.items():
        assert_close(name, evaluate(declared, grad=True).tensors[name], value, EXACT)


@pytest.mark.clause("DPLRCASE-19")
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"gate_formula": "exponential", "gate_softplus": "log1p"},
            "gate_softplus: belongs to gat",
        ),
        ({"gate_dtype": "bfloat16"}, "gate_dtype: belongs to a gate_formula, found none"),
        ({"gate_formula": "softplus", "gate_dtype": "int8"}, "gate_dtype: must be 'float32', "),
        ({"gate_formula": "softplus", "gate_softplus": "exp"}, "gate_softplus: must be 'log1p' or"),
    ],
)
def test_a_declaration_without_its_formula_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(atlas_ref.CaseError, match=f"parameters.{message}"):
        new(Request(rule="dplr", draw=1, parameters={"member": "kda", **parameters}))


@pytest.mark.clause("DPLRCASE-16", "DPLR-7")
@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("channels", [True, False], ids=["channels", "one number"])
def test_a_call_that_is_cut_is_the_whole_one(name: str, channels: bool) -> None:
    """Raw numbers are cut with their tokens; rates, biases and floors belong to all of them."""
    case = drawn(name, channels=channels)
    whole = evaluate(case).tensors
    first, last = (evaluate(each).tensors for each in in_two(case, 2))
    found = join(first, last)
    assert_close("y", found["out/y"], whole["out/y"], EXACT)
    assert_close("M", found["out/M"], whole["out/M"], EXACT)
