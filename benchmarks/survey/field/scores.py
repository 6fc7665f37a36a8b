"""What a function of a package answers to every vector of its target, as one row of the table."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.judge.answers import Source
from atlas_ref.oracle.judge.compare import check
from atlas_ref.oracle.judge.verdicts import Comparison
from benchmarks.survey.catalogue import MODULES, helper
from benchmarks.survey.field.packages import Entry
from benchmarks.survey.restate import Asked, asked, once

#: Verdicts from the worst to the best; a case has the worst of its tensors.
ORDER = ("FAILED", "WRONG", "MISSING", "MARGINAL", "UNDECIDABLE", "PASS")


class Score(NamedTuple):
    """The answers of one function.

    Attributes:
        vectors: how many there are of its target.
        asked: how many of them it takes.
        passed: how many of these PASS in every tensor.
        restated: how many were asked under its convention instead of their own.
        worst: the largest error of a value over its tolerance.
        gradients: gradients that PASS, and all that it has.
        failing: verdict of a case -> how many, the first of them and why.
        lacks: why a vector was not asked -> how many.
    """

    vectors: int
    asked: int
    passed: int
    restated: int
    worst: str
    gradients: tuple[int, int]
    failing: dict[str, dict[str, Any]]
    lacks: dict[str, int]


def of_target(target: str, cases: Iterable[Case]) -> list[Case]:
    """The vectors of a rule, or of a member of rule dplr."""
    rule, _, member = target.partition("-")
    return [
        case
        for case in cases
        if case.header.rule == rule
        and (not member or (case.header.parameters or {}).get("member") == member)
    ]


def questions(entry: Entry, cases: Sequence[Case]) -> list[Asked]:
    """The vectors of a target as a function is asked them.

    A rule has conventions, under which a vector is restated for a function that computes another
    one; a member of rule dplr is what it is.
    """
    mine = of_target(entry.target, cases)
    module, _, name = entry.adapter.partition(":")
    if module not in MODULES:
        return [Asked(case) for case in mine]
    implementation = getattr(helper(module), name)
    return once(each for case in mine if (each := asked(case, implementation)) is not None)


def scored(entry: Entry, cases: Sequence[Case], source: Source) -> Score:
    """The answers of a function to every vector of its target, judged."""
    lacks: collections.Counter[str] = collections.Counter()
    failing: dict[str, dict[str, Any]] = {}
    taken = passed = restated = 0
    rows: list[Comparison] = []
    every = questions(entry, cases)
    for question in every:
        if question.case is None:
            lacks[question.why] += 1
            continue
        found = check(question.case, source=source, dtype=entry.dtype)
        verdict = _verdict(found)
        if verdict == "NOT SUPPORTED":
            lacks[found[0].why] += 1
            continue
        taken += 1
        restated += bool(question.changes)
        passed += verdict == "PASS"
        rows += found
        if verdict != "PASS":
            _note(failing, verdict, question.case.name, found)
    gradients = [row for row in rows if row.tensor.startswith("grad/")]
    return Score(
        len(every),
        taken,
        passed,
        restated,
        worst(row for row in rows if row.tensor.startswith("out/")),
        (sum(row.verdict == "PASS" for row in gradients), len(gradients)),
        failing,
        dict(sorted(lacks.items(), key=lambda item: (-item[1], item[0]))),
    )


def _verdict(rows: Sequence[Comparison]) -> str:
    """The worst of a case."""
    verdicts = {row.verdict for row in rows}
    return next((each for each in ORDER if each in verdicts), "NOT SUPPORTED")


def _note(failing: dict[str, dict[str, Any]], verdict: str, name: str, rows: Any) -> None:
    row = next(row for row in rows if row.verdict == verdict)
    words = ": ".join(each for each in (row.tensor.strip("-"), row.why) if each)
    one = failing.setdefault(verdict, {"cases": 0, "first": name, "why": words})
    one["cases"] += 1


def _finite(row: Comparison) -> bool:
    return row.got is None or math.isfinite(row.got)


def worst(rows: Iterable[Comparison]) -> str:
    """The largest error over its tolerance, to two digits."""
    found = list(rows)
    if not all(_finite(row) for row in found):
        return "not finite"
    ratios = [row.ratio for row in found if row.ratio is not None]
    return f"{max(ratios):.2g}" if ratios else "-"
