"""Certified results of cases of rule dplr with formulas of gates and step sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.new import Request, new
from tests.support.certified import assert_certified
from tests.support.close import ANALYTIC, Tolerance, assert_close
from tests.truth import gate_formula_loops

#: Rounding of float64 over the tokens of a small case.
ROUNDED = Tolerance("ROUNDED", 1e-13)

CASES: dict[str, dict[str, Any]] = {
    "softplus": {"member": "kda", "gate_formula": "softplus", "groups": 2},
    "threshold": {"member": "gla", "gate_formula": "softplus", "gate_threshold": 0.5},
    "bounded": {"member": "kda", "gate_formula": "bounded", "gate_lower_bound": -5.0},
    "log_sigmoid": {"member": "gla", "gate_formula": "log_sigmoid", "gate_normalizer": 16.0},
    "clamped": {"member": "gla", "gate_formula": "log_sigmoid", "gate_least": -0.6},
    "floored_sigmoid": {"member": "gdn2", "gate_formula": "floored_sigmoid"},
    "exponential": {"member": "rwkv6", "gate_formula": "exponential"},
    "sigmoid": {"member": "delta", "beta_formula": "sigmoid"},
    "twice": {"member": "momentum_delta", "beta_formula": "twice_sigmoid"},
}


def drawn(name: str, **sizes: Any) -> Case:
    request = {"tokens": 4, "d_in": 3, "d_out": 2, "reset": 3, "cotangent": True, **sizes}
    return new(Request(rule="dplr", draw=1, parameters=CASES[name], seed=5, **request))


@pytest.mark.clause("CERT-18", "DPLRCASE-16", "DPLRCASE-17")
@pytest.mark.parametrize("name", CASES)
def test_certified_results_and_gradients_are_those_of_the_rule(name: str) -> None:
    assert_certified(drawn(name), ROUNDED)


@pytest.mark.clause("CERT-18", "DPLRCASE-16")
@pytest.mark.parametrize("name", ["softplus", "floored_sigmoid"])
def test_one_gate_a_token_and_tensors_of_all_heads_are_certified(name: str) -> None:
    case = drawn(name)
    first = ("in/gate_input", "in/gate_bias", "in/gate_floor")
    x = {n: value[..., 0] if n in first else value for n, value in case.inputs.items()}
    assert_certified(make(case.header.plain(), x), ROUNDED)
    shared = ("in/gate_log_rate", "in/gate_bias", "in/gate_floor")
    alike = {n: np.array(value[0]) if n in shared else value for n, value in case.inputs.items()}
    assert_certified(make(case.header.plain(), alike), ROUNDED)


@pytest.mark.clause("CERT-18", "GATES-17", "GATES-19", "GATES-20", "GATES-21")
@pytest.mark.parametrize("name", ["softplus", "log_sigmoid", "floored_sigmoid", "exponential"])
@pytest.mark.parametrize("far", [-1e3, 1e3])
def test_gates_far_out_are_certified(name: str, far: float) -> None:
    """Gates of 1 to the last bit and of 0, whose slopes are exact too."""
    case = drawn(name, tokens=2, heads=1)
    raw = np.where(np.arange(3) == 1, far, case.inputs["in/gate_input"])
    assert_certified(make(case.header.plain(), {**case.inputs, "in/gate_input": raw}), ROUNDED)


@pytest.mark.clause("CERT-18", "GATES-17")
def test_a_certified_gate_is_the_definition_with_900_digits() -> None:
    """One token of one channel: M decays once by a gate of nine hundred digits, and is read."""
    case = drawn("threshold", tokens=1, d_in=1, d_out=1, heads=1)
    header = {"schema": 1, "rule": "dplr", "parameters": {"gate_formula": "softplus"}}
    ones = {f"in/{n}": np.ones((1, 1, 1)) for n in ("k", "q", "M0")} | {"in/v": np.zeros((1, 1, 1))}
    raw = {n: x for n, x in case.inputs.items() if "gate" in n}
    (x,), (rate,), (bias,) = (np.ravel(value) for value in raw.values())
    want = gate_formula_loops.exact("softplus", x, rate, bias).exp()
    got = certify(make(header, {**ones, **raw})).values["out/y"]
    assert float(want) == got[0, 0, 0]
    assert_close("plain", np.exp(-np.exp(rate) * np.logaddexp(0, x + bias)), float(want), ANALYTIC)
