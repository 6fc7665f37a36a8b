"""The verdicts on a kernel under a schedule: right, and the same whatever the calls (SCHED-4, SCHED-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.features import declared_features, features
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.evaluate import evaluate, under
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.judge.compare import Checked, checked
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.schedules.mistakes import mistakes
from atlas_ref.oracle.schedules.run import Ran, plan_calls, run
from atlas_ref.oracle.schedules.steps import Call, UncutError, calls
from atlas_ref.oracle.sweep.first import tokens_of

#: Names of the verdicts on bits, as rows have them.
REPEATED, SPLIT, BATCHED = "repeated call", "calls against one", "row alone"

#: Name of the verdict on states between calls, where all are right.
STATES = "states between calls"

#: Prefixes whose states are judged, at most.
PREFIXES = 4

#: A verdict, and how bad it is.
ORDER = {"PASS": 0, "UNDECIDABLE": 1, "MARGINAL": 2, "WRONG": 3, "MISSING": 4, "FAILED": 5}


class Judge:
    """One kernel, one case, one schedule.

    Args:
        exactly: whether the kernel claims bits: then another rounding is WRONG.
        stated: dtype and state_dtype, as of `check`.
    """

    def __init__(
        self, case: Case, source: Source, text: str, *, exactly: bool, **stated: Any
    ) -> None:
        self.exactly, self.stated, self.source = exactly, stated, source
        if stated.get("dtype") is not None:
            case = round_inputs(case, stated["dtype"])
        self.calls = calls(text, tokens_of(case))
        self.plan = plan_calls(case, self.calls)
        self.name = case.name

    def rows(self) -> list[Comparison]:
        """Every verdict, in order."""
        ran = run(self.plan, self.source, self.calls)
        if ran.stopped is not None:
            call, answer = ran.stopped
            return [self._row("-", answer.verdict, f"{call.words}: {answer.failure}")]
        right = [self._name_mistake(row, ran) for row in self._right(ran)]
        rows = [*right, *self._prefixes(ran), self._repeat(ran)]
        return [*rows, self._against_one(ran, right), *self._row_alone(ran)]

    def _row(self, tensor: str, verdict: Any, why: str) -> Comparison:
        return Comparison(self.name, tensor, verdict, why=why)

    def _verdicts(self, case: Case, found: Mapping[str, Any]) -> list[Comparison]:
        """The ordinary verdicts on results of a case."""
        tensors = {name: x for name, x in found.items() if name.startswith("out/")}
        return checked(case, source=lambda _: Answer(dict(tensors)), **self.stated).rows

    def _wrong(self, case: Case, found: Mapping[str, Any]) -> list[str]:
        """Names of the results of a case that are not right."""
        return _bad(self._verdicts(case, found))

    def _right(self, ran: Ran) -> list[Comparison]:
        """The worst verdict of each result, of all times that its tokens were computed."""
        last = ran.states[max(ran.states)]
        found: dict[str, Comparison] = {}
        for reads, computed_in in ran.rounds:
            for row in self._verdicts(self.plan.case, {**reads, **last}):
                if row.tensor not in found or _worse(row, found[row.tensor]):
                    found[row.tensor] = _with_call(row, computed_in)
        return list(found.values())

    def _prefixes(self, ran: Ran) -> list[Comparison]:
        """One verdict on states after some calls: the first that is wrong, else the worst (SCHED-4)."""
        places = sorted({each.last for each in self.calls} - {max(ran.states)})
        places = places[:: max(1, -(-len(places) // PREFIXES))]
        worst: Comparison | None = None
        for place in places:
            for row in self._verdicts(self.plan.prefix(place), ran.states[place]):
                if row.tensor in self.plan.carried and (worst is None or _worse(row, worst)):
                    worst = row._replace(tensor=f"{row.tensor} after {place}")
            if worst is not None and worst.verdict not in ("PASS", "UNDECIDABLE"):
                return [worst]
        if worst is None:
            return []
        told = ", ".join(map(str, places))
        return [worst._replace(tensor=STATES, why=_both(worst.why, f"after {told} tokens"))]

    # -- the same bits ---------------------------------------------------------------------------------

    def _repeat(self, ran: Ran) -> Comparison:
        """Whether the first call of each kind gives the same bits again."""
        kinds: set[str] = set()
        other = ""
        for call, given, found in ran.answers:
            kind = call.step.partition(":")[0]
            if kind in kinds:
                continue
            kinds.add(kind)
            part = self.plan.part(call, given)
            again = self.source(part)
            if again.tensors is None:
                why = f"{call.words}, asked again: {again.failure}"
                return self._row(REPEATED, again.verdict, why)
            if not (differs := _difference(found, again.tensors)):
                continue
            if wrong := self._wrong(part, again.tensors):
                why = f"{call.words}, asked again: {', '.join(wrong)} WRONG"
                return self._row(REPEATED, "WRONG", why)
            other = other or f"{call.words}: other bits in {differs}"
        return self._of_bits(REPEATED, other)

    def _against_one(self, ran: Ran, right: Sequence[Comparison]) -> Comparison:
        """Whether the calls of the schedule give what one call gives."""
        whole = self.source(self.plan.case)
        if whole.tensors is None:
            return self._row(SPLIT, whole.verdict, f"one call: {whole.failure}")
        last, differs = ran.states[max(ran.states)], ""
        for reads, _ in ran.rounds:
            mine = {**reads, **last}
            if name := _difference(mine, whole.tensors):
                axis = self.plan.axis if name in reads else None
                differs = name + _first_other(mine[name], whole.tensors[name], axis)
                break
        if not differs:
            return self._of_bits(SPLIT, "")
        bad, alone = _bad(right), self._wrong(self.plan.case, whole.tensors)
        if alone:
            these = "neither these calls nor one call is" if bad else "one call is not"
            return self._row(SPLIT, "WRONG", f"{these} right: {', '.join(alone)}")
        if bad:
            why = f"one call is right, these calls are not: {', '.join(bad)}"
            return self._row(SPLIT, "WRONG", why)
        return self._of_bits(SPLIT, f"other bits from {differs} on")

    def _row_alone(self, ran: Ran) -> list[Comparison]:
        """Whether a row of the batch gives the same bits alone."""
        count, other = self.plan.rows(), ""
        if not count:
            return []
        call, _, found = ran.answers[0]
        for i in (0, count - 1):
            try:
                part = self.plan.row(self.plan.part(call, None), i)
            except CaseError:
                why = f"{count} rows and as many heads are not told apart; take another batch"
                return [self._row(BATCHED, "NOT SUPPORTED", why)]
            answer = self.source(part)
            if answer.tensors is None:
                return [self._row(BATCHED, answer.verdict, f"row {i} alone: {answer.failure}")]
            mine = {
                name: x[i : i + 1] if x.ndim and x.shape[0] == count else x
                for name, x in found.items()
            }
            if not (differs := _difference(mine, answer.tensors)):
                continue
            for words, results in (("alone", answer.tensors), ("among others", mine)):
                if wrong := self._wrong(part, results):
                    why = f"row {i} {words}: {', '.join(wrong)} WRONG"
                    return [self._row(BATCHED, "WRONG", why)]
            other = other or f"row {i}: other bits in {differs}"
        return [self._of_bits(BATCHED, other)]

    def _of_bits(self, name: str, other: str) -> Comparison:
        """The verdict on bits, where numbers are right."""
        if not other:
            return self._row(name, "PASS", "the same bits")
        return self._row(name, "WRONG" if self.exactly else "PASS", other)

    # -- which mistake -----------------------------------------------------------------------------------

    def _name_mistake(self, row: Comparison, ran: Ran) -> Comparison:
        """A wrong read with the mistake under which our own calls give it (SCHED-6)."""
        if row.verdict != "WRONG" or row.tensor != self.plan.read:
            return row
        got = ran.rounds[-1][0][self.plan.read].astype(np.float64)
        if not np.isfinite(got).all():
            return row
        want = evaluate(self.plan.case).tensors[self.plan.read]
        gap, fitting = float(np.abs(got - want).max()), []
        for mistake in mistakes(self.plan, self.calls):
            try:
                ours = run(self.plan, mistake.source, self.calls)
            except ValueError:  # a part of a call that is no case
                continue
            if ours.stopped is not None:
                continue
            distance = float(np.abs(got - ours.rounds[-1][0][self.plan.read]).max())
            if distance < 1e-2 * gap:
                fitting.append((distance, mistake.words))
        if not fitting:
            return row
        least = min(fitting)[0]
        words = [each for distance, each in fitting if distance <= 4 * least]
        return row._replace(why=_both(row.why, f"as if {' or '.join(words)}"))


def check_schedule(
    case: Case,
    source: Source,
    text: str,
    *,
    exactly: bool = False,
    dtype: str | None = None,
    state_dtype: str | None = None,
    convention: Any = None,
    without: Sequence[str] = (),
) -> Checked:
    """The verdicts on a source under a schedule (SCHED-4 to SCHED-6).

    Args:
        text: steps, or `serving`.
        exactly: whether the kernel claims bits.
        dtype, state_dtype, convention, without: as of `check`.

    Raises:
        CaseError: a schedule that is none, or does not cover the case.
    """
    if not case.supported:
        return checked(case, source=source)
    case = case if convention is None else under(case, convention)
    if skipped := tuple(name for name in declared_features(without) if name in features(case)):
        return _without_calls(case, f"skipped: without {', '.join(skipped)}")._replace(
            skipped=skipped
        )
    try:
        judge = Judge(case, source, text, exactly=exactly, dtype=dtype, state_dtype=state_dtype)
    except UncutError as error:
        return _without_calls(case, str(error).removeprefix(f"{case.name}: "))
    rows = judge.rows()
    ended = next((row for row in rows if row.tensor == "-"), None)
    answer = Answer({}) if ended is None else Answer(None, ended.why, ended.verdict)
    return Checked(judge.plan.case, answer, rows, dtype, state_dtype=state_dtype, asked=True)


def _without_calls(case: Case, why: str) -> Checked:
    """A case that no call was made of, and why."""
    answer = Answer.no_support(why)
    return Checked(case, answer, [Comparison(case.name, "-", "NOT SUPPORTED", why=why)])


def _bad(rows: Sequence[Comparison]) -> list[str]:
    return [row.tensor for row in rows if row.verdict not in ("PASS", "UNDECIDABLE")]


def _with_call(row: Comparison, computed_in: Mapping[int, Call]) -> Comparison:
    """A wrong read with the call that computed it."""
    if row.first is None or row.first.token is None:
        return row
    return row._replace(why=_both(row.why, f"first in {computed_in[row.first.token].words}"))


def _worse(row: Comparison, other: Comparison) -> bool:
    mine, theirs = (ORDER[each.verdict] for each in (row, other))
    return mine > theirs or (mine == theirs and (row.ratio or 0.0) > (other.ratio or 0.0))


def _both(one: str, other: str) -> str:
    return f"{one}; {other}" if one else other


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first result of which two answers have other bits, but for the sign of a zero."""
    for name, x in one.items():
        if name.startswith("out/") and name in other:
            y = other[name]
            alike = x.dtype == y.dtype and x.shape == y.shape
            if not (alike and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")):
                return name
    return ""


def _first_other(x: Any, y: Any, axis: int | None) -> str:
    """The first token at which two results differ."""
    if axis is None or x.shape != y.shape:
        return ""
    differs = np.moveaxis(x != y, axis, 0).reshape(x.shape[axis], -1).any(axis=1)
    return f", token {int(np.argmax(differs))}"
