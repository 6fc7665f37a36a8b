"""Every row of the reduction table: agreement to rounding, and failure when one condition is
broken.

The rows are data in `table.py`. Each is evaluated on drawn shapes and seeds, once under its own
convention and once with drawn values of every axis that it says nothing of, both with inactive
tokens and packed sequences. What breaks a row is evaluated on three fixed shapes. Its table is
printed at the end of the test run.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from atlas_ref.oracle.cases.case import CaseError
from tests.reductions.drawn import breaking, drawn_with, draws, draws_under_other_axes
from tests.reductions.sides import Draw, both_sides, inputs, under
from tests.reductions.table import LIMITS, ROWS, Inputs, Limit, Row
from tests.support.close import EXACT, Tolerance, assert_close, relative_error, reordered
from tests.support.conditioning import amplification, together
from tests.support.strategies import repeatable

#: On which every broken condition shows: three lengths, wide and tall, one of them with masks.
SHAPES = (Draw(7, 4, 3, 1), Draw(9, 3, 5, 7, masked=True), Draw(5, 2, 6, 3))
STEEPEST = 3.4445**5  # slope at 0 of Newton-Schulz, which multiplies the rounding of its argument
DIFFERENT = 1e-3

#: The inputs of a row are drawn anew for every example, so the fixture may be that of the function.
of_a_row = settings(
    repeatable,
    suppress_health_check=[
        *repeatable.suppress_health_check,
        HealthCheck.function_scoped_fixture,
    ],
)


def shapes(row: Row | Limit) -> list[Draw]:
    """The shapes in turn, with the sizes that the row needs."""
    if isinstance(row, Limit):
        return list(SHAPES)
    chosen = [draw.fitted(row) for draw in SHAPES]
    return [draw for i, draw in enumerate(chosen) if draw not in chosen[:i]]


def rounding(row: Row, T: int) -> Tolerance:
    orthogonalised = any(
        side.convention.get("newton_schulz", "none") != "none" for side in (row.left, row.right)
    )
    return reordered(T, amplification=STEEPEST if orthogonalised else 1.0)


def size(arrays: list[Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(each)) for each in arrays)))


def line(row: Row | Limit, **found: Any) -> str:
    """A line of the table at the end of the run."""
    return json.dumps(
        {"id": row.id, "place": [each.id for each in (*ROWS, *LIMITS)].index(row.id), **found}
    )


EVERY_ROW = pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=pytest.mark.clause(*row.clauses)) for row in ROWS]
)


def agreement(row: Row, draw: Draw) -> float:
    """The worst relative distance of the two sides, in results and in all gradients together.

    Raises:
        AssertionError: it is above the rounding of the row, or of these inputs where they are worse
            conditioned, or a result of an exact row has other bits.
    """
    row, T = under(row, draw), draw.T
    x = inputs(row, draw)
    results, gradients = both_sides(row, row.left, x)
    errors = {name: relative_error(left, right) for name, left, right in results}
    # what one input's gradient is rounded against: paths cancel
    whole = size([right for *_, right in gradients]) or 1.0
    errors |= {f"grad/{name}": size([left - right]) / whole for name, left, right in gradients}
    worst, tolerance = max(errors.values()), rounding(row, T)
    if worst > (tolerance.bound or 0.0):

        def of_left(x: Inputs) -> list[Any]:
            results, gradients = both_sides(row, row.left, x)
            return [*(each[1] for each in results), together(each[1] for each in gradients)]

        tolerance = reordered(T, amplification=amplification(of_left, x))
    # arrays of another order in memory are summed in another order
    exact = row.exact and draw.axes.get("layout") != "transposed"
    for name, left, right in results:
        assert_close(f"{row.id}: {name}", left, right, EXACT if exact else tolerance)
    assert worst <= (tolerance.bound or 0.0), f"{row.id}: {errors}, not within {tolerance}"
    return worst


@EVERY_ROW
@settings(of_a_row, max_examples=3)
@given(data=st.data())
def test_reduction(row: Row, record_property: Any, data: Any) -> None:
    draw = data.draw(draws(row.id))
    agrees = agreement(row, draw)
    record_property("reductions", line(row, statement=row.statement, agrees=agrees))


@EVERY_ROW
@settings(of_a_row, max_examples=3)
@given(data=st.data())
def test_reduction_under_any_axes_of_which_it_says_nothing(row: Row, data: Any) -> None:
    draw = data.draw(draws_under_other_axes(row.id))
    try:
        agreement(row, draw)
    except CaseError:  # a rule or a level that lacks one of the values
        reject()


TWINS = [(row, broken) for row in ROWS for broken in row.twins]


@pytest.mark.sample(80)
@pytest.mark.parametrize(
    ("row", "broken"), TWINS, ids=[f"{row.id}: {broken}" for row, broken in TWINS]
)
def test_negative_twin(row: Row, broken: str, record_property: Any) -> None:
    least = min(differences(row.twin(broken), {}))
    assert least > DIFFERENT, f"{row.id} with {broken}: the sides differ by {least:.1e} only"
    record_property("reductions", line(row, broken=broken, differs=least))


BREAKING = [(row, axes) for row in ROWS for axes in breaking(row)]


@pytest.mark.parametrize(
    ("row", "axes"), BREAKING, ids=[f"{row.id}: {json.dumps(axes)}" for row, axes in BREAKING]
)
def test_axes_that_are_named_as_breaking_a_row_break_it(
    row: Row, axes: dict[str, Any], record_property: Any
) -> None:
    most = max(differences(row, axes))
    assert most > DIFFERENT, f"{row.id} with {axes}: the sides differ by {most:.1e} only"
    broken = ", ".join(f"{name} {value}" for name, value in axes.items()) + " on both sides"
    record_property("reductions", line(row, broken=broken, differs=most))


def differences(row: Row, axes: dict[str, Any]) -> list[float]:
    """The largest distance of a result, on each shape."""
    found = []
    for shape in shapes(row):
        draw = drawn_with(axes, shape, row.span or 3)
        each = under(row, draw)
        results, _ = both_sides(each, each.left, inputs(each, draw))
        found.append(max(relative_error(left, right) for _, left, right in results))
    return found


def distances(row: Limit, left: Any, shape: Draw) -> list[float]:
    """Distance of the sides in y, M and all gradients at h, divided by twice that at h / 2."""
    x = inputs(Row(row.id, "", (), left(1.0), row.right), shape)
    found = []
    for h in (row.step, row.step / 2):
        results, gradients = both_sides(row, left(h), x)
        found.append(
            [*(relative_error(a, b) for _, a, b in results), size([a - b for _, a, b in gradients])]
        )
    return [whole / half / 2.0 for whole, half in zip(*found, strict=True)]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=pytest.mark.clause(*row.clauses)) for row in LIMITS]
)
def test_limit_is_of_first_order(row: Limit, record_property: Any) -> None:
    worst = 0.0
    for shape in shapes(row):
        T = shape.T
        for ratio in distances(row, row.left, shape):
            assert abs(ratio - 1.0) <= 10 * T * row.step, (
                f"{row.id} for {shape}: half of h leaves 1 / {2 * ratio:.6f} of the distance"
            )
            worst = max(worst, abs(ratio - 1.0))
    record_property("reductions", line(row, statement=row.statement, agrees=worst))


LIMIT_TWINS = [(row, broken) for row in LIMITS for broken in row.twins]


@pytest.mark.parametrize(
    ("row", "broken"), LIMIT_TWINS, ids=[f"{row.id}: {broken}" for row, broken in LIMIT_TWINS]
)
def test_negative_twin_of_limit(row: Limit, broken: str, record_property: Any) -> None:
    least = np.inf
    for shape in shapes(row):
        x = inputs(Row(row.id, "", (), row.right, row.right), shape)
        results, _ = both_sides(row, row.twins[broken](row.step), x)
        least = min(least, max(relative_error(left, right) for _, left, right in results))
    assert least > DIFFERENT, f"{row.id} with {broken}: the distance is {least:.1e}, it tends to 0"
    record_property("reductions", line(row, broken=broken, differs=least))


def test_rows_are_named_once_and_have_a_twin() -> None:
    every = [*ROWS, *LIMITS]
    assert len({row.id for row in every}) == len(every)
    assert all(row.twins and row.clauses for row in every)
