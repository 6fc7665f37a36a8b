"""Mistakes about states of sequences, each planted by hand and named by identify (CASE-46)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.oracle.cases.case import Case, make
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.judge.compare import checked
from atlas_ref.oracle.report.nearest import Nearest

Arrays = dict[str, Any]

DELTA: dict[str, Any] = {"rule": "delta"}
GATED: dict[str, Any] = {"rule": "dplr", "parameters": {"member": "gated_delta"}}
MESA: dict[str, Any] = {"rule": "recurrence", "parameters": {"member": "mesa"}}


def case_of(fields: dict[str, Any] = DELTA) -> Case:
    return new(Request(**fields, sequences=(5, 0, 7, 4, 1), cotangent=True), name="five")


def changed(case: Case, **changes: Any) -> Case:
    """The case with other inputs, None for one that it lacks."""
    named = {f"in/{name}": x for name, x in changes.items()}
    tensors = {name: x for name, x in {**case.inputs, **named}.items() if x is not None}
    return make(case.header.plain(), tensors)


def started(order: list[int]) -> Any:
    return lambda case: evaluate(changed(case, M0=case.inputs["in/M0"][order])).tensors


def left(order: list[int]) -> Any:
    def results(case: Case) -> Arrays:
        own = evaluate(case).tensors
        return {**own, "out/M": own["out/M"][order]}

    return results


def without_states(case: Case) -> Arrays:
    return evaluate(changed(case, M0=None, has_initial_state=None)).tensors


def without_mask(case: Case) -> Arrays:
    return evaluate(changed(case, has_initial_state=None)).tensors


def without_starts(case: Case) -> Arrays:
    """One call of all tokens, whose states at the ends of sequences are those of its prefixes."""
    inputs = {n: x for n, x in case.inputs.items() if n not in ("in/sequences", "in/M_bar")}
    del inputs["in/has_initial_state"]
    inputs["in/M0"] = inputs["in/M0"][0]
    bounds = case.inputs["in/sequences"].tolist()
    states = []
    for n in range(5):
        end = bounds[n + 1]
        of_tokens = ("in/k", "in/v", "in/q", "in/y_bar", "in/retain", "in/step_size")
        part = {m: x[:, :end] if m in of_tokens else x for m, x in inputs.items()}
        states.append(evaluate(make(case.header.plain(), part)).tensors["out/M"])
    # an empty sequence has no read and no write: what it returns is its own first state
    states[1] = case.inputs["in/M0"][1]
    return {
        "out/y": evaluate(make(case.header.plain(), inputs)).tensors["out/y"],
        "out/M": np.stack(states),
    }


def lost_empty(case: Case) -> Arrays:
    own = evaluate(case).tensors
    states = own["out/M"].copy()
    states[1] = 0.0
    return {**own, "out/M": states}


def started_with(order: list[int], *, mask: bool) -> Any:
    """First states of other sequences, with their masks or with none."""

    def results(case: Case) -> Arrays:
        has = case.inputs["in/has_initial_state"][order] if mask else None
        return evaluate(
            changed(case, M0=case.inputs["in/M0"][order], has_initial_state=has)
        ).tensors

    return results


def chain(which: str) -> Any:
    """Sequences as calls, those that are fresh or given a state from the end of the one before."""

    def results(case: Case) -> Arrays:
        bounds, has = case.inputs["in/sequences"].tolist(), case.inputs["in/has_initial_state"]
        reads, states, end = [], [], None
        for n in range(5):
            first = case.inputs["in/M0"][n] if has[n] else np.zeros_like(case.inputs["in/M0"][n])
            if end is not None and (which == "all" or bool(has[n]) == (which == "given")):
                first = end
            if bounds[n] == bounds[n + 1]:
                end = first
            else:
                of_tokens = ("in/k", "in/v", "in/q", "in/retain", "in/step_size")
                part = {m: case.inputs[m][:, bounds[n] : bounds[n + 1]] for m in of_tokens}
                found = evaluate(make(case.header.plain(), {**part, "in/M0": first})).tensors
                reads.append(found["out/y"])
                end = found["out/M"]
            states.append(end)
        return {"out/y": np.concatenate(reads, axis=-2), "out/M": np.stack(states)}

    return results


def to_the_front(case: Case) -> Arrays:
    own = evaluate(case).tensors
    states = own["out/M"][[0, 2, 3, 4, 4]].copy()
    states[4] = 0.0
    return {**own, "out/M": states}


#: Words about first states of others at the ends, and about their masks.
ROUND = "every sequence started from the first state of the sequence"
BEHIND = f"{ROUND} behind it, the last one from sequence 0 (CASE-45)"
BEFORE = f"{ROUND} before it, sequence 0 from the last one (CASE-45)"
WITH_MASK = f"{ROUND} before it, with its in/has_initial_state (CASE-45)"
WITHOUT_MASK = f"{ROUND} behind it, whatever in/has_initial_state says (CASE-44)"

PLANTED: list[tuple[str, Any]] = [
    ("every sequence started from the first state of sequence 0 (CASE-45)", started([0, 0, 0, 0, 0])),
    ("every sequence started from the first state of sequence 4, the last (CASE-45)", started([4, 4, 4, 4, 4])),
    ("every sequence started from the first state of the sequence behind it (CASE-45)", started([1, 2, 3, 4, 4])),
    ("every sequence started from the first state of the sequence before it (CASE-45)", started([0, 0, 1, 2, 3])),
    ("every sequence started from the first state of another sequence, in reverse order (CASE-45)", started([4, 3, 2, 1, 0])),
    ("every sequence started from the first state of another sequence, counted without the empty ones (CASE-45)", started([0, 1, 1, 2, 3])),
    ("every sequence started from zeros, not from its first state (CASE-45)", without_states),
    ("in/has_initial_state was ignored, and every sequence has its first state (CASE-44)", without_mask),
    ("each sequence went on from the last state of the one before, but empty ones, which kept their own (CASE-45)", without_starts),
    ("each sequence went on from the last state of the one before (CASE-45)", chain("all")),
    ("the last state of every sequence was that of sequence 0 (CASE-45)", left([0, 0, 0, 0, 0])),
    ("the last state of every sequence was that of sequence 4, the last (CASE-45)", left([4, 4, 4, 4, 4])),
    ("the last state of every sequence was that of the sequence behind it (CASE-45)", left([1, 2, 3, 4, 4])),
    ("the last state of every sequence was that of the sequence before it (CASE-45)", left([0, 0, 1, 2, 3])),
    ("the last state of every sequence was that of another sequence, in reverse order (CASE-45)", left([4, 3, 2, 1, 0])),
    ("the last state of every sequence was that of another sequence, counted without the empty ones (CASE-45)", left([0, 1, 1, 2, 3])),
    ("the last state of an empty sequence was zeros, not its first state (CASE-45)", lost_empty),
    ("the last state of an empty sequence was that of the sequence before it (CASE-45)", left([0, 0, 2, 3, 4])),
    ("the last state of an empty sequence was that of the sequence behind it (CASE-45)", left([0, 2, 2, 3, 4])),
    (BEHIND, started([1, 2, 3, 4, 0])),
    (BEFORE, started([4, 0, 1, 2, 3])),
    (WITH_MASK, started_with([0, 0, 1, 2, 3], mask=True)),
    (WITHOUT_MASK, started_with([1, 2, 3, 4, 4], mask=False)),
    ("a sequence without a first state went on from the last state of the one before (CASE-44)", chain("fresh")),
    ("a sequence with a first state went on from the last state of the one before (CASE-45)", chain("given")),
    ("the last state of every sequence was that of the sequence before it, sequence 0 from the last one (CASE-45)", left([4, 0, 1, 2, 3])),
    ("last states were packed to the front, without those of empty sequences (CASE-45)", to_the_front),
]  # fmt: skip


@pytest.mark.clause("CASE-46")
@pytest.mark.parametrize(("words", "plant"), PLANTED, ids=[each[0][:70] for each in PLANTED])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_identify_names_each_mistake(words: str, plant: Any, dtype: str) -> None:
    case = case_of()
    results = {n: x.astype(dtype) for n, x in plant(case).items() if n.startswith("out/")}
    answer = identify(case, results, depth=0)
    assert answer.verdict == "NO MATCH"
    assert [each.words for each in answer.departures] == [words]


@pytest.mark.clause("CASE-46")
@pytest.mark.parametrize("fields", [GATED, MESA], ids=["dplr", "recurrence"])
def test_of_rules_with_readings_of_their_own(fields: dict[str, Any]) -> None:
    case = case_of(fields)
    rolled = {
        name: x[[0, 0, 1, 2, 3]] for name, x in case.inputs.items() if name in ("in/M0", "in/G0")
    }
    other = make(case.header.plain(), {**case.inputs, **rolled})
    answer = identify(case, evaluate(other).tensors, depth=0)
    assert [each.words for each in answer.departures] == [PLANTED[3][0]]
    gradients = evaluate(other, grad=True).tensors
    alone = {"grad/v": gradients["grad/v"], "grad/M0": evaluate(case, grad=True).tensors["grad/M0"]}
    assert not identify(case, alone, depth=0).departures  # neither ours nor of this mistake


@pytest.mark.clause("CASE-46")
def test_what_is_no_mistake_about_states_is_told_of_one_sequence() -> None:
    """Another convention of one sequence alone is told of that sequence, by its number."""
    case = case_of()
    answer = identify(case, evaluate(case).tensors, depth=1)
    assert (answer.verdict, answer.own, answer.departures) == ("MATCH", True, ())
    assert answer.case == "five"
    other = dict(evaluate(changed(case, step_size=1.5 * case.inputs["in/step_size"])).tensors)
    ours = evaluate(case).tensors
    other["out/y"] = other["out/y"].copy()
    other["out/y"][:, :5], other["out/M"] = ours["out/y"][:, :5], ours["out/M"]
    assert identify(case, other, depth=0).case == "five, sequence 2"


@pytest.mark.clause("CASE-46")
def test_results_in_a_narrow_format() -> None:
    """Inputs are rounded first, and so is what a mistake makes of them."""
    case = round_inputs(case_of(GATED), "bfloat16")
    ours = evaluate(case, dtype="bfloat16").tensors
    assert identify(case, ours, depth=0).verdict == "MATCH"
    left_over = {**ours, "out/M": ours["out/M"][[4, 4, 4, 4, 4]]}
    answer = identify(case, left_over, depth=0)
    assert [each.words for each in answer.departures] == [PLANTED[11][0]]
    broken = {**ours, "out/y": np.full_like(ours["out/y"], np.nan)}
    assert identify(case, broken).verdict == "NOT FINITE"


@pytest.mark.clause("CASE-46")
def test_check_names_the_mistake() -> None:
    case = case_of(GATED)
    wrong = started([0, 0, 0, 0, 0])(case)
    found = checked(case, source=lambda _: Answer(dict(wrong)))
    assert "WRONG" in {row.verdict for row in found.rows}
    words = Nearest().words(found, found.rows)
    assert words.startswith(f"as if {PLANTED[0][0]}, under ")


@pytest.mark.clause("CASE-46")
def test_a_window_among_the_results_is_passed_over() -> None:
    """A plain run has no window, and a result of the case it is all the same."""
    case = new(Request(rule="omega", window=3, sequences=(5, 4)))
    ours = evaluate(case).tensors
    assert "out/window_k" in ours
    assert identify(case, ours, depth=0).verdict == "MATCH"


@pytest.mark.clause("CASE-46")
def test_mistakes_of_a_deep_memory_with_an_empty_sequence_and_cotangents() -> None:
    """Where a mistake leaves an empty sequence without a state, nothing of it is weighed."""
    case = new(Request(rule="deep_memory", sequences=(5, 0, 4, 1), cotangent=True))
    inputs = {n: x for n, x in case.inputs.items() if n != "in/has_initial_state"}
    wrong = evaluate(make(case.header.plain(), inputs)).tensors
    found = [each.words for each in identify(case, wrong, depth=0).departures]
    assert PLANTED[7][0] in found
