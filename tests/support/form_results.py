"""Results and gradients of a case in any form, and cases whose gates are exactly 0, 1 or nearly
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle import evaluate
from atlas_ref.oracle.cases.case import Case, differentiable, make
from atlas_ref.oracle.subjects import memory
from atlas_ref.rules import FAMILY
from tape import vjp
from tests.support.close import ANALYTIC, Tolerance, assert_close, reordered
from tests.support.strategies import header_of
from tests.truth import literal

#: What a gate is replaced by: nothing passes, everything passes, a product of two underflows.
EDGES = {
    "in/retain": (0.0, 1.0, 1e-300),
    "in/momentum": (0.0, 1.0, 1e-300),
    "in/step_size": (0.0, 1e-300),
    "in/step_size_memory": (0.0,),
}


def tolerance(case: Case) -> Tolerance:
    """ANALYTIC, or under Newton-Schulz its amplification of a rounding error, as in
    tests/rules/test_literal.py.
    """
    return reordered(1, amplification=1e7) if case.convention.has_newton_schulz else ANALYTIC


def results(
    case: Case, form: str, chunk: int | None = None, inputs: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], int | None]:
    """The results `out/...` of a case in a form, and the position in the span after it."""
    return evaluate.results(case.inputs if inputs is None else inputs, case, form=form, chunk=chunk)


def call_of(case: Case, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Configuration, tokens and initial state of a case, from the oracle."""
    rule = FAMILY[case.header.rule]
    config, tokens = memory.sequence_of(rule, inputs, case)
    return config, tokens, memory.initial_state(rule, config, inputs, tokens, case.header.phase)


def gradients(case: Case, form: str, chunk: int | None = None) -> dict[str, Any]:
    """Gradients of <out, bar> by every floating input, with a random cotangent of every result,
    states included.
    """
    chosen = {name: case.inputs[name] for name in differentiable(case)}
    outputs, pullback = vjp(
        lambda moved: results(case, form, chunk, {**case.inputs, **moved})[0], chosen
    )
    draw = np.random.default_rng(1)
    return dict(
        pullback(
            {name: draw.standard_normal(np.shape(value)) for name, value in sorted(outputs.items())}
        )[0]
    )


def with_edges(case: Case, seed: int) -> Case:
    """The case with about half of its gates replaced by edges."""
    draw = np.random.default_rng(seed)
    inputs = dict(case.inputs)
    for name, values in EDGES.items():
        if name in inputs:
            replaced = draw.random(inputs[name].shape) < 0.5
            inputs[name] = np.where(replaced, draw.choice(values, inputs[name].shape), inputs[name])
    return make(header_of(case), inputs)


def assert_equal_the_loops(case: Case, form: str, chunk: int | None = None) -> None:
    """Assert that every result of the form, states and phase included, is that of loops and
    sequential form.
    """
    want = literal.evaluate(header_of(case), case.inputs)
    phase = want.pop("phase", None)
    got, position = results(case, form, chunk)
    sequential, after = results(case, "sequential")
    assert got.keys() == want.keys() == sequential.keys()
    assert position == after
    assert phase is None or position == phase
    for name, value in want.items():
        assert_close(f"{name} against the loops", got[name], value, tolerance(case))
        assert_close(
            f"{name} against the sequential form", got[name], sequential[name], tolerance(case)
        )


def assert_gradients_equal_the_sequential(case: Case, form: str, chunk: int | None = None) -> None:
    """Assert that every gradient is that of the sequential form.

    One that vanishes is measured against the largest.
    """
    want, got = gradients(case, "sequential"), gradients(case, form, chunk)
    largest = max(float(np.linalg.norm(value)) for value in want.values())
    assert want.keys() == got.keys()
    bound = tolerance(case).bound
    assert bound is not None
    for name, value in want.items():
        gap = float(np.linalg.norm(got[name] - value))
        assert gap <= bound * largest, (
            f"{name}: {gap:.2e} apart, {float(np.linalg.norm(value)):.2e} large, largest "
            f"{largest:.2e}"
        )
