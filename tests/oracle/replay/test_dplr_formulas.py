"""Traces of cases of rule dplr with a formula of gates against loops, and the first wrong op."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.dplr import formulas, parameters
from atlas_ref.oracle.dplr.program import PROGRAM
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.replay.replay import first_wrong, replay
from atlas_ref.oracle.replay.trace import trace
from tests.support.close import ANALYTIC, assert_close
from tests.support.replayed import assert_first_wrong, assert_listed
from tests.truth import dplr_trace as literal
from tests.truth import gate_formula_loops


def made(member: str, **chosen: Any) -> Any:
    """A case of two key heads, with silent tokens, a reset and a first memory."""
    sizes = {"tokens": 5, "d_in": 3, "d_out": 3, "heads": 2, "seed": 5, "cotangent": True}
    case = new(
        Request(rule="dplr", draw=1, parameters={"member": member, **chosen}, reset=3, **sizes)
    )
    draw = np.random.default_rng(6)
    shape = (*case.inputs["in/v"].shape[:-2], 3, 3)
    first = {name: draw.standard_normal(shape) for name in ("in/M0", "in/M_bar")}
    active = np.array([1, 1, 0, 1, 1], np.uint8)
    return make(case.header.plain(), {**case.inputs, **first, "in/active": active})


CASES = {
    "softplus": made("kda", gate_formula="softplus", groups=2),
    "bounded": made("gated_delta", gate_formula="bounded", gate_lower_bound=-5.0),
    "log_sigmoid": made("gla", gate_formula="log_sigmoid", gate_normalizer=2.0, gate_least=-0.5),
    "floored_sigmoid": made("gla", gate_formula="floored_sigmoid", state_layout="(d_in, d_out)"),
    "exponential": made("comba_decay_after_erase", gate_formula="exponential"),
    "beta": made("delta", beta_formula="twice_sigmoid"),
}


def of_case(case: Any, mistake: str = "", kind: Any = float) -> tuple[dict[str, Any], Any]:
    """Inputs by their bare names with what formulas make of them, and settings in force."""
    own = parameters.parse(case.header)
    bare = {name.removeprefix("in/"): value for name, value in case.inputs.items()}
    if own.gate_formula is not None:
        of = {n[5:]: getattr(own, n) for n in formulas.SETTINGS if getattr(own, n) is not None}
        of |= {"floor": bare["gate_floor"]} if "gate_floor" in bare else {}
        rate = bare.get("gate_log_rate", np.zeros(len(bare["gate_bias"])))
        raw = (bare["gate_input"], rate, bare["gate_bias"])
        gates = gate_formula_loops.run(own.gate_formula, *raw, mistake, **of).real
        bare["log_gate"] = gates.astype(kind)
    if own.beta_formula is not None:
        bare["beta"] = 2 / (1 + np.exp(-bare["beta_input"]))
    x = {name: value for name, value in bare.items() if f"in/{name}" not in formulas.RAW}
    if own.state_layout == "(d_in, d_out)":
        x |= {name: x[name].swapaxes(-1, -2) for name in ("M0", "M_bar")}
    settings = types.SimpleNamespace(
        erase=own.of.erase, order=own.order, steps=1, groups=own.groups, eps=own.norm_eps,
        scale=x["k"].shape[-1] ** -0.5, k_norm="none", q_norm="none", by_head=False, second="",
    )  # fmt: skip
    return x, settings


def turned(case: Any, op: str, value: Any) -> Any:
    """A matrix from the layout of the case to (d_out, d_in), or back."""
    layout = parameters.parse(case.header).state_layout
    matrix = op in PROGRAM.matrices and layout == "(d_in, d_out)"
    return value.swapaxes(-1, -2) if matrix else value


def planted(case: Any, mistake: str = "", kind: Any = np.float32) -> dict[str, Any]:
    """The trace of the loop of the tests with one mistake."""
    shapes = {n[6:]: turned(case, n[6:], z).shape for n, z in trace(case).items()}
    found = literal.collected(*of_case(case, mistake, kind), shapes)
    return {f"trace/{op}": turned(case, op, z).astype(kind) for op, z in found.items()}


@pytest.mark.clause("DPLRCASE-11", "DPLRCASE-16", "DPLRCASE-17")
@pytest.mark.parametrize("name", CASES)
def test_every_op_and_its_adjoint_are_those_of_loops(name: str) -> None:
    case = CASES[name]
    x, own = of_case(case)
    bars = {"y": x["y_bar"], "M": x["M_bar"]}
    recorded, wanted = trace(case, grad=True), planted(case, kind=float)
    assert set(recorded) == set(wanted) | {n.replace("trace/", "trace_grad/") for n in wanted}
    assert ("trace/log_gate" in recorded) == ("gate_formula" in case.header.parameters)
    for op in (n[6:] for n in wanted):
        assert_close(op, recorded[f"trace/{op}"], wanted[f"trace/{op}"], ANALYTIC)
        got = turned(case, op, recorded[f"trace_grad/{op}"])
        assert_close(op, got, literal.adjoint(x, own, bars, op, got.shape), ANALYTIC)
    assert_close("y", recorded["trace/y"], evaluate(case).tensors["out/y"], ANALYTIC)


@pytest.mark.clause("DPLRCASE-11", "DPLRCASE-16", "REPLAY-2")
@pytest.mark.parametrize("name", CASES)
def test_the_listed_ops_are_those_that_are_computed(name: str) -> None:
    assert_listed(CASES[name])


@pytest.mark.clause("DPLRCASE-12", "DPLRCASE-16")
@pytest.mark.parametrize("name", CASES)
def test_right_traces_pass_ours_and_those_of_a_float32_loop(name: str) -> None:
    case = CASES[name]
    for dtype in ("float64", "float32", "bfloat16"):
        for row in replay(case, trace(case, dtype=dtype, grad=True), dtype=dtype):
            assert (row.verdict, row.gap) == ("PASS", ()), row
    for row in replay(case, planted(case)):
        assert row.verdict == "PASS", row


@pytest.mark.clause("DPLRCASE-12", "DPLRCASE-16", "REPLAY-15")
@pytest.mark.parametrize("op", ["log_gate", "gate", "decayed"])
def test_an_op_that_is_off_is_the_first_wrong_one(op: str) -> None:
    assert_first_wrong(CASES["softplus"], op)


PLANTED = [
    ("softplus", "rate without exp", "as if the rate was in/gate_log_rate without exp"),
    ("softplus", "bias forgotten", "as if in/gate_bias was absent"),
    ("softplus", "gate in bfloat16", "as if the log gate was rounded to bfloat16"),
    ("bounded", "bias late", "as if in/gate_bias was added behind the rate"),
    ("floored_sigmoid", "bias forgotten", "as if in/gate_bias was absent"),
]


@pytest.mark.clause("DPLRCASE-12", "DPLRCASE-18", "REPLAY-15", "REPLAY-16")
@pytest.mark.parametrize(("name", "mistake", "words"), PLANTED)
def test_a_mistake_in_a_formula_is_named_at_its_log_gate(
    name: str, mistake: str, words: str
) -> None:
    first = first_wrong(replay(CASES[name], planted(CASES[name], mistake)))
    assert first is not None
    assert (first.op, first.token, first.verdict) == ("log_gate", 0, "WRONG")
    assert words in first.nearest.split(" or ")
