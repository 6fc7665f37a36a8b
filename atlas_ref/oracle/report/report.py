"""The report of a run of check, and its files: JSON, JUnit XML, HTML.

Specified in specs/sources.md.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import atlas_ref
from atlas_ref.messages import FORMAT, Progress, unwatched
from atlas_ref.oracle.cases.case import CaseError, named
from atlas_ref.oracle.cases.features import FEATURES, features
from atlas_ref.oracle.judge import xfail
from atlas_ref.oracle.judge.compare import Checked, exit_code
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.report.failures import Failure, explain
from atlas_ref.oracle.report.nearest import Nearest, nothing
from atlas_ref.storage import files


class Report(NamedTuple):
    """The report of a whole run.

    Attributes:
        command: repeats it.
        exit: the exit code (CASE-26).
        bad_input: one line for each case that could not be read, and for each expected failure that
            is about nothing.
        problems: expected failures that expired, or that pass.
        void: settings without effect, by case.
        rows: every verdict.
        failures: one for each failing case.
        skipped: number of cases that were skipped for each feature that was declared to be absent.
    """

    command: str
    exit: int
    bad_input: list[str]
    problems: list[str]
    void: dict[str, dict[str, str]]
    rows: list[Comparison]
    failures: list[Failure]
    skipped: dict[str, int]

    def plain(self) -> dict[str, Any]:
        """The report as JSON can hold it (SRC-17)."""
        return {
            "exit": self.exit,
            "bad_input": self.bad_input,
            "problems": self.problems,
            "void": self.void,
            "skipped": self.skipped,
            "results": [_row(row) for row in self.rows],
            "failures": [failure.plain() for failure in self.failures],
        }

    def counts(self) -> dict[str, int]:
        """Number of results by verdict, with expected failures apart."""
        words = ["XFAIL" if row.xfail else row.verdict for row in self.rows]
        return {word: words.count(word) for word in dict.fromkeys(words)}

    def by_case(self) -> dict[str, list[Comparison]]:
        """The verdicts of each case, in order."""
        cases: dict[str, list[Comparison]] = {}
        for row in self.rows:
            cases.setdefault(row.case, []).append(row)
        return cases


def _row(row: Comparison) -> dict[str, Any]:
    nested = {
        key: None if value is None else value._asdict()
        for key, value in (("first", row.first), ("profile", row.profile))
    }
    return row._asdict() | nested


class Run:
    """A run in progress.

    Verdicts come in case by case, and only what a report needs is stored.

    Args:
        command: the words before the cases, and those after them, that repeat a check.
        ids: what stands for a case in messages, and in the command that repeats its check, in place
            of its file.
        entries: expected failures.
        only: results that are compared, for entries about others.
        nearest: search for the nearest convention, for each rule that fails, behind all cases.
        progress: of those searches.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        cases: Sequence[str] = (),
        ids: Mapping[str, str] | None = None,
        entries: Sequence[xfail.Entry] = (),
        only: set[str] | None = None,
        nearest: bool = True,
        progress: Progress = unwatched,
    ) -> None:
        self._options, self._cases, self._entries, self._only = command, cases, entries, only
        self._nearest = Nearest(progress) if nearest else None
        self._ids = ids or {}
        self._report = Report("", 0, [], [], {}, [], [], {})
        self._absent: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._answered: set[str] = set()
        self._met: set[str] = set()

    def add(self, checked: Checked, void: Mapping[str, str] | None = None) -> bool:
        """Add a case that was compared; says whether it did not fail."""
        name = checked.case.name
        self._note_features(checked)
        outcome = xfail.apply(
            [entry for entry in self._entries if xfail.concerns(entry, name)], checked.rows
        )
        self._met |= outcome.met
        self._report.rows.extend(outcome.rows)
        self._report.problems.extend(outcome.problems)
        self._report.void.update({name: dict(void)} if void else {})
        failure = explain(checked, outcome.rows, self.command_again(name), nearest=nothing)
        known = self._ids.get(name, "")
        self._report.failures.extend([failure._replace(name=known)] if failure else [])
        if failure and self._nearest is not None:
            self._nearest.note(checked, outcome.rows)
        return failure is None and not outcome.problems

    def _note_features(self, checked: Checked) -> None:
        """Note what the case has, by whether it was answered; count what it was skipped for."""
        rule, answer = f"rule {checked.case.title}", checked.answer
        if answer.tensors is not None:
            self._answered |= {rule, *features(checked.case)}
        elif answer.verdict == "FAILED":
            self._absent[checked.case.name] = rule, features(checked.case)
        for name in checked.skipped:
            self._report.skipped[name] = self._report.skipped.get(name, 0) + 1

    def _suspects(self) -> dict[str, tuple[str, ...]]:
        """What each case without an answer has that no answered case has (SRC-22)."""
        suspects = {
            case: (rule,)
            if rule not in self._answered
            else tuple(each for each in names if each not in self._answered)
            for case, (rule, names) in self._absent.items()
        }
        return {case: names for case, names in suspects.items() if names and self._answered}

    def _explain(self) -> tuple[list[Comparison], list[Failure]]:
        """Verdicts and messages, those of absent answers with what sets their cases apart."""
        suspects = self._suspects()
        rows = [
            row._replace(why=f"{row.why} (only here: {', '.join(suspects[row.case])})")
            if row.verdict == "FAILED" and row.case in suspects
            else row
            for row in self._report.rows
        ]
        failures = [
            each._replace(feature=_about_feature(suspects[each.case]))
            if each.verdict == "FAILED" and each.case in suspects
            else each
            for each in self._report.failures
        ]
        words = {} if self._nearest is None else self._nearest.words_by_case()
        return rows, [each._replace(nearest=words.get(each.case, "")) for each in failures]

    def refuse(self, case: str, message: str) -> None:
        """Add a case that is bad input."""
        self.leave([case])
        self._report.bad_input.append(message)

    def leave(self, cases: Iterable[str]) -> None:
        """Note cases that were not asked, so that what is expected of them is about something."""
        for case in cases:
            self._met |= {entry.id for entry in self._entries if xfail.concerns(entry, case)}

    def command_again(self, *cases: str) -> str:
        """The command that repeats this run for these cases."""
        words = [shlex.quote(self._ids.get(case, case)) for case in cases]
        return " ".join(["atlas-ref", "check", *words, *self._options])

    def report(self) -> Report:
        """The report of all cases, with the exit code; what they are nearest to is searched here."""
        bad = [*self._report.bad_input, *xfail.unknown(self._entries, self._met, only=self._only)]
        code = exit_code(self._report.rows)
        code = 2 if bad else 1 if self._report.problems else code
        rows, failures = self._explain()
        return self._report._replace(
            command=self.command_again(*self._cases),
            exit=code,
            bad_input=bad,
            rows=rows,
            failures=failures,
        )


def _about_feature(names: Sequence[str]) -> str:
    """What sets a case apart whose answer is absent, and how to leave such cases out."""
    if names[0] not in FEATURES:
        return f"{names[0]}: no case of it was answered; --target takes the vectors of one target"
    words = ", ".join(f"{name} ({FEATURES[name].meaning})" for name in names)
    return (
        f"no answered case has {words}; if your code has not, leave such cases out by --without "
        f"{','.join(names)}"
    )


class Place(NamedTuple):
    """A file that a report goes to."""

    path: Path
    form: Callable[[Report], str]

    def write(self, report: Report) -> None:
        """Write the report whole or not at all.

        Raises:
            CaseError: the place cannot be written.
        """
        try:
            files.write_bytes(self.path, self.form(report).encode("utf-8", "backslashreplace"))
        except ValueError as error:
            raise named(str(self.path), error) from None


def place(path: Path) -> Place:
    """The file of a report, in the form that its ending names (SRC-17 to SRC-19).

    Raises:
        CaseError: another ending.
    """
    forms: dict[str, Callable[[Report], str]] = {
        ".json": as_json,
        ".xml": _as_junit,
        ".html": _as_html,
    }
    if path.suffix not in forms:
        raise CaseError(f"--report {path}: a name that ends in {', '.join(forms)} is needed")
    return Place(path, forms[path.suffix])


def _as_junit(report: Report) -> str:
    from atlas_ref.oracle.report import junit

    return junit.text(report)


def _as_html(report: Report) -> str:
    from atlas_ref.oracle.report import html

    return html.page(report)


def as_json(report: Report) -> str:
    """The report as one JSON object."""
    return (
        json.dumps(
            {
                "atlas_ref": atlas_ref.__version__,
                "format": FORMAT,
                "command": report.command,
                **plain(report.plain()),
            },
            indent=2,
        )
        + "\n"
    )


def plain(value: Any) -> Any:
    """A value with the numbers that JSON lacks as the words nan, inf and -inf (CASE-28)."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
