"""The failure message: fixed fields for finding the mistake.

Specified in specs/case.md, CASE-27, and specs/sources.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.header import Header
from atlas_ref.oracle.cases.tensor_spec import last_of
from atlas_ref.oracle.judge.compare import Checked
from atlas_ref.oracle.judge.verdicts import (
    Comparison,
    error_words,
    index_words,
    number_as_json,
    number_words,
)
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.report.nearest import Words, nearest_convention
from atlas_ref.storage import faults

#: Verdicts that no message follows.
QUIET = ("PASS", "NOT SUPPORTED")


class Failure(NamedTuple):
    """Message about one failing case, from the first error in it.

    Attributes:
        op: the tensor, or the op of the trace, that is wrong first.
        token, place: where, the place as an index; None where there is none.
        ratio: error over tolerance.
        basis: where the tolerance comes from.
        before: results and ops that are right before it.
        clause: of the specs, about this result.
        nearest: the convention under which the answer would be right, or the nearest one.
        command: repeats this check of this case.
        others: the other tensors that do not pass, with their verdicts.
        features: what the case has beyond a plain sequence, which kernels tend to miss.
        feature: what this case has and no answered case of the run, where the answer is absent.
        name: what stands for the case in words, the id of a vector; "" for its file.
    """

    case: str
    rule: str
    verdict: str
    op: str
    token: int | None
    place: tuple[int, ...] | None
    got: float | None
    expected: float | None
    ratio: float | None
    tolerance: float | None
    basis: str
    before: str
    clause: str
    nearest: str
    command: str
    why: str
    others: tuple[str, ...]
    features: tuple[str, ...] = ()
    feature: str = ""
    name: str = ""

    def plain(self) -> dict[str, Any]:
        """The fields as JSON can hold them, numbers in decimal and hexadecimal (SRC-14)."""
        return {
            "case": self.case,
            "rule": self.rule,
            "verdict": self.verdict,
            "first_wrong": {
                "token": self.token,
                "op": self.op,
                "index": None if self.place is None else list(self.place),
            },
            "got": number_as_json(self.got),
            "expected": number_as_json(self.expected),
            "error_over_tolerance": self.ratio,
            "tolerance": self.tolerance,
            "tolerance_from": self.basis,
            "found_before": self.before,
            "clause": self.clause,
            "nearest_convention": self.nearest,
            "command": self.command,
            "why": self.why,
            "feature": self.feature,
            "also": list(self.others),
            "case_has": list(self.features),
        }

    def fields(self) -> list[tuple[str, str]]:
        """Name and words of every field that is not empty."""
        place = self.op.strip("-") if self.token is None else f"token {self.token}, {self.op}"
        place += f", index {index_words(self.place)}" if self.place else ""
        fields = [
            ("first wrong", place),
            ("got", number_words(self.got)),
            ("expected", number_words(self.expected)),
            ("error", error_words(self.ratio, self.tolerance, self.basis)),
            ("why", self.why),
            ("feature", self.feature),
            ("found before", self.before),
            ("also", ", ".join(self.others)),
            ("clause", self.clause),
            ("case has", ", ".join(self.features)),
            ("nearest", self.nearest),
            ("repeat with", self.command),
        ]
        return [(name, words) for name, words in fields if words]

    def text(self) -> str:
        """The fields for a reader, one on a line, below the case's name (CASE-43)."""
        return "\n".join(
            [
                f"{self.name or self.case}: {self.verdict} ({self.rule})",
                *(f"  {name:13} {words}" for name, words in self.fields()),
            ]
        )


def failing(rows: Sequence[Comparison]) -> list[Comparison]:
    """Verdicts that a run fails for."""
    return [row for row in rows if row.verdict not in QUIET and not row.xfail]


def explain(
    checked: Checked,
    rows: Sequence[Comparison],
    command: str,
    *,
    nearest: Words = nearest_convention,
) -> Failure | None:
    """The failure message of a case; None where there is nothing to explain (CASE-27).

    Whatever of it fails says so in its place, and leaves the verdict and the rest (SRC-25).

    Args:
        rows: its verdicts, with expected failures marked.
        command: repeats the check.
        nearest: words about the nearest convention; the default searches it, for some seconds.
    """
    wrong = failing(rows)
    if not wrong:
        return None
    row = min(wrong, key=_place_in_time)
    first = row.first
    header = checked.case.header
    failure = Failure(
        case=row.case,
        rule=checked.case.title,
        verdict=row.verdict,
        op=row.tensor,
        token=None if first is None else first.token,
        place=row.place if first is None else first.place,
        got=row.got if first is None else first.got,
        expected=row.want if first is None else first.want,
        ratio=row.ratio,
        tolerance=row.tolerance,
        basis=row.basis,
        before=_before(row, rows),
        clause=faults.told("its clause", lambda: _clause(header, row.tensor), str),
        nearest="",
        command=command,
        why=row.why,
        others=tuple(f"{other.tensor} {other.verdict}" for other in wrong if other is not row),
        features=faults.told(
            "the list of features", lambda: _missed_features(checked.case), lambda words: (words,)
        ),
    )
    first_row = failure
    failure = faults.told(
        "the replay of the trace",
        lambda: _by_replay(first_row, checked),
        lambda words: first_row._replace(before=_join(first_row.before, words)),
    )
    return failure._replace(nearest=faults.told("the search", lambda: nearest(checked, rows), str))


def _join(*words: str) -> str:
    return "; ".join(each for each in words if each)


def _missed_features(case: Case) -> tuple[str, ...]:
    """What kernels tend to miss of a case (CASE-27)."""
    return SUBJECTS[case.header.rule].missed(case)


def _by_replay(failure: Failure, checked: Checked) -> Failure:
    """The message with the first wrong op, where the answer has a trace (REPLAY-11)."""
    trace = {
        name: value
        for name, value in (checked.answer.tensors or {}).items()
        if name.startswith(("trace", "chunk/"))
    }
    if not trace:
        return failure
    mine = trace | {
        name: value for name, value in (checked.answer.tensors or {}).items() if name == "out/y"
    }
    from atlas_ref.oracle.replay.replay import first_wrong, replay  # for an answer with a trace

    try:
        first = first_wrong(replay(checked.case, mine, dtype=checked.dtype, nearest=False))
    except CaseError as error:  # an invalid trace does not take the verdict away
        words = f"the trace cannot be replayed: {error}"
        return failure._replace(before=_join(failure.before, words))
    if first is None:
        words = "every recorded op is right on its own inputs"
        return failure._replace(before=_join(failure.before, words))
    return failure._replace(
        op=first.op,
        token=first.token,
        place=first.place,
        got=first.got,
        expected=first.expected,
        ratio=first.ratio,
        tolerance=first.tolerance,
        basis=first.basis,
        before=first.before,
        clause=first.clause,
        why=first.why,
        others=(f"{failure.op} {failure.verdict}", *failure.others),
    )


def _place_in_time(row: Comparison) -> tuple[bool, bool, float]:
    """Sort key: results before gradients, sequences before final states, early tokens before late.

    `min` keeps the case's order among equals.
    """
    token = None if row.first is None else row.first.token
    return (
        row.tensor.startswith("grad/"),
        row.tensor != "-" and token is None,
        0.0 if token is None else float(token),
    )


def _before(row: Comparison, rows: Sequence[Comparison]) -> str:
    words = []
    token = None if row.first is None else row.first.token
    of_tokens = row.profile is None or row.profile.width > 0
    if token and of_tokens:
        words.append(f"{row.tensor} is right at token{'' if token == 1 else 's 0 to'} {token - 1}")
    right = [other.tensor for other in rows if other.verdict == "PASS"]
    if right:
        words.append(f"{', '.join(right)} PASS")
    return "; ".join(words) or ("" if token is None else "nothing: it is the first token")


def _clause(header: Header, tensor: str) -> str:
    """The clause about a result of a case; "" where there is no answer at all (SRC-26)."""
    if tensor == "-" or header.rule not in SUBJECTS:
        return ""
    return SUBJECTS[header.rule].clause(header, last_of(tensor))
