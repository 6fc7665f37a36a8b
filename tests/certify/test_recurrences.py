"""Certified results of rule recurrence beside the rule, the plain loop, recordings and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atlas_ref
from atlas_ref.certify import certify
from atlas_ref.certify.matrix import Matrix, filled, solved
from atlas_ref.oracle.cases.case import make
from tests.support.plain_loops import assert_all_agree
from tests.support.recurrence_cases import EVERY, case
from tests.support.recurrences import FILES


@pytest.mark.clause("RECUR-17", "CERT-2", "CERT-9")
@pytest.mark.parametrize(("member", "kind"), EVERY)
def test_certified_results_are_those_of_the_rule_and_of_the_plain_loop(
    member: str, kind: str
) -> None:
    found = assert_all_agree(case(member, kind))
    assert {f"grad/{name[3:]}" for name in case(member, kind).inputs if "log_" in name} <= found


@pytest.mark.clause("RECUR-17")
@pytest.mark.sample(3)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recording_of_public_code_is_certified_to_its_rounding(file: Any) -> None:
    of = atlas_ref.load(file)
    found = certify(of, grad=any(name.startswith("grad/") for name in of.recorded)).values
    for name, want in of.recorded.items():
        size = max(1.0, float(np.abs(want).max(initial=0.0)))
        assert np.abs(found[name] - want).max(initial=0.0) <= 1e-11 * size, name


@pytest.mark.clause("RECUR-17")
def test_a_gate_of_zero_has_no_derivative_and_a_system_without_an_inverse_is_unknown() -> None:
    of = case("mesa", "long")
    log = np.full_like(of.inputs["in/log_retain"], -np.inf)
    found = certify(make(of.header.plain(), {**of.inputs, "in/log_retain": log}), grad=True)
    assert not found.unresolved
    assert (found.values["grad/log_retain"] == 0.0).all()
    one, zero = Matrix(filled(1, 1, [1])), Matrix(filled(1, 1, [0]))
    assert solved(one, one).value[0, 0] == 1
    assert not solved(zero, one).value[0, 0].is_finite()
