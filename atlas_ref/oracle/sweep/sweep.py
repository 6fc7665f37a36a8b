"""Sweep an implementation with seeded cases of odd shapes, conventions, dtypes and gates, and
shrink what fails.

    result = sweep("delta", Named("function", "mine.kernels:delta"), cases=500, seed=0, jobs=4)
    for failure in result.failures: ...

The result is a function of the rule, the seed, the choices and the implementation: not of
processes, order or interruptions. Specified in specs/sweep.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import atlas_ref
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import CaseError, save
from atlas_ref.oracle.cases.features import declared_features
from atlas_ref.oracle.cases.inputs import check_dtype
from atlas_ref.oracle.drawing import Space
from atlas_ref.oracle.judge.answers import Source
from atlas_ref.oracle.judge.compare import chosen
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.schedules.steps import SERVING
from atlas_ref.oracle.sweep.draw import DRAW, checked_choices, draw_case
from atlas_ref.oracle.sweep.lines import OUTCOME, holds
from atlas_ref.oracle.sweep.log import Log
from atlas_ref.oracle.sweep.modes import Result, Work
from atlas_ref.oracle.sweep.run import GRAVITY, SUCCESS, Named, Outcome, Plan, Reduced
from atlas_ref.oracle.sweep.tasks import Line, Tasks

__all__ = ["Failure", "Named", "Sweep", "sweep"]

#: Largest seed, half of what the generator's key holds.
SEEDS = 2**64


class Failure(NamedTuple):
    """A case that is not success (SWEEP-7).

    Attributes:
        number, verdict, row, drawn: as drawn.
        file: the smallest case that still fails, with the implementation's answer; None where it
            was not shrunk.
        shrunk: verdict, row, comparisons and numbers of that case.
    """

    number: int
    verdict: str
    row: Line
    drawn: Line
    file: str | None = None
    shrunk: Line | None = None


class Sweep(NamedTuple):
    """The outcome of a sweep (SWEEP-5).

    Attributes:
        counts: cases by verdict.
        nearest: of the cases that pass, the one with the largest error over its tolerance.
        skipped: cases by the feature for which they were skipped.
        refused: cases by the reason for which the implementation did not answer (SWEEP-18).
    """

    rule: str
    seed: int
    cases: int
    counts: dict[str, int]
    failures: list[Failure]
    nearest: Line | None
    skipped: dict[str, int]
    refused: dict[str, int]

    @property
    def exit_code(self) -> int:
        """1 when a case is not PASS, 3 when none could be compared, else 0 (CASE-26)."""
        if self.failures:
            return 1
        return 0 if self.counts.get("PASS") else 3


def sweep(
    rule: str,
    source: Named | Source,
    *,
    cases: int = 100,
    seed: int = 0,
    choices: Space | None = None,
    only: Sequence[str] | None = None,
    dtype: str | None = None,
    state_dtype: str | None = None,
    without: Sequence[str] = (),
    jobs: int = 1,
    scheduler: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] = "sweep-failures",
    keep: int = 5,
    shrink: int = 400,
    schedule: str | None = None,
    stop: bool = False,
    numbers: Sequence[int] | None = None,
    progress: Progress = unwatched,
) -> Sweep:
    """Compare an implementation with ours on cases drawn from a seed (SWEEP-1 to SWEEP-10).

    Args:
        rule: omega, titans_lmm, delta, hebbian, newton_schulz, feature_map, deep_memory, tnt, dplr or
            recurrence.
        source: an implementation by its name, or any source; the latter must be picklable to go to
            other processes.
        choices: fixed parts of the draw, name -> values that it may take (SWEEP-3).
        only, dtype, state_dtype, without: see `check`.
        jobs: processes; 1 for this one.
        scheduler: address of a Dask scheduler, in place of `jobs`.
        resume: the log; where it exists, its tasks are not done again.
        folder: where failing cases are saved, made when there is one.
        keep: how many failures to shrink and save.
        shrink: comparisons that shrinking one failure may take.
        schedule: `serving`, for calls as a server makes them (SWEEP-20).
        stop: end at the first case, by number, that fails.
        numbers: these of the cases alone; None for all.
        progress: called with the kind of task, how many are done, and how many there are.

    Raises:
        CaseError: a rule, choice or result that does not exist, choices that no case fits, a log of
            another sweep, no scheduler.
    """
    _check_counts(
        cases=(cases, 1), seed=(seed, 0), jobs=(jobs, 1), keep=(keep, 0), shrink=(shrink, 0)
    )
    fixed = checked_choices(rule, choices or {})
    chosen(list(only or []))
    for word in (dtype, state_dtype):
        if word is not None:
            check_dtype("sweep", word, FORMATS)
    if schedule is not None and only is not None:
        raise CaseError(
            "sweep: only: not with a schedule, which compares reads and states of calls"
        )
    if schedule not in (None, SERVING):
        raise CaseError(
            f"sweep: schedule {schedule!r}: of cases of any length only {SERVING} is one"
        )
    draw_case(rule, seed, 0, fixed)
    plan = Plan(
        rule,
        seed,
        fixed,
        None if only is None else tuple(only),
        dtype,
        state_dtype,
        shrink,
        declared_features(without),
        schedule,
    )
    work = Work(plan, source)

    with ExitStack() as stack:
        log = (
            None
            if resume is None
            else stack.enter_context(Log(resume, _describe(plan, source), holds=holds(OUTCOME)))
        )
        place = Path(folder)
        run = Tasks(
            work,
            lambda result: _line(result, place),
            jobs,
            scheduler,
            log,
            progress,
            lambda line: _there(line, place),
        )
        lines = run.lines(
            "judge", range(cases) if numbers is None else numbers, last=_fails if stop else None
        )
        failing = [line for line in lines if _fails(line)]
        shrunk = {
            line["case"]: line
            for line in run.lines(
                "shrink", [line["case"] for line in _varied_order(failing)[:keep]]
            )
        }
    return _summary(plan, len(lines), lines, failing, shrunk)


def _fails(line: Line) -> bool:
    """Whether the case of a line is no success."""
    return line["verdict"] not in SUCCESS


def _check_counts(**counts: tuple[int, int]) -> None:
    for name, (count, least) in counts.items():
        if count < least or count >= SEEDS:
            raise CaseError(f"sweep: {name} must be at least {least} and below 2^64, found {count}")


def _describe(plan: Plan, source: Named | Source) -> Line:
    """Everything that an outcome depends on, which a log must match to be continued."""
    name = (
        source._asdict()
        if isinstance(source, Named)
        else getattr(source, "__qualname__", type(source).__qualname__)
    )
    version = atlas_ref.__version__
    said = plan._asdict()
    if plan.schedule is None:  # logs of before have no such key
        del said["schedule"]
    return {"version": version, "draw": DRAW, "source": name, **said}


def _line(result: Result, folder: Path) -> Line:
    """The line of a result in the log.

    The case of a failure is saved before its line is written.
    """
    if isinstance(result, Outcome):
        skipped = {"skipped": list(result.skipped)} if result.skipped else {}
        return {"verdict": result.verdict, "row": result.row, "drawn": result.drawn, **skipped}
    line = {
        "verdict": result.verdict,
        "row": result.row,
        "comparisons": result.comparisons,
        "numbers": list(result.numbers),
    }
    return line | {"file": _save(result, folder)}


def _there(line: Line, folder: Path) -> bool:
    """Whether the file that a log line names still exists.

    Where it does not, the case is soon shrunk again.
    """
    return line["task"] == "judge" or os.path.isfile(folder / str(line["file"]))


def _save(result: Reduced, folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaseError(f"{folder}: cannot be made: {error.strerror or error}") from None
    header = result.header
    name = f"{header['rule']}-{result.number}.safetensors"
    save(folder / name, header, result.tensors)
    return name


def _varied_order(failing: list[Line]) -> list[Line]:
    """Failures in an order that takes the first of each kind, then the second, and so on.

    Five copies of one mistake teach little.
    """
    counts: Counter[tuple[str, str]] = Counter()
    ranked = []
    for line in failing:
        kind = (line["verdict"], line["row"]["tensor"])
        ranked.append((counts[kind], line["case"], line))
        counts[kind] += 1
    return [line for _, _, line in sorted(ranked, key=lambda each: each[:2])]


def _summary(
    plan: Plan, cases: int, lines: list[Line], failing: list[Line], shrunk: dict[int, Line]
) -> Sweep:
    counts = Counter(line["verdict"] for line in lines)
    failures = []
    for line in failing:
        small = shrunk.get(line["case"])
        file = None if small is None else small["file"]
        details = (
            None
            if small is None
            else {key: small[key] for key in ("verdict", "row", "comparisons", "numbers")}
        )
        failures.append(
            Failure(line["case"], line["verdict"], line["row"], line["drawn"], file, details)
        )
    passed = [
        line for line in lines if line["verdict"] == "PASS" and line["row"]["error"] is not None
    ]
    nearest = max(
        passed,
        key=lambda line: (line["row"]["error"] / line["row"]["tolerance"], -line["case"]),
        default=None,
    )
    near = None if nearest is None else {"case": nearest["case"], **nearest["row"]}
    return Sweep(
        plan.rule,
        plan.seed,
        cases,
        {verdict: counts[verdict] for verdict in GRAVITY if counts[verdict]},
        failures,
        near,
        dict(Counter(name for line in lines for name in line.get("skipped", ()))),
        _reasons(lines),
    )


def _reasons(lines: list[Line]) -> dict[str, int]:
    """Reasons for which cases were not answered, the most frequent first (SWEEP-18)."""
    counts = Counter(
        line["row"]["why"]
        for line in lines
        if line["verdict"] == "NOT SUPPORTED" and not line.get("skipped")
    )
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
