"""Every rule under any convention against the definition as loops, values and gradients (rungs a
and b).

The loops (tests/truth/literal.py) import nothing from the package. Gradients: the tape against the
complex step through the loops, along one random direction per tensor.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from atlas_ref.oracle.cases.case import Case, differentiable
from atlas_ref.oracle.evaluate import WEIGHED, evaluate
from tests.support.close import assert_close, reordered
from tests.support.strategies import cases, header_of, repeatable
from tests.truth import literal

STEP = 1e-30

#: Newton-Schulz multiplies small singular values by up to 3.4445^5 = 485 for Muon and 6800 for
#: Polar Express, once per token.
WITHOUT, WITH = 1e4, 1e7


def amplification(case: Case) -> float:
    return WITH if case.convention.has_newton_schulz else WITHOUT


def results_equal_the_loops(case: Case) -> None:
    want = literal.evaluate(header_of(case), case.inputs)
    got = evaluate(case)
    phase = want.pop("phase", None)
    assert got.tensors.keys() == want.keys()
    assert phase is None or got.header["phase"] == phase
    for name, value in want.items():
        assert_close(
            name, got.tensors[name], value, reordered(1, amplification=amplification(case))
        )


def gradients_equal_the_complex_step_of_the_loops(case: Case) -> None:
    draw = np.random.default_rng(1)
    header = header_of(case)
    gradients = evaluate(case, grad=True).tensors
    for name in differentiable(case):
        value = case.inputs[name]
        direction = draw.standard_normal(value.shape)
        moved = literal.evaluate(header, {**case.inputs, name: value + 1j * STEP * direction})
        want = sum(
            np.imag(np.sum(moved[out] * case.inputs[bar])) / STEP
            for out, bar in WEIGHED.items()
            if bar in case.inputs
        )
        gradient = gradients["grad/" + name.removeprefix("in/")]
        got = np.sum(gradient * direction)
        # Newton-Schulz hides the scale of its argument, so a gradient can vanish: measure it
        # against what it could be.
        weight = sum(
            np.linalg.norm(moved[out].real) * np.linalg.norm(case.inputs[bar])
            for out, bar in WEIGHED.items()
            if bar in case.inputs
        )
        possible = np.linalg.norm(direction) * max(
            float(np.linalg.norm(gradient)), float(weight) / max(1.0, float(np.linalg.norm(value)))
        )
        bound = reordered(1, amplification=amplification(case)).bound
        assert bound is not None
        assert abs(got - want) <= bound * possible, (
            f"{name}: {got} against {want}, which could be {possible}"
        )


@pytest.mark.clause("CONV-29", "CASE-12")
@settings(repeatable, max_examples=180)
@given(cases())
def test_every_result_equals_the_literal_loops(case: Case) -> None:
    results_equal_the_loops(case)


@pytest.mark.clause("CASE-14", "OMEGA-23", "OMEGA-24", "OMEGA-25", "OMEGA-26", "OMEGA-27")
@settings(repeatable, max_examples=60)
@given(cases())
def test_every_gradient_equals_the_complex_step_of_the_literal_loops(case: Case) -> None:
    gradients_equal_the_complex_step_of_the_loops(case)


@pytest.mark.slow
@settings(repeatable, max_examples=6000)
@given(cases())
def test_every_result_equals_the_literal_loops_at_length(case: Case) -> None:
    results_equal_the_loops(case)


@pytest.mark.slow
@settings(repeatable, max_examples=2000)
@given(cases())
def test_every_gradient_equals_the_complex_step_at_length(case: Case) -> None:
    gradients_equal_the_complex_step_of_the_loops(case)
