"""A kernel called as a schedule says, each call from the states of its own calls (SCHED-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.cases.inputs import STORED
from atlas_ref.oracle.evaluate import Results, evaluate
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.judge.profile import token_axis
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.schedules.steps import Call, UncutError
from atlas_ref.oracle.subjects.base.calls import Calls
from atlas_ref.oracle.sweep import split

Tensors = dict[str, np.ndarray[Any, Any]]

#: Masks, which are of tokens alone, or of rows too.
MASKS = ("in/active", "in/reset")


class Stopped(NamedTuple):
    """A call without an answer that the schedule can go on from."""

    call: Call
    answer: Answer


class Ran(NamedTuple):
    """What a schedule left.

    Attributes:
        rounds: reads of all tokens, from the first time each was computed to the last, each with the
            call that computed a token.
        states: results but reads, by the number of tokens before them.
        answers: of each call, with the states that it was given.
        stopped: the call at which it ended, where it did.
    """

    rounds: list[tuple[Tensors, dict[int, Call]]]
    states: dict[int, Tensors]
    answers: list[tuple[Call, Tensors | None, Tensors]]
    stopped: Stopped | None = None


@dataclass(frozen=True)
class Plan:
    """A case whose calls may be cut, and how.

    Attributes:
        case: without cotangents and recorded results.
        cut: how calls of its subject are cut.
        read: the result that has tokens.
        axis: the axis of tokens of reads, from the end.
        carried: results of one call that are inputs of the next.
        headers: where a call stands after some tokens, as our own results say it.
    """

    case: Case
    cut: Calls
    read: str
    axis: int
    carried: tuple[str, ...]
    headers: Mapping[int, Mapping[str, Any]]

    def part(self, call: Call, states: Tensors | None) -> Case:
        """The case of a call that goes on from states; of the first call where there are none."""
        tokens = range(call.first, call.last)
        if states is None:
            return split.part(self.case, tokens)
        header = dict(self.headers.get(call.first, {}))
        return split.resume(self.case, Results(tensors=states, header=header, void={}), tokens)

    def prefix(self, place: int) -> Case:
        """The case of the first tokens."""
        return split.part(self.case, range(place))

    @property
    def leading(self) -> tuple[int, ...]:
        """Axes in front of tokens: rows of a batch, where there are two, and heads."""
        first = self.case.inputs["in/q" if "in/q" in self.case.inputs else "in/x"]
        return tuple(first.shape[:-2])

    def rows(self) -> int:
        """Rows of the batch in front of heads; 0 where there are none."""
        return self.leading[0] if len(self.leading) > 1 and self.leading[0] > 1 else 0

    def row(self, case: Case, i: int) -> Case:
        """One row of the batch of a case, as a batch of one.

        Raises:
            CaseError: an input of heads that was taken for one of rows, where there are as many.
        """

        def has_rows(name: str, x: Any) -> bool:
            of_rows = x.ndim > len(self.leading) or (name in MASKS and x.ndim > 1)
            return bool(of_rows and x.shape[0] == self.rows())

        inputs = {name: x[i : i + 1] if has_rows(name, x) else x for name, x in case.inputs.items()}
        return make(case.header.plain(), inputs, name=case.name)


def plan_calls(case: Case, calls: Sequence[Call]) -> Plan:
    """A case as a schedule calls it.

    Raises:
        UncutError: a case whose calls cannot be cut there, and why.
    """
    inputs = {name: x for name, x in case.inputs.items() if not name.endswith("_bar")}
    bare = make(case.header.plain(), inputs, name=case.name)
    cut = SUBJECTS[case.header.rule].calls
    why = split.uncut(bare)
    if cut is None or (why := why or _place_refusal(bare, cut, calls)):
        raise UncutError(f"{case.name}: schedule: {why}")
    results = evaluate(bare).tensors
    read = next(name for name in results if token_axis(bare, name) is not None)
    axis = token_axis(bare, read)
    assert axis is not None
    carried = tuple(name for name in results if cut.left(name))
    return Plan(bare, cut, read, axis, carried, _headers(bare, calls))


def _place_refusal(case: Case, cut: Calls, calls: Sequence[Call]) -> str:
    """Why calls of a case cannot be cut where a schedule cuts them; "" where they can."""
    for t in sorted({each.first for each in calls} - {0}):
        if split.resets_behind(case, t) and not cut.from_zero(case):
            return "in/reset goes back to the first state of its own call; take a case without"
        if not cut.may_cut(case, t):
            return f"no call of this case may end after {t} tokens"
    return ""


def run(plan: Plan, source: Source, calls: Sequence[Call]) -> Ran:
    """What a source answers to the calls of a schedule, its own states handed on."""
    states = dict[int, Tensors]()
    rows = dict[int, list[tuple[Any, Call]]]()
    answers = list[tuple[Call, Tensors | None, Tensors]]()
    for call in calls:
        given = states.get(call.first)
        try:
            part = plan.part(call, given)
        except CaseError as error:  # states that no call can start from
            return Ran([], states, answers, Stopped(call, Answer.no_answer(_refusal(plan, error))))
        answer = source(part)
        if answer.tensors is None or (why := _unusable(plan, call, calls, answer.tensors)):
            failed = answer if answer.tensors is None else Answer.no_answer(why)
            return Ran([], states, answers, Stopped(call, failed))
        found = dict(answer.tensors)
        answers.append((call, given, found))
        states[call.last] = {name: _copy(found[name]) for name in plan.carried if name in found}
        if call.reads and plan.read in found:
            for i, t in enumerate(range(call.first, call.last)):
                row = np.take(found[plan.read], i, axis=plan.axis)
                rows.setdefault(t, []).append((row, call))
    return Ran(_rounds(plan, rows), states, answers)


def _unusable(plan: Plan, call: Call, calls: Sequence[Call], found: Tensors) -> str:
    """Why an answer does not carry a schedule on; "" where it does."""
    goes_on = any(each.first == call.last for each in calls)
    for name in plan.carried if goes_on else ():
        if name not in found:
            return f"{name}: no state is handed over, from which the next call goes on"
    if call.reads and plan.read in found:
        shape = found[plan.read].shape
        if len(shape) < -plan.axis or shape[plan.axis] != call.tokens:
            return f"{plan.read}: shape {shape}, a call of {call.tokens} tokens has as many reads"
    return ""


def _refusal(plan: Plan, error: CaseError) -> str:
    """Why states that a call left are none, by the names of the results that they are."""
    words = str(error).removeprefix(f"{plan.case.name}: ")
    for name in plan.carried:
        words = words.replace(f"{plan.cut.left(name)}:", f"{name} of the call before:")
    return words


def _copy(x: Any) -> Any:
    """A state as the next case has it: a copy, in a format of cases."""
    x = np.array(x)
    return x if x.dtype.name in STORED or x.dtype.kind in "biu" else x.astype(np.float64)


def _headers(case: Case, calls: Sequence[Call]) -> dict[int, dict[str, Any]]:
    """Where the next call stands after some tokens, as our own results say it (CASE-13)."""
    counted = {"phase", *split.COUNTED}
    whole = evaluate(case).header
    plain = case.header.plain()
    if all(whole.get(name) == plain.get(name) for name in counted):
        return {}
    found: dict[int, dict[str, Any]] = {}
    for place in sorted({each.first for each in calls} - {0}):
        found[place] = evaluate(split.part(case, range(place))).header
    return found


def _rounds(
    plan: Plan, rows: Mapping[int, list[tuple[Any, Call]]]
) -> list[tuple[Tensors, dict[int, Call]]]:
    """Reads of all tokens, each time that some were computed, with their calls."""
    found = []
    for i in range(max((len(each) for each in rows.values()), default=0)):
        now = {t: rows[t][min(i, len(rows[t]) - 1)] for t in sorted(rows)}
        reads = np.stack([row for row, _ in now.values()], axis=plan.axis)
        found.append(({plan.read: reads}, {t: call for t, (_, call) in now.items()}))
    return found
