"""factor X + Y of tensors of many memories: values and derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.rules.deep_memory.carry import carry
from tape import grad, ops
from tests.support.close import ANALYTIC, EXACT, assert_close

#: Shapes of X and Y beside a factor (2, 3), and axes of their own.
SHAPES = {
    "matrix": ((2, 3, 4, 5), (2, 3, 4, 5), 2),
    "vector": ((2, 3, 4), (2, 3, 4), 1),
    "number": ((2, 3), (2, 3), 0),
    "shared": ((1, 3, 4, 5), (2, 3, 4, 5), 2),
    "one step": ((2, 3, 4, 5), (1, 3, 4, 5), 2),
}


def given(name: str) -> dict[str, Any]:
    draw, (X, Y, _) = np.random.default_rng(1), SHAPES[name]
    return {
        "factor": draw.standard_normal((2, 3)),
        "X": draw.standard_normal(X),
        "Y": draw.standard_normal(Y),
    }


def written_out(at: dict[str, Any], rank: int, sign: float) -> Any:
    return at["factor"][(..., *(None,) * rank)] * at["X"] + sign * at["Y"]


@pytest.mark.clause("DEEP-11", "DEEP-13")
@pytest.mark.parametrize("minus", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_pullbacks_are_those_of_the_sum_written_out(name: str, minus: bool) -> None:
    at, rank, sign = given(name), SHAPES[name][2], -1.0 if minus else 1.0
    y = carry(at["factor"], at["X"], at["Y"], rank, minus=minus)
    assert_close("y", y, written_out(at, rank, sign), EXACT)
    bar = np.random.default_rng(2).standard_normal(y.shape)
    found = grad(lambda at: ops.sum(carry(*at.values(), rank, minus=minus) * bar))(at)
    for place, x in at.items():
        want = np.zeros(x.shape)
        for entry in np.ndindex(*x.shape):
            moved = {each: array.astype(complex) for each, array in at.items()}
            moved[place][entry] += 1e-40j
            want[entry] = np.imag(np.sum(written_out(moved, rank, sign) * bar)) / 1e-40
        assert_close(place, found[place], want, ANALYTIC)


@pytest.mark.clause("DEEP-11", "DEEP-13")
def test_no_factor_is_one_and_no_argument_is_changed() -> None:
    at = given("matrix")
    assert_close("sum", carry(None, at["X"], at["Y"], 2), at["X"] + at["Y"], EXACT)
    assert_close("rest", carry(None, at["X"], at["Y"], 2, minus=True), at["X"] - at["Y"], EXACT)
    kept = {name: x.copy() for name, x in at.items()}
    carry(at["factor"], at["X"], at["Y"], 2)
    for name, x in kept.items():
        assert_close(name, at[name], x, EXACT)
    wide = carry(at["factor"].astype(np.float32), at["X"].astype(np.float32), at["Y"], 2)
    assert wide.dtype == np.float64
