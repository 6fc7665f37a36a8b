"""Bad sequences are refused in one line that names the tensor (CASE-44, CASE-47, CASE-48)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.certify import certify
from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sequences.parts import evaluate

GONE = object()


def bounds(*values: Any, kind: Any = np.int64) -> Any:
    return np.array(values, kind)


def wrong_state() -> Any:
    x = np.zeros((3, 2, 3, 4))
    x[2, 1, 0, 3] = np.nan
    return x


BAD: list[tuple[str, dict[str, Any]]] = [
    ("in/sequences: dtype float64, int64 or int32 is needed", {"in/sequences": bounds(0, 3, 3, 8, kind=float)}),
    ("in/sequences: shape (1,), expected (N + 1,) of at least 1 sequence", {"in/sequences": bounds(0)}),
    ("in/sequences: shape (1, 4), expected (N + 1,) of at least 1 sequence", {"in/sequences": bounds(0, 3, 3, 8)[None]}),
    ("in/sequences: entries must be at least 0, found -1 at (0,)", {"in/sequences": bounds(-1, 3, 3, 8)}),
    ("in/sequences: the first sequence starts at token 0, found 1", {"in/sequences": bounds(1, 3, 3, 8)}),
    ("in/sequences: starts never fall, found 2 behind 3 at (2,)", {"in/sequences": bounds(0, 3, 2, 8)}),
    ("in/sequences: the last number must be 8, as many as there are tokens, found 9", {"in/sequences": bounds(0, 3, 3, 9)}),
    ("in/sequences: found beside in/reset, and both say where sequences start; one of them is needed", {"in/reset": np.zeros(8, bool)}),
    ("in/M0: shape (2, 3, 4), 3 sequences need 3 in front of its axes", {"in/M0": np.zeros((2, 3, 4))}),
    ("in/M_bar: shape (4, 2, 3, 4), 3 sequences need 3 in front of its axes", {"in/M_bar": np.zeros((4, 2, 3, 4))}),
    ("in/M0: shape (2, 4, 4) makes d_out 4, but in/v makes it 3 (sequence 0)", {"in/M0": np.zeros((3, 2, 4, 4))}),
    ("in/M0: entries must be finite, found nan at (1, 0, 3) (sequence 2)", {"in/M0": wrong_state()}),
    ("in/has_initial_state: shape (4,), 3 sequences need (3,)", {"in/has_initial_state": np.ones(4, bool)}),
    ("in/has_initial_state: dtype float64, bool or uint8 is needed", {"in/has_initial_state": np.ones(3)}),
    ("in/has_initial_state: belongs beside in/sequences, which is missing", {"in/sequences": GONE}),
    ("in/has_initial_state: the case has no first state that a sequence could lack", {"in/M0": GONE}),
]  # fmt: skip


@pytest.mark.clause("CASE-44")
@pytest.mark.parametrize(("message", "changes"), BAD, ids=[each[0][:60] for each in BAD])
def test_bad_sequences(message: str, changes: dict[str, Any]) -> None:
    case = new(Request(rule="delta", sequences=(3, 0, 5), cotangent=True))
    tensors = {name: x for name, x in {**case.inputs, **changes}.items() if x is not GONE}
    with pytest.raises(CaseError) as caught:
        make(case.header.plain(), tensors, name="bad")
    assert str(caught.value) == f"bad: {message}"


@pytest.mark.clause("CASE-44")
@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"rule": "cms"}, "cms"),
        ({"rule": "newton_schulz"}, "newton_schulz"),
        ({"rule": "feature_map"}, "feature_map"),
    ],
)
def test_rules_without_calls(fields: dict[str, Any], rule: str) -> None:
    case = new(Request(**fields))
    tensors = {**case.inputs, "in/sequences": bounds(0, 8)}
    with pytest.raises(CaseError) as caught:
        make(case.header.plain(), tensors, name="bad")
    words = "bad: in/sequences: rule {} has no calls that are packed into one"
    assert str(caught.value) == words.format(rule)


@pytest.mark.clause("CASE-44")
def test_a_schedule_is_of_one_call() -> None:
    case = new(Request(rule="delta", periods=(1, 2)))
    tensors = {**case.inputs, "in/sequences": bounds(0, 8)}
    with pytest.raises(CaseError, match=r"in/sequences: found beside a schedule, whose steps are"):
        make(case.header.plain(), tensors)


@pytest.mark.clause("CASE-45")
def test_a_cotangent_of_a_last_state_that_is_left_out() -> None:
    """States of unlike shapes are not stacked, so none of them may be weighed."""
    case = new(Request(rule="delta", sequences=(3, 5), cotangent=True), name="two")

    def run(inputs: Any, one: Case) -> dict[str, Any]:
        return {"out/y": inputs["in/v"], "out/M": inputs["in/v"]}

    with pytest.raises(CaseError) as caught:
        evaluate(SUBJECTS["delta"], case.inputs, case, run)
    words = "two: in/M_bar: weighs out/M, which is not of one shape in all sequences"
    assert str(caught.value) == words


@pytest.mark.clause("CASE-48")
@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("sequences: lengths are from 0, found -1", {"sequences": (3, -1)}),
        ("sequences: at least one of them needs a token", {"sequences": (0, 0)}),
        ("sequences and reset: one of them is needed", {"sequences": (3, 5), "reset": 2}),
        ("sequences and packed: one of them is needed", {"sequences": (3, 5), "packed": True}),
        ("sequences and periods: one of them is needed", {"sequences": (3, 5), "periods": (1, 2)}),
        ("sequences of 8 tokens and tokens 9: one of them is needed", {"sequences": (3, 5), "tokens": 9}),
    ],
)  # fmt: skip
def test_requests_that_say_two_things(message: str, fields: dict[str, Any]) -> None:
    with pytest.raises(CaseError) as caught:
        new(Request(rule="delta", **fields))
    assert str(caught.value) == f"new: {message}"


@pytest.mark.clause("CASE-47")
@pytest.mark.parametrize(
    ("what", "ask"), [("a trace", trace), ("certify", certify)], ids=["trace", "certify"]
)
def test_tools_that_look_into_one_call(what: str, ask: Any) -> None:
    case = new(Request(rule="delta", sequences=(3, 5)), name="two")
    with pytest.raises(CaseError) as caught:
        ask(case)
    assert str(caught.value) == (
        f"two: in/sequences: {what} looks into one call, and each sequence is one; check and "
        "identify take all of them"
    )


@pytest.mark.clause("CASE-47")
def test_no_schedule_cuts_sequences() -> None:
    from atlas_ref.oracle.sweep.split import places, uncut

    case = new(Request(rule="delta", sequences=(3, 5)))
    assert uncut(case) == "each sequence of in/sequences is a call already"
    assert places(case) == []
