"""A case beside the literal loop: every result, and every gradient by the loop's complex step."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.evaluate import evaluate
from tests.support.close import ANALYTIC, assert_close
from tests.truth import literal
from tests.truth.literal_gradient import COTANGENTS, complex_step

RESULTS = ("out/y", "out/M", "out/S", "out/M_ref")


def assert_literal(case: Case, *, form: str = "sequential") -> dict[str, Any]:
    """Results and gradients of a case in a form are those of the loop of the equations.

    Returns:
        them, by name.
    """
    header, tensors = case.header.plain(), dict(case.inputs)
    ours: dict[str, np.ndarray] = evaluate(case, form=form, grad=True).tensors
    truth = literal.evaluate(header, tensors)
    for name in (name for name in RESULTS if name in truth):
        assert_close(name, ours[name], truth[name], ANALYTIC)
    bars = {name: value for name, value in tensors.items() if name in COTANGENTS}
    inputs = {name: value for name, value in tensors.items() if name not in COTANGENTS}
    assert bars
    for name in (name for name in ours if name.startswith("grad/")):
        want = complex_step(header, inputs, name.replace("grad/", "in/"), bars)
        assert_close(name, ours[name], want, ANALYTIC)
    return ours
