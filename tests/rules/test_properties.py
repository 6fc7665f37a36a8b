"""Properties of every rule under every convention, for any numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.evaluate import evaluate, results
from tape import check
from tests.support.close import EXACT, assert_close, reordered
from tests.support.resumed import in_two, time_axis
from tests.support.strategies import cases, header_of, repeatable


@pytest.mark.clause(
    "CONV-37", "CONV-38", "OMEGA-28", "TITANS-16", "DELTA-15", "HEBBIAN-12", "CASE-13"
)
@settings(repeatable, max_examples=150)
@given(cases(reset=0, cotangent=False), st.integers(1, 7))
def test_a_call_split_anywhere_and_resumed_equals_one_call(case: Case, where: int) -> None:
    T = case.inputs["in/x" if case.header.level == "token" else "in/k"].shape[-2]
    assume(where < T and case.convention.read != "call_end")
    whole = evaluate(case).tensors
    split = in_two(case, where)
    amplification = 1e7 if case.convention.has_newton_schulz else 1e4
    assert split.keys() == whole.keys()
    for name, value in whole.items():
        assert_close(name, split[name], value, reordered(1, amplification=amplification))


@pytest.mark.clause("OMEGA-15", "TITANS-10", "DELTA-9", "CONV-11")
@settings(repeatable, max_examples=100)
@given(cases(level="projected", reset=0), st.integers(0, 7))
def test_a_change_of_future_tokens_leaves_earlier_outputs_bit_identical(
    case: Case, where: int
) -> None:
    T = case.inputs["in/k"].shape[-2]
    assume(where < T - 1 and case.convention.read != "call_end")
    changed = {}
    for name, value in case.inputs.items():
        axis = time_axis(case, name)
        if axis is None or value.dtype == np.uint8:
            changed[name] = value
            continue
        future = value.copy()
        key = (..., slice(where + 1, None), *[slice(None)] * (-axis - 1))
        future[key] = 0.5 * future[key]
        changed[name] = future
    before = evaluate(case).tensors["out/y"][..., : where + 1, :]
    after = evaluate(make(header_of(case), changed)).tensors["out/y"][..., : where + 1, :]
    assert_close("y of the past", after, before, EXACT)


@pytest.mark.clause("CONV-32", "OMEGA-13", "TITANS-7", "DELTA-5", "HEBBIAN-4")
@settings(repeatable, max_examples=100)
@given(cases(pulse=1, reset=0))
def test_a_memory_without_active_tokens_does_not_move(case: Case) -> None:
    T = case.inputs["in/x" if case.header.level == "token" else "in/k"].shape[-2]
    still = evaluate(
        make(header_of(case), {**case.inputs, "in/active": np.zeros(T, np.uint8)})
    ).tensors
    assert_close("M", still["out/M"], case.inputs["in/M0"], EXACT)
    if "out/S" in still:
        assert_close("S", still["out/S"], case.inputs["in/S0"], EXACT)


@pytest.mark.clause("CONV-27")
@settings(repeatable, max_examples=60)
@given(cases(level="projected", heads=2))
def test_heads_do_not_meet(case: Case) -> None:
    whole = evaluate(case).tensors
    shared = {"in/active", "in/reset"} | {
        name for name in case.inputs if name.startswith(("in/phi/", "in/proj"))
    }
    for head in range(2):
        one = {
            name: value if name in shared else value[head] for name, value in case.inputs.items()
        }
        alone = evaluate(make(header_of(case), one)).tensors
        amplification = 1e7 if case.convention.has_newton_schulz else 1e4
        for name, value in alone.items():
            assert_close(name, value, whole[name][head], reordered(1, amplification=amplification))


@pytest.mark.clause("WINDOW-18")
@settings(repeatable, max_examples=60)
@given(
    cases(
        "omega",
        level="projected",
        window=3,
        tokens=1,
        history=2,
        window_gate=False,
        newton_schulz=False,
    ),
    st.permutations([0, 1]),
)
def test_order_inside_the_window_does_not_matter_where_weights_are_equal(
    case: Case, order: list[int]
) -> None:
    assume(
        case.convention.order == "window_then_momentum"
        and case.convention.window_at_boundary == "recompute"
    )
    equal = {
        **case.inputs,
        "in/window_weights": np.full_like(case.inputs["in/window_weights"], 1 / 3),
    }
    moved = {
        **equal,
        **{name: equal[name][..., order, :] for name in ("in/window_k", "in/window_v")},
    }
    got = evaluate(make(header_of(case), moved)).tensors
    want = evaluate(make(header_of(case), equal)).tensors
    assert_close("M", got["out/M"], want["out/M"], reordered(3, amplification=100))


@pytest.mark.clause("TAPE-16")
@settings(repeatable, max_examples=30)
@given(cases(level="projected"))
def test_the_pullback_of_a_whole_sequence_is_linear(case: Case) -> None:
    names = [name for name in ("in/k", "in/v", "in/retain", "in/M0") if name in case.inputs]

    def y(*arrays: Any) -> Any:
        return results({**case.inputs, **dict(zip(names, arrays, strict=True))}, case)[0]["out/y"]

    check.check_linear(
        y,
        *[case.inputs[name] for name in names],
        tolerance=1e-9 if case.convention.has_newton_schulz else 1e-12,
    )


@pytest.mark.clause("DELTA-7")
def test_outside_the_stable_range_the_rule_grows_by_the_predicted_factor() -> None:
    """Growth of the error with a unit key and retain 1.

    One Delta step multiplies the error by 1 - step_size: 3 means a factor -2 per token.
    """
    T, step_size = 12, 3.0
    k = np.zeros((T, 2))
    k[:, 0] = 1.0
    inputs = {
        "in/k": k,
        "in/v": np.ones((T, 1)),
        "in/q": k,
        "in/retain": np.ones(T),
        "in/step_size": np.full(T, step_size),
    }
    y = evaluate(make({"schema": 1, "rule": "delta"}, inputs)).tensors["out/y"][:, 0]
    error = y - 1.0
    assert_close("error", error, -((1.0 - step_size) ** np.arange(1, T + 1)), reordered(T))
