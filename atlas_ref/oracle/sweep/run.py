"""One case of a sweep, from its number to its verdict: draw, compute, compare, and shrink a
failure.

It depends on the plan and the number alone, so it has the same outcome in every process. Specified
in specs/sweep.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.drawing import LONG
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.judge.answers import Answer, Source
from atlas_ref.oracle.judge.compare import Checked, Comparison, checked
from atlas_ref.oracle.schedules.judge import check_schedule
from atlas_ref.oracle.sources.programs import TIMEOUT, Isolated, program
from atlas_ref.oracle.sweep.draw import draw_case, is_long
from atlas_ref.oracle.sweep.shrink import shrunk

#: Verdicts of a case, the gravest first; a case has that of its worst tensor.
GRAVITY = ("FAILED", "WRONG", "MISSING", "MARGINAL", "UNDECIDABLE", "PASS", "NOT SUPPORTED")

#: Those that shrinking keeps to; a case that is MARGINAL or UNDECIDABLE is saved as it was drawn.
BROKEN = ("FAILED", "WRONG", "MISSING")
SUCCESS = ("PASS", "NOT SUPPORTED")


class Named(NamedTuple):
    """An implementation by its name, so that every process can open it for itself.

    Attributes:
        kind: function, `pkg.module:function`; or program, `./mine {case} {out}`.
        timeout: seconds per case.
    """

    kind: Literal["function", "program"]
    name: str
    timeout: float = TIMEOUT

    @contextmanager
    def open(self) -> Iterator[Source]:
        """The implementation in processes of its own, whose crash or time-out is an answer.

        Source: SWEEP-6.
        """
        if self.kind == "program":
            yield program(self.name, timeout=self.timeout)
            return
        with Isolated(self.name, timeout=self.timeout) as source:
            yield source


class Plan(NamedTuple):
    """Everything that the outcome of a case depends on, but its number.

    Attributes:
        choices: fixed parts of the draw, name -> values.
        only, dtype, state_dtype, without, schedule: of `check`.
        shrink: comparisons that shrinking one failure may take.
    """

    rule: str
    seed: int
    choices: dict[str, tuple[Any, ...]]
    only: tuple[str, ...] | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    shrink: int = 400
    without: tuple[str, ...] = ()
    schedule: str | None = None

    def perform(self, source: Source, kind: str, number: int) -> Outcome | Reduced:
        """One task: `judge` or `shrink` a case."""
        return (outcome if kind == "judge" else reduce)(self, source, number)


class Outcome(NamedTuple):
    """The outcome of one case (SWEEP-5).

    Attributes:
        verdict: that of its worst tensor.
        row: that tensor: its name, error, tolerance, worst place and why, as JSON can hold them.
        drawn: the request and the regime, where it is no success.
        skipped: features for which the implementation was not asked.
    """

    number: int
    verdict: str
    row: dict[str, Any]
    drawn: dict[str, Any] | None = None
    skipped: tuple[str, ...] = ()


class Reduced(NamedTuple):
    """A failure at its smallest (SWEEP-7).

    Attributes:
        row: as of an outcome, after shrinking.
        comparisons: how many it took.
        numbers: in the inputs of the case, as drawn and as shrunk.
        header, tensors: the case to save, with the implementation's answer.
    """

    number: int
    verdict: str
    row: dict[str, Any]
    comparisons: int
    numbers: tuple[int, int]
    header: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]


def outcome(plan: Plan, source: Source, number: int) -> Outcome:
    """Draw case `number` and compare (SWEEP-5)."""
    sample = draw_case(plan.rule, plan.seed, number, plan.choices)
    compared = _check(plan, source, sample.case, number)
    worst = _worst(compared.rows)
    success = worst.verdict in SUCCESS
    return Outcome(
        number,
        worst.verdict,
        _plain(worst),
        None if success else {**sample.request, "regime": sample.regime},
        compared.skipped,
    )


def reduce(plan: Plan, source: Source, number: int) -> Reduced:
    """Shrink case `number`, which fails, while the same mistake shows (SWEEP-7)."""
    sample = draw_case(plan.rule, plan.seed, number, plan.choices)
    case, comparisons = sample.case, 0
    mistakes = _mistakes(_check(plan, source, case, number).rows)
    if mistakes:
        case, comparisons = shrunk(
            case,
            lambda smaller: bool(mistakes & _mistakes(_check(plan, source, smaller, number).rows)),
            plan.shrink,
        )
    last = _check(plan, source, case, number)
    worst = _worst(last.rows)
    answer = {
        name: value
        for name, value in (last.answer.tensors or {}).items()
        if name.startswith(("out/", "grad/"))
    }
    header = case.header.plain() | {"note": _note(plan, number, comparisons, worst)}
    numbers = (_numbers(sample.case), _numbers(case))
    return Reduced(
        number,
        worst.verdict,
        _plain(worst),
        comparisons,
        numbers,
        header,
        {**last.case.inputs, **answer},
    )


def _check(plan: Plan, source: Source, case: Case, number: int) -> Checked:
    """The comparison of one case (SWEEP-6).

    An answer with unknown names is garbage, and does not end the sweep.
    """
    answered = False
    longer = is_long(plan.rule, number, plan.choices) and facts(case).tokens > LONG[0]

    def ask(problem: Case) -> Answer:
        nonlocal answered
        try:
            answer = source(problem)
        except CaseError as error:
            # an error that does not name the case says that there is no such implementation
            if not str(error).startswith(f"{problem.name}: "):
                raise
            answer = _garbage(problem, error)
        answered = True
        return _values(answer) if plan.only is None and longer else answer

    stated: dict[str, Any] = {
        "dtype": plan.dtype,
        "state_dtype": plan.state_dtype,
        "without": plan.without,
    }
    try:
        if plan.schedule is not None:
            return check_schedule(case, ask, plan.schedule, **stated)
        compared = checked(case, source=ask, only=plan.only, **stated)
        if compared.rows:
            return compared
        why = f"it has no result of --only {','.join(plan.only or ())}"
        return compared._replace(rows=[Comparison(case.name, "-", "NOT SUPPORTED", why=why)])
    except CaseError as error:
        if not answered:
            raise
        answer = _garbage(case, error)
        return Checked(
            case, answer, [Comparison(case.name, "-", "FAILED", why=str(answer.failure))]
        )


def _values(answer: Answer) -> Answer:
    """An answer without gradients, which take the most time of a long case (SWEEP-12)."""
    if answer.tensors is None:
        return answer
    kept = {name: x for name, x in answer.tensors.items() if not name.startswith("grad/")}
    return answer._replace(tensors=kept)


def _garbage(case: Case, error: CaseError) -> Answer:
    return Answer.no_answer(f"garbage: {str(error).removeprefix(f'{case.name}: ')}")


def _worst(rows: list[Comparison]) -> Comparison:
    """The gravest verdict, and among equal ones the largest error over its tolerance."""

    def rank(row: Comparison) -> tuple[int, float]:
        over = row.error / row.tolerance if row.error is not None and row.tolerance else 0.0
        return GRAVITY.index(row.verdict), -over

    return min(rows, key=rank)


def _mistakes(rows: list[Comparison]) -> set[tuple[str, str]]:
    """Mistakes of a case: verdict and tensor, or verdict and kind of failure.

    Shrinking keeps to them.
    """
    return {
        (row.verdict, row.tensor if row.tensor != "-" else _kind(row.why))
        for row in rows
        if row.verdict in BROKEN
    }


def _kind(why: str) -> str:
    """The kind of a failure: of a crash the error and its line, without a message full of sizes."""
    kind, _, message = why.partition(": ")
    line = re.search(r"\([^()]*\.py:\d+\)$", why)
    return f"{kind}: {message.partition(':')[0]} {line[0]}" if line else kind


def _plain(row: Comparison) -> dict[str, Any]:
    fields = {"tensor": row.tensor, "error": row.error, "tolerance": row.tolerance, "why": row.why}
    return fields | {
        "place": None if row.place is None else list(row.place),
        "got": row.got,
        "want": row.want,
    }


def _numbers(case: Case) -> int:
    return sum(int(value.size) for value in case.inputs.values())


def _note(plan: Plan, number: int, comparisons: int, worst: Comparison) -> str:
    how = f"shrunk in {comparisons} comparisons" if comparisons else "as drawn"
    return (
        f"sweep {plan.rule}, seed {plan.seed}, case {number}, {how}: {worst.tensor} {worst.verdict}"
    )
