"""The nearest convention in a failure message, searched once for each rule of a run.

Specified in specs/sources.md, SRC-14, SRC-23 and SRC-27.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.features import features
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge.compare import Checked
from atlas_ref.oracle.judge.declared import kept_formats
from atlas_ref.oracle.judge.states import kept_in
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sweep.first import first_results, first_tokens, tokens_of
from atlas_ref.storage import faults

if TYPE_CHECKING:
    from atlas_ref.oracle.identify.answer import Identification

#: Tokens of a case for which the nearest convention is searched: a search takes some seconds.
LONGEST = 64

#: Tokens of a case in which mistakes alone are searched, where its first ones are right.
MOST = 256

#: What is said of gradients that nothing explains.
GRADIENTS = "the case's own: gradients alone are not right"

#: Words about the nearest convention of a case that fails, from its verdicts.
Words = Callable[[Checked, Sequence[Comparison]], str]


def nearest_convention(checked: Checked, rows: Sequence[Comparison]) -> str:
    """Words about one case, whatever was searched before."""
    return Nearest().words(checked, rows)


def nothing(checked: Checked, rows: Sequence[Comparison]) -> str:
    """No words, where no search is asked for."""
    return ""


class Looked(NamedTuple):
    """What a search said about a case.

    Attributes:
        words: about the nearest convention; "" where nothing is to be said.
        searched: whether one was searched; named: whether one was found.
    """

    words: str = ""
    searched: bool = False
    named: bool = False


class Nearest:
    """The searches of a run: at most two for each rule.

    A mistake of a kernel is the same in every case (SRC-23).

    Args:
        progress: called with the kind of work, the conventions done and all of them.
    """

    def __init__(self, progress: Progress = unwatched) -> None:
        self._progress = progress
        self._searched: dict[str, str] = {}
        self._noted: dict[str, list[tuple[str, Checked, Sequence[Comparison]]]] = {}
        self._rules: dict[str, str] = {}
        self._overflows: dict[str, str] = {}

    def words(self, checked: Checked, rows: Sequence[Comparison]) -> str:
        """The convention under which the answer would be right, or the nearest one.

        Source: IDENT-1.
        """
        rule = _kind(checked, rows)
        if not _has_errors(rows):
            return _overflow(checked)
        if (earlier := self._searched.get(rule)) is not None:
            return _no_search(earlier) if earlier else GRADIENTS
        found = self._look(checked, rows)
        if found.searched or found.words == GRADIENTS:
            self._searched[rule] = Path(checked.case.name).stem if found.searched else ""
        return found.words

    def note(self, checked: Checked, rows: Sequence[Comparison]) -> None:
        """Keep a failing case if it is the smallest or the most special of its rule."""
        if not _has_errors(rows):
            self._overflows[checked.case.name] = _overflow(checked)
            return
        case = checked.case
        rule = self._rules[case.name] = _kind(checked, rows)
        some = self._noted.setdefault(rule, [])
        some.append((case.name, checked, rows))
        smallest = min(some, key=lambda each: _size(each[1].case))
        special = min(some, key=lambda each: _plainness(each[1].case))
        some[:] = [smallest, *([special] if special is not smallest else [])]

    def words_by_case(self) -> dict[str, str]:
        """Words about every failing case by its name, searched for the smallest of each rule.

        Where that names nothing, the most special one is searched too (SRC-23).
        """
        words, names = dict.fromkeys(self._rules, ""), dict[str, str]()
        for rule, some in self._noted.items():
            for name, checked, rows in some:
                found = self._look(checked, rows)
                words[name] = found.words
                if found.searched:
                    names.setdefault(rule, Path(name).stem)
                if found.named:
                    names[rule] = Path(name).stem
                    break
        for case, rule in self._rules.items():
            if not words[case] and names.get(rule, Path(case).stem) != Path(case).stem:
                words[case] = _no_search(names[rule])
        return words | self._overflows

    def _look(self, checked: Checked, rows: Sequence[Comparison]) -> Looked:
        """What is said about a case whatever was searched before."""
        if declared := _kept_format(checked, rows):
            return Looked(f"passes with {declared}", searched=True, named=True)
        case = checked.case
        if tokens_of(case) <= LONGEST:
            return self._search(checked, rows)
        part = first_tokens(case, LONGEST)
        if part is None or checked.again is None:
            return Looked(f"not searched: {tokens_of(case)} tokens are more than {LONGEST}")
        shorter, of_part = _shorter(checked, part), f" (its first {LONGEST} tokens)"
        if not _has_errors(shorter.rows):
            return self._behind(checked, rows)
        found = self._search(shorter, shorter.rows)
        return found if not found.words else found._replace(words=f"{found.words}{of_part}")

    def _behind(self, checked: Checked, rows: Sequence[Comparison]) -> Looked:
        """Mistakes alone, where a case of more tokens is wrong behind the first ones."""
        tokens, subject = tokens_of(checked.case), SUBJECTS[checked.case.header.rule]
        if tokens <= MOST and subject.search is not None:
            found = self._search(checked, rows, depth=0)
            if subject.searched is not None or found.named:
                return found
        return Looked(
            f"not searched: the first {LONGEST} of {tokens} tokens alone are right "
            "(atlas-ref identify searches them all)"
        )

    def _search(self, checked: Checked, rows: Sequence[Comparison], *, depth: int = 2) -> Looked:
        """The search of a case of few tokens."""
        from atlas_ref.oracle.identify.identify import identify  # all of the search

        names, case = _names_with_errors(rows), checked.case
        values = _values(rows)
        of_family = SUBJECTS[case.header.rule].searched is None
        if of_family and not values:
            depth = 0  # mistakes alone, since settings that differ in gradients differ in values
        mine = {
            name: value
            for name, value in (checked.answer.tensors or {}).items()
            if name in names and (not values or name.startswith("out/"))
        }
        try:
            answer = identify(case, mine, depth=depth, dtype=checked.dtype, progress=self._progress)
        except CaseError:  # nothing that a convention could explain
            return Looked("" if values else GRADIENTS)
        except Exception as error:  # it would fail again; the verdict stands (SRC-25)
            return Looked(faults.failed("the search", error), searched=True)
        if answer.match is None:
            return Looked("; ".join(answer.failed[:1]))
        words = match_words(case, answer)
        if not words and not values:
            words = GRADIENTS
        named = answer.verdict != "NO MATCH" or bool(answer.departures)
        if of_family and not values and not named:
            return Looked(GRADIENTS)
        told = "; ".join(each for each in (words, *answer.failed[:1]) if each)
        if told and answer.case != case.name:  # one of its sequences (CASE-46)
            told = f"{told} ({answer.case.removeprefix(f'{case.name}, ')})"
        return Looked(told, searched=True, named=named)


def _overflow(checked: Checked) -> str:
    """What overflows just where an answer is not finite (DPLRCASE-25)."""
    case, results = checked.case, checked.answer.tensors or {}
    searched = SUBJECTS[case.header.rule].searched if case.supported else None
    given = {n: x for n, x in results.items() if n.startswith(("out/", "grad/"))}
    if searched is None or not given or case.has_sequences:
        return ""
    grad = any(name.startswith("grad/") for name in given)
    ours = evaluate(case, grad=grad).tensors
    if any(name not in ours or ours[name].shape != x.shape for name, x in given.items()):
        return ""
    dtype = checked.dtype or next(iter(given.values())).dtype.name
    return searched.overflow(case, given, ours, dtype)


def _shorter(checked: Checked, part: Case) -> Checked:
    """The verdicts on the first tokens of a case, asked again where that can be."""
    assert checked.again is not None
    if checked.asked:
        try:
            asked = checked.again(part)
        except CaseError:  # files know the whole case alone
            asked = None
        if asked is not None and asked.answer.tensors is not None:
            return asked
    cut = first_results(checked.case, checked.answer.tensors or {}, LONGEST)
    return checked.again(part, cut)


def _names_with_errors(rows: Sequence[Comparison]) -> set[str]:
    """Names of results that have an error."""
    judged = ("PASS", "MARGINAL", "WRONG")
    return {row.tensor for row in rows if row.verdict in judged and row.error is not None}


def _fails(row: Comparison, ahead: str = "") -> bool:
    return row.verdict != "PASS" and row.tensor.startswith(ahead)


def _has_errors(rows: Sequence[Comparison]) -> bool:
    """Whether a result that is wrong has an error, so that a search can explain it."""
    names = _names_with_errors(rows)
    return any(row.tensor in names and _fails(row) for row in rows)


def _values(rows: Sequence[Comparison]) -> bool:
    """Whether a value is wrong, not gradients alone (IDENT-18)."""
    names = _names_with_errors(rows)
    return any(row.tensor in names and _fails(row, "out/") for row in rows)


def _kind(checked: Checked, rows: Sequence[Comparison]) -> str:
    """The rule of a case, and whether its gradients alone are wrong."""
    rule = checked.case.header.rule
    return rule if _values(rows) else f"{rule}, gradients"


def _no_search(earlier: str) -> str:
    return f"not searched: {earlier} was, of the same rule (atlas-ref identify does)"


def _size(case: Case) -> tuple[int, int]:
    """Tokens and numbers of a case, by which the smallest is searched first."""
    return tokens_of(case), sum(x.size for x in case.inputs.values())


def _plainness(case: Case) -> tuple[int, int, int]:
    """The most special case has the most features, and is the smallest of those."""
    return (-len(features(case)), *_size(case))


def _kept_format(checked: Checked, rows: Sequence[Comparison]) -> str:
    """A format of the state under which all results pass, as it is declared (DPLRCASE-24)."""
    case, results = checked.case, checked.answer.tensors or {}
    names = _names_with_errors(rows)
    given = {name: x for name, x in results.items() if name in names}
    asked = kept_in(case.header, checked.state_dtype)
    if checked.again is None or {row.tensor for row in rows} != names:
        return ""
    for each in kept_formats(given, asked):
        if all(row.verdict == "PASS" for row in checked.again(case, given, state_dtype=each).rows):
            return f"--state-dtype {each}"
    return ""


def match_words(case: Case, answer: Identification) -> str:
    """An identification that has a match, in words."""
    from atlas_ref.oracle.identify.stated import setting

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
        return f"{answer.departures[0].phrase}: then this would be right"
    if answer.verdict == "NO MATCH" and not answer.explains_half:
        return ""  # what is nearest by chance says nothing (SRC-27)
    if answer.own and answer.verdict != "NO MATCH":
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
