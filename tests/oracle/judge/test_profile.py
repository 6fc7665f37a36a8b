"""The place of an error: the axis of tokens, the numbers per token, the first wrong entry."""

import math

import numpy as np
import pytest

import atlas_ref
from atlas_ref.oracle.cases.case import differentiable
from atlas_ref.oracle.judge.profile import (
    CELLS,
    Allowed,
    by_token,
    first_wrong,
    profile,
    token_axis,
)
from tests.support.casefiles import some

ONE = Allowed(1.0, 1.0)


@pytest.mark.clause("SRC-13")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("level", ["projected", "token"])
def test_the_axis_of_tokens_has_as_many_entries_as_there_are_tokens(level, per_dimension):
    header, tensors = some(
        "omega", tokens=7, window=3, level=level, per_dimension_gates=per_dimension
    )
    case = atlas_ref.make(header, tensors)
    with_tokens = (
        {"k", "v", "q", "retain", "momentum", "step_size", "window_weights"}
        if level == "projected"
        else {"x"}
    )
    for key in differentiable(case):
        axis = token_axis(case, f"grad/{key.removeprefix('in/')}")
        assert (axis is not None) == (key.removeprefix("in/") in with_tokens), key
        assert axis is None or case.inputs[key].shape[axis] == 7
    assert token_axis(case, "out/y") == -2
    assert token_axis(case, "out/M") is token_axis(case, "out/window_k") is None
    assert (
        token_axis(atlas_ref.make(*some("feature_map", feature_map={"kind": "elu"})), "grad/x")
        is None
    )


@pytest.mark.clause("SRC-13")
def test_a_token_has_the_worse_of_its_largest_entry_and_its_root_mean_square():
    gap = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 1.0]])
    assert by_token(gap, -2, Allowed(2.0, 100.0)) == pytest.approx([2.0, 0.0, 0.5])
    assert by_token(gap, -2, Allowed(100.0, 1.0)) == pytest.approx([math.sqrt(12.5), 0.0, 1.0])
    assert by_token(gap, None, Allowed(math.inf, 1.0)) == pytest.approx([math.sqrt(27 / 6)])
    assert by_token(1e-200 * gap, -2, Allowed(1e-200, 1e-200))[0] == pytest.approx(4.0)
    assert by_token(np.array([[np.nan], [0.0]]), -2, ONE).tolist() == [math.inf, 0.0]
    assert by_token(np.array([[1.0], [0.0]]), -2, Allowed(0.0, 0.0)).tolist() == [math.inf, 0.0]


@pytest.mark.clause("SRC-13")
@pytest.mark.parametrize(
    ("tokens", "cells", "width"), [(1, 1, 1), (128, 128, 1), (129, 65, 2), (1000, 125, 8)]
)
def test_long_sequences_are_shown_in_cells_that_hide_no_token(tokens, cells, width):
    numbers = np.zeros(tokens)
    numbers[-1] = 5.0
    found = profile(numbers, -2)
    assert (len(found.ratios), found.width) == (cells, width)
    assert found.ratios[-1] == 5.0
    assert len(found.ratios) <= CELLS
    assert profile(np.array([2.0]), None) == ((2.0,), 0)


@pytest.mark.clause("SRC-12")
def test_the_first_token_beyond_what_is_allowed_gives_the_place():
    gap = np.zeros((2, 4, 3))
    gap[1, 2, 1], gap[0, 3, 0], gap[0, 1, 2] = 2.0, 9.0, 0.9
    got = gap + 1.0
    found = first_wrong(gap, -2, by_token(gap, -2, ONE), got, np.ones_like(gap))
    assert found == (2, (1, 2, 1), 3.0, 1.0)
    gap[0, 0, 1] = np.nan
    assert first_wrong(gap, -2, by_token(gap, -2, ONE), got, np.ones_like(gap))[:2] == (
        0,
        (0, 0, 1),
    )


@pytest.mark.clause("SRC-12")
def test_where_no_token_is_beyond_the_worst_one_does_and_a_state_has_no_token():
    gap = np.array([[0.1], [0.8], [0.5]])
    assert first_wrong(gap, -2, by_token(gap, -2, ONE), gap, 0 * gap) == (1, (1, 0), 0.8, 0.0)
    assert first_wrong(gap, None, by_token(gap, None, ONE), gap, 0 * gap) == (
        None,
        (1, 0),
        0.8,
        0.0,
    )
    empty = np.zeros((0, 2))
    assert first_wrong(empty, -2, by_token(empty, -2, ONE), empty, empty) is None


@pytest.mark.clause("SRC-12")
def test_a_gate_whose_time_is_last_is_found_too():
    gap = np.zeros((2, 5))
    gap[1, 3] = 2.0
    assert first_wrong(gap, -1, by_token(gap, -1, ONE), gap, 0 * gap) == (3, (1, 3), 2.0, 0.0)
