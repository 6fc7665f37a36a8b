"""The verdicts on a kernel under a schedule: right, and the same whatever the calls (SCHED-4, SCHED-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.features import declared_features, features
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.evaluate import evaluate, under
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.judge.compare import Checked, checked
from atlas_ref.oracle.judge.verdicts import Comparison, Verdict
from atlas_ref.oracle.schedules.mistakes import mistakes
from atlas_ref.oracle.schedules.run import Ran, Stopped, planned, run
from atlas_ref.oracle.schedules.steps import calls
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
        self.plan = planned(case, self.calls)
        self.name = case.name

    def rows(self) -> list[Comparison]:
        """Every verdict, in order."""
        ran = run(self.plan, self.source, self.calls)
        if ran.stopped is not None:
            return [self._stopped(ran.stopped)]
        whole = self.source(self.plan.case)
        if whole.tensors is None:
            return [Comparison(self.name, "one call", whole.verdict, why=whole.failure or "")]
        right, alone = self._right(ran), self._judged(self.plan.case, whole.tensors)
        right = [self._named(row, ran) for row in right]
        rows = [*right, *self._prefixes(ran), self._repeated(ran)]
        return [*rows, self._split(ran, whole.tensors, right, alone), *self._batched(ran)]

    def _stopped(self, stopped: Stopped) -> Comparison:
        answer = stopped.answer
        why = f"{stopped.call.words}: {answer.failure}"
        return Comparison(self.name, "-", answer.verdict, why=why)

    def _judged(self, case: Case, found: Mapping[str, Any]) -> list[Comparison]:
        """The ordinary verdicts on results of a case."""
        tensors = {name: x for name, x in found.items() if name.startswith("out/")}
        return checked(case, source=lambda _: Answer(dict(tensors)), **self.stated).rows

    def _right(self, ran: Ran) -> list[Comparison]:
        """The worst verdict of each result, of all times that its tokens were computed."""
        last = ran.states[max(ran.states)]
        found: dict[str, Comparison] = {}
        for reads in ran.rounds:
            for row in self._judged(self.plan.case, {**reads, **last}):
                if row.tensor not in found or _worse(row, found[row.tensor]):
                    found[row.tensor] = row
        return [self._placed(row) for row in found.values()]

    def _placed(self, row: Comparison) -> Comparison:
        """A wrong read with the call that computed it."""
        if row.first is None or row.first.token is None:
            return row
        token = row.first.token
        by = next((c for c in self.calls if c.reads and c.first <= token < c.last), None)
        return row if by is None else row._replace(why=_both(row.why, f"first in {by.words}"))

    def _prefixes(self, ran: Ran) -> list[Comparison]:
        """One verdict on states after some calls: the first that is wrong, else the worst (SCHED-4)."""
        places = sorted({each.last for each in self.calls} - {max(ran.states)})
        places = places[:: max(1, -(-len(places) // PREFIXES))]
        worst: Comparison | None = None
        for place in places:
            for row in self._judged(self.plan.prefix(place), ran.states[place]):
                if row.tensor in self.plan.carried and (worst is None or _worse(row, worst)):
                    worst = row._replace(tensor=f"{row.tensor} after {place}")
            if worst is not None and worst.verdict not in ("PASS", "UNDECIDABLE"):
                return [worst]
        if worst is None:
            return []
        told = ", ".join(map(str, places))
        return [worst._replace(tensor=STATES, why=_both(worst.why, f"after {told} tokens"))]

    # -- the same bits ---------------------------------------------------------------------------------

    def _repeated(self, ran: Ran) -> Comparison:
        """Whether the first call of each kind gives the same bits again."""
        seen: set[str] = set()
        for call, given, found in ran.answers:
            kind = call.step.partition(":")[0]
            if kind in seen:
                continue
            seen.add(kind)
            again = self.source(self.plan.part(call, given))
            if again.tensors is None:
                why = f"{call.words}, asked again: {again.failure}"
                return Comparison(self.name, REPEATED, "FAILED", why=why)
            if (row := self._alike(REPEATED, found, again.tensors, call.words)) is not None:
                return row
        return Comparison(self.name, REPEATED, "PASS", why="the same bits")

    def _split(
        self,
        ran: Ran,
        whole: Mapping[str, Any],
        right: Sequence[Comparison],
        alone: Sequence[Comparison],
    ) -> Comparison:
        """Whether the calls of the schedule give what one call gives."""
        for reads in ran.rounds:
            mine = {**reads, **ran.states[max(ran.states)]}
            for name, x in mine.items():
                if name not in whole or _same(x, whole[name]):
                    continue
                first = _first_other(x, whole[name], self.plan.axis if name in reads else None)
                where = f"{name}{first}"
                bad = [row.tensor for row in right if row.verdict != "PASS"]
                if bad and all(row.verdict == "PASS" for row in alone):
                    why = f"one call is right, these calls are not: {', '.join(bad)}"
                    return Comparison(self.name, SPLIT, "WRONG", why=why)
                return self._rounding(SPLIT, f"other bits from {where} on")
        return Comparison(self.name, SPLIT, "PASS", why="the same bits")

    def _batched(self, ran: Ran) -> list[Comparison]:
        """Whether a row of the batch gives the same bits alone."""
        count = self.plan.rows()
        if not count:
            return []
        call, _, found = ran.answers[0]
        for i in (0, count - 1):
            part = self.plan.row(self.plan.part(call, None), i)
            answer = self.source(part)
            if answer.tensors is None:
                why = f"row {i} of the batch alone: {answer.failure}"
                return [Comparison(self.name, BATCHED, answer.verdict, why=why)]
            mine = {n: x[i : i + 1] for n, x in found.items() if n in answer.tensors}
            other = self._alike(BATCHED, mine, answer.tensors, f"row {i}")
            if other is not None:
                wrong = [row for row in self._judged(part, mine) if row.verdict == "WRONG"]
                return [other._replace(verdict="WRONG") if wrong else other]
        return [Comparison(self.name, BATCHED, "PASS", why="the same bits")]

    def _alike(
        self, name: str, one: Mapping[str, Any], other: Mapping[str, Any], where: str
    ) -> Comparison | None:
        """A row about results whose bits differ; None where they are the same."""
        for tensor, x in one.items():
            if tensor.startswith("out/") and tensor in other and not _same(x, other[tensor]):
                return self._rounding(name, f"{where}: other bits in {tensor}")
        return None

    def _rounding(self, name: str, why: str) -> Comparison:
        verdict: Verdict = "WRONG" if self.exactly else "PASS"
        return Comparison(self.name, name, verdict, why=why)

    # -- which mistake -----------------------------------------------------------------------------------

    def _named(self, row: Comparison, ran: Ran) -> Comparison:
        """A wrong read with the mistake under which our own calls give it (SCHED-6)."""
        if row.verdict != "WRONG" or row.tensor != self.plan.read:
            return row
        got = ran.rounds[-1][self.plan.read].astype(np.float64)
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
            mine = ours.rounds[-1][self.plan.read]
            distance = float(np.abs(got - mine).max())
            if distance < 1e-2 * gap:
                fitting.append((distance, mistake.words))
        if not fitting:
            return row
        least = min(fitting)[0]
        words = [each for distance, each in fitting if distance <= 4 * least]
        return row._replace(why=_both(row.why, f"as if {' or '.join(words)}"))


def scheduled(
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
        CaseError: a schedule that is none, or does not cover the case; a case that cannot be cut.
    """
    case = case if convention is None else under(case, convention)
    if skipped := tuple(name for name in declared_features(without) if name in features(case)):
        answer = Answer.no_support(f"skipped: without {', '.join(skipped)}")
        row = Comparison(case.name, "-", "NOT SUPPORTED", why=answer.failure or "")
        return Checked(case, answer, [row], skipped=skipped)
    judge = Judge(case, source, text, exactly=exactly, dtype=dtype, state_dtype=state_dtype)
    rows = judge.rows()
    failed = next((row for row in rows if row.verdict in ("FAILED", "NOT SUPPORTED")), None)
    answer = Answer({})
    if failed is not None:
        answer = Answer(None, failed.why, failed.verdict)
    return Checked(judge.plan.case, answer, rows, dtype, state_dtype=state_dtype, asked=True)


def _worse(row: Comparison, other: Comparison) -> bool:
    mine, theirs = (ORDER[each.verdict] for each in (row, other))
    return mine > theirs or (mine == theirs and (row.ratio or 0.0) > (other.ratio or 0.0))


def _both(one: str, other: str) -> str:
    return f"{one}; {other}" if one else other


def _same(x: Any, y: Any) -> bool:
    """Whether two arrays have the same bits, but for the sign of a zero."""
    return x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x, y, equal_nan=True)


def _first_other(x: Any, y: Any, axis: int | None) -> str:
    """The first token at which two results differ."""
    if axis is None or x.shape != y.shape:
        return ""
    differs = np.moveaxis(x != y, axis, 0).reshape(x.shape[axis], -1).any(axis=1)
    return f", token {int(np.argmax(differs))}"
