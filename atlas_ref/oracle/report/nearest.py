"""The nearest convention in a failure message, searched once for each rule of a run.

Specified in specs/sources.md, SRC-14 and SRC-23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.identify.answer import Identification
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge.compare import Checked
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.storage import faults

#: Tokens of a case for which the nearest convention is searched: a search takes some seconds.
LONGEST = 64

#: Words about the nearest convention of a case that fails, from its verdicts.
Words = Callable[[Checked, Sequence[Comparison]], str]


def nearest_convention(checked: Checked, rows: Sequence[Comparison]) -> str:
    """Words about one case, whatever was searched before."""
    return Nearest().words(checked, rows)


def nothing(checked: Checked, rows: Sequence[Comparison]) -> str:
    """No words, where no search is asked for."""
    return ""


class Nearest:
    """The searches of a run: one for each rule, at the first case that a search can explain.

    A mistake of a kernel is the same in every case (SRC-23).

    Args:
        progress: called with the kind of work, the conventions done and all of them.
    """

    def __init__(self, progress: Progress = unwatched) -> None:
        self._progress = progress
        self._searched: dict[str, str] = {}

    def words(self, checked: Checked, rows: Sequence[Comparison]) -> str:
        """The convention under which the answer would be right, or the nearest one.

        Source: IDENT-1.
        """
        names = {
            row.tensor
            for row in rows
            if row.verdict in ("PASS", "MARGINAL", "WRONG") and row.error is not None
        }
        if not any(
            row.tensor in names and row.verdict != "PASS" and row.tensor.startswith("out/")
            for row in rows
        ):
            return "the case's own: gradients alone are not right" if names else ""
        case = checked.case
        if (tokens := _tokens(case)) > LONGEST:
            return (
                f"not searched: {tokens} tokens are more than {LONGEST} (atlas-ref identify does)"
            )
        if (earlier := self._searched.get(case.header.rule)) is not None:
            return f"not searched: {earlier} was, of the same rule (atlas-ref identify does)"
        mine = {
            name: value
            for name, value in (checked.answer.tensors or {}).items()
            if name in names and name.startswith("out/")
        }
        try:
            answer = identify(case, mine, dtype=checked.dtype, progress=self._progress)
        except CaseError:  # nothing that a convention could explain
            return ""
        except Exception as error:  # it would fail again; the verdict stands (SRC-25)
            self._searched[case.header.rule] = Path(case.name).stem
            return faults.failed("the search", error)
        if answer.match is None:
            return "; ".join(answer.failed[:1])
        self._searched[case.header.rule] = Path(case.name).stem
        return "; ".join([said(case, answer), *answer.failed[:1]])


def _tokens(case: Case) -> int:
    return max(
        (case.inputs[name].shape[-2] for name in ("in/k", "in/x") if name in case.inputs),
        default=0,
    )


def said(case: Case, answer: Identification) -> str:
    """An identification that has a match, in words."""
    assert answer.match is not None
    ignored = [each.words for each in answer.departures if each.own and each.feature]
    if ignored:
        return f"as if {' or '.join(ignored)}: then this would be right"
    words = setting(answer.match.convention)
    if answer.preset not in (None, answer.match.convention.get("preset")):
        words += f" (as {answer.preset})"
    if answer.match.convention.get("preset") not in (None, _preset(case)):
        words += f" (from the case's own: {setting(answer.from_own)})"
    if answer.verdict == "NO MATCH" and answer.departures:
        return f"{answer.departures[0].said}: then this would be right"
    if answer.own or (
        answer.verdict == "NO MATCH"
        and answer.match.convention == {"preset": case.header.convention}
    ):
        return f"the case's own, {words}: no other is nearer"
    if answer.verdict == "MATCH":
        return f"{words}: under it this would be right"
    if answer.verdict == "UNDECIDABLE":
        return (
            f"{words}: under it this would be right, and under others too (atlas-ref identify "
            "tells which)"
        )
    return f"none is right; the nearest, {words}, is still {answer.match.distance:.2g} away"


def _preset(case: Case) -> str:
    """The preset that a case's convention starts from."""
    own = case.header.convention
    return own if isinstance(own, str) else str(own.get("preset", "spec"))
