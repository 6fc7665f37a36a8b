"""Results whose axes stand in another order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.arrays import compare_arrays
from atlas_ref.oracle.judge.layouts import other_shape
from tests.support.casefiles import some


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.clause("CASE-21")
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3)))[1:])
def test_the_order_that_is_named_makes_it_right(axes: tuple[int, ...]) -> None:
    want = drawn(2, 5, 3)
    got = want.transpose(axes)
    row = compare_arrays("case", "out/y", got, want)
    assert row.verdict == "WRONG"
    head, _, tail = row.why.partition("; transposed by ")
    assert head == f"shape {got.shape}, expected {want.shape}"
    named = tuple(int(each) for each in tail[1:].split(")")[0].split(","))
    assert np.array_equal(got.transpose(named), want)


@pytest.mark.clause("CASE-21")
@pytest.mark.parametrize(
    ("shape", "axes", "words"),
    [
        ((5, 6), (1, 0, 2), "; as (5, 2, 3), transposed by (1, 0, 2), it would be right"),
        ((1, 2, 5, 3), (0, 1, 2), "; as (2, 5, 3) it would be right"),
        ((1, 5, 6), (1, 0, 2), "; as (5, 2, 3), transposed by (1, 0, 2), it would be right"),
        ((30,), (2, 1, 0), "; as (3, 5, 2), transposed by (2, 1, 0), it would be right"),
    ],
)
def test_axes_that_are_merged_or_added(
    shape: tuple[int, ...], axes: tuple[int, ...], words: str
) -> None:
    want = drawn(2, 5, 3)
    row = compare_arrays("case", "out/y", want.transpose(axes).reshape(shape), want)
    assert row.why == f"shape {shape}, expected (2, 5, 3){words}"


@pytest.mark.clause("CASE-21")
def test_what_is_wrong_in_every_order_or_too_large_is_a_shape_alone() -> None:
    want = drawn(2, 5, 3)
    for got in (want.transpose(1, 0, 2) + 1e-3, drawn(2, 5, 4), drawn(7)):
        row = compare_arrays("case", "out/y", got, want)
        assert row.why == f"shape {got.shape}, expected (2, 5, 3)"
    tall = np.zeros((1, 1, 1, 1, 1, 2))
    asked: list[np.ndarray] = []
    assert "; " not in other_shape(tall[0], tall, lambda moved: not asked.append(moved))
    assert asked == []


@pytest.mark.clause("CASE-21", "TOL-6")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_kernel_with_tokens_before_heads_is_told(dtype: str) -> None:
    """At the tolerance that the precision has."""
    header, tensors = some("delta", heads=2, tokens=7)
    case = atlas_ref.make(header, tensors)
    results = atlas_ref.evaluate(case).tensors
    y = np.asarray(results["out/y"], dtype).swapaxes(-3, -2)
    answer = Answer(results | {"out/y": y})
    rows = {each.tensor: each for each in atlas_ref.check(case, source=lambda _: answer)}
    assert rows["out/y"].verdict == "WRONG"
    assert rows["out/y"].why.endswith("; transposed by (1, 0, 2) it would be right")
    assert rows["out/M"].verdict == "PASS"
