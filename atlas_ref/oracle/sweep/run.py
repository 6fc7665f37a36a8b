"""One case of a sweep, from its number to its verdict: draw, compute, compare, and where it fails, shrink.

It depends on the plan and the number alone, so it gives the same outcome in whichever process it runs. Specified in specs/sweep.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.judge.compare import Checked, Comparison, checked
from atlas_ref.oracle.sources.answers import Answer, Source
from atlas_ref.oracle.sources.programs import TIMEOUT, Isolated, program
from atlas_ref.oracle.sweep.draw import drawn
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
    def opened(self) -> Iterator[Source]:
        """The implementation in processes of its own: what ends them, or never ends, is an answer (SWEEP-6)."""
        if self.kind == "program":
            yield program(self.name, timeout=self.timeout)
            return
        with Isolated(self.name, timeout=self.timeout) as source:
            yield source


class Plan(NamedTuple):
    """Everything that the outcome of a case depends on, but its number.

    Attributes:
        choices: what is fixed of the draw, name -> values.
        only, dtype, state_dtype: of `check`.
        shrink: comparisons that shrinking one failure may take.
    """

    rule: str
    seed: int
    choices: dict[str, tuple[Any, ...]]
    only: tuple[str, ...] | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    shrink: int = 400

    def perform(self, source: Source, kind: str, number: int) -> Outcome | Reduced:
        """One task: `judge` or `shrink` a case."""
        return (outcome if kind == "judge" else reduced)(self, source, number)


class Outcome(NamedTuple):
    """What came of one case (SWEEP-5).

    Attributes:
        verdict: that of its worst tensor.
        row: that tensor: its name, error, tolerance, worst place and why, as JSON can hold them.
        drawn: the request and the regime, where it is no success.
    """

    number: int
    verdict: str
    row: dict[str, Any]
    drawn: dict[str, Any] | None = None


class Reduced(NamedTuple):
    """A failure at its smallest (SWEEP-7).

    Attributes:
        row: as of an outcome, after shrinking.
        comparisons: how many it took.
        numbers: in the inputs of the case, as drawn and as shrunk.
        header, tensors: the case to save, with what the implementation answered.
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
    made = drawn(plan.rule, plan.seed, number, plan.choices)
    worst = _worst(_checked(plan, source, made.case).rows)
    success = worst.verdict in SUCCESS
    return Outcome(number, worst.verdict, _plain(worst), None if success else {**made.request, "regime": made.regime})


def reduced(plan: Plan, source: Source, number: int) -> Reduced:
    """Case `number`, which fails, as small as it gets while the same mistake shows (SWEEP-7)."""
    made = drawn(plan.rule, plan.seed, number, plan.choices)
    case, comparisons = made.case, 0
    broken = _broken(_checked(plan, source, case).rows)
    if broken:
        case, comparisons = shrunk(case, lambda smaller: bool(broken & _broken(_checked(plan, source, smaller).rows)), plan.shrink)
    last = _checked(plan, source, case)
    worst = _worst(last.rows)
    answer = {name: value for name, value in (last.answer.tensors or {}).items() if name.startswith(("out/", "grad/"))}
    header = case.header.plain() | {"note": _note(plan, number, comparisons, worst)}
    numbers = (_numbers(made.case), _numbers(case))
    return Reduced(number, worst.verdict, _plain(worst), comparisons, numbers, header, {**last.case.inputs, **answer})


def _checked(plan: Plan, source: Source, case: Case) -> Checked:
    """The comparison; an answer that names what there is not is garbage, and not the end of the sweep (SWEEP-6)."""
    answered = False

    def asked(given: Case) -> Answer:
        nonlocal answered
        try:
            answer = source(given)
        except CaseError as error:
            if not str(error).startswith(f"{given.name}: "):  # not about this case: there is no such implementation
                raise
            answer = _garbage(given, error)
        answered = True
        return answer

    try:
        return checked(case, source=asked, only=plan.only, dtype=plan.dtype, state_dtype=plan.state_dtype)
    except CaseError as error:
        if not answered:
            raise
        answer = _garbage(case, error)
        return Checked(case, answer, [Comparison(case.name, "-", "FAILED", why=str(answer.failure))])


def _garbage(case: Case, error: CaseError) -> Answer:
    return Answer.failed(f"garbage: {str(error).removeprefix(f'{case.name}: ')}")


def _worst(rows: list[Comparison]) -> Comparison:
    """The gravest verdict, and among equal ones the largest error over its tolerance."""

    def rank(row: Comparison) -> tuple[int, float]:
        over = row.error / row.tolerance if row.error is not None and row.tolerance else 0.0
        return GRAVITY.index(row.verdict), -over

    return min(rows, key=rank)


def _broken(rows: list[Comparison]) -> set[tuple[str, str]]:
    """What is wrong, so that shrinking keeps to one mistake: the verdict and the tensor, or the kind of failure."""
    return {(row.verdict, row.tensor if row.tensor != "-" else row.why.partition(":")[0]) for row in rows if row.verdict in BROKEN}


def _plain(row: Comparison) -> dict[str, Any]:
    found = {"tensor": row.tensor, "error": row.error, "tolerance": row.tolerance, "why": row.why}
    return found | {"place": None if row.place is None else list(row.place), "got": row.got, "want": row.want}


def _numbers(case: Case) -> int:
    return sum(int(value.size) for value in case.inputs.values())


def _note(plan: Plan, number: int, comparisons: int, worst: Comparison) -> str:
    how = f"shrunk in {comparisons} comparisons" if comparisons else "as drawn"
    return f"sweep {plan.rule}, seed {plan.seed}, case {number}, {how}: {worst.tensor} {worst.verdict}"
