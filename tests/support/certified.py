"""Certified results beside those of the oracle, and beside the expected values of a vector."""

from __future__ import annotations

import numpy as np

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.vectors.sets.expected import expected
from tests.support.close import Tolerance, assert_close


def assert_certified(case: Case, tolerance: Tolerance) -> None:
    """Every result and gradient has its certified value, and each of these is resolved."""
    found = certify(case, grad=True)
    assert found.unresolved == {}
    own = evaluate(case, grad=True).tensors
    assert set(own) - {"out/state/position"} == set(found.values)
    for name, value in found.values.items():
        assert own[name].shape == value.shape
        assert_close(name, own[name], value, tolerance)


def assert_expected_is_certified(case: Case) -> None:
    """The expected values of a vector are the certified ones, bit for bit (VEC-6)."""
    found = certify(case, grad=True).values
    values = expected(case, grad=True)
    assert set(values) == set(found)
    assert all(np.array_equal(values[name], found[name]) for name in found)
