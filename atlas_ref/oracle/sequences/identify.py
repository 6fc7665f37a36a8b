"""What explains results of sequences: a mistake about states, or one call of them (CASE-46)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.messages import Progress
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import round_inputs
from atlas_ref.oracle.cases.tensor_spec import last_of
from atlas_ref.oracle.cases.tensors import token_count
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.identify.answer import Fit, Identification
from atlas_ref.oracle.identify.departed import Departed
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.readings.nodes import not_finite, observe_case, relative
from atlas_ref.oracle.identify.stated import as_header
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.arrays import TOLERANCE
from atlas_ref.oracle.judge.tolerance import PASS, from_members
from atlas_ref.oracle.norms import norms
from atlas_ref.oracle.sequences import parts, snapshots
from atlas_ref.oracle.sequences.mistakes import mistakes
from atlas_ref.oracle.subjects.subject import Rounding, Subject
from atlas_ref.types import Array

#: Mistakes that are judged by their tolerance at most.
JUDGED = 4


def identify(
    subject: Subject,
    case: Case,
    mine: Mapping[str, Any],
    depth: int,
    dtype: str | None,
    progress: Progress,
) -> Identification:
    """The mistake about states that explains results; else what explains the worst sequence.

    Args:
        subject: that of one call.
        mine, depth, dtype, progress: as of `identify.identify`.

    Raises:
        CaseError: as of `identify.identify`.
    """
    case, seen = _observe(case, mine, dtype)
    if why := not_finite(seen):
        return Identification(case.name, "NOT FINITE", why, dtype=seen.dtype)
    of = parts.plan(subject, case)
    judge = _Judge(subject, case, seen, parts.evaluate, list(mistakes(of)))
    if (answer := judge.answer(progress)) is not None:
        return answer
    found = _of_worst(subject, judge, of, depth, dtype, progress)
    # where all are right, the one that was looked into is no worse than others
    return found if judge.ratio(None) > PASS else found._replace(case=case.name)


def identify_snapshots(
    subject: Subject,
    case: Case,
    mine: Mapping[str, Any],
    depth: int,
    dtype: str | None,
    progress: Progress,
) -> Identification:
    """The mistake about states behind some tokens that explains results; else what explains the call.

    Args, Raises: as of `identify`.
    """
    case, seen = _observe(case, mine, dtype)
    if why := not_finite(seen):
        return Identification(case.name, "NOT FINITE", why, dtype=seen.dtype)
    one, calls = snapshots.call_of(case), subject.calls
    assert calls is not None
    tokens = token_count(case.inputs)
    tried = [
        each
        for each in snapshots.mistakes(case)
        if all(p in (0, tokens) or calls.may_cut(one, p) for p in each.wiring)
    ]
    judge = _Judge(subject, case, seen, snapshots.evaluate, tried)
    if (answer := judge.answer(progress)) is not None:
        return answer
    given = {name: x for name, x in mine.items() if last_of(name) == name}
    assert subject.search is not None
    found: Identification = subject.search.identify(one, given, depth, dtype, progress)
    return found


def _observe(case: Case, mine: Mapping[str, Any], dtype: str | None) -> tuple[Case, Observation]:
    """Results under test, and the case with its inputs in their format where that is a narrow one."""
    seen = observe_case(case, mine, dtype)
    narrow = seen.dtype in ("bfloat16", "float16")
    return round_inputs(case, seen.dtype) if narrow else case, seen


class _Judge:
    """Distances of mistakes about states from the results under test.

    Args:
        evaluate: (subject, inputs, case, run, wiring) -> results, wiring being that of a mistake.
        tried: mistakes, each with words and such a wiring.
    """

    def __init__(
        self,
        subject: Subject,
        case: Case,
        seen: Observation,
        evaluate: Callable[..., dict[str, Array]],
        tried: Sequence[Any],
    ) -> None:
        self.subject, self.case, self.seen = subject, case, seen
        self.evaluate, self.tried = evaluate, tried
        self.grad = not seen.values
        self.theirs = seen.gradients if self.grad else seen.values

    def answer(self, progress: Progress) -> Identification | None:
        """The mistake that explains the results; None where none does, or none is needed."""
        whole, tensor = self.distance(None)
        if self.ratio(None) <= PASS or not (found := self.departures(whole, progress)):
            return None
        why = f"no reading explains these results; ours is the same {found[0].phrase}"
        return Identification(
            self.case.name,
            "NO MATCH",
            why,
            match=Fit(as_header(lattice.OWN, {}, self.case), whole, None, tensor),
            own=True,
            whole=whole,
            departures=found,
            searched=len(self.tried),
            dtype=self.seen.dtype,
        )

    def _plain(self, wiring: Any) -> ensemble.Plain:
        def plain(
            inputs: Mapping[str, Array], case: Case, rounding: Rounding
        ) -> Mapping[str, Array]:
            return self.evaluate(
                self.subject,
                inputs,
                case,
                lambda own, one: self.subject.plain(own, one, rounding),
                wiring,
            )

        return plain

    def results(self, wiring: Any) -> Mapping[str, Array]:
        return ensemble.exact(self.case, grad=self.grad, plain=self._plain(wiring))

    def distance(self, wiring: Any) -> tuple[float, str]:
        """The distance from the results, the worst tensor's, and its name."""
        ours = self.results(wiring)
        return max((relative(ours.get(name), x), name) for name, x in self.theirs.items())

    def ratio(self, wiring: Any) -> float:
        """Error over tolerance, the worst tensor's (TOL-3)."""
        ours, worst = self.results(wiring), 0.0
        for dtype in dict.fromkeys(self.seen.dtypes.values()):
            arithmetic = "float64" if dtype == "float64" else "float32"
            each = ensemble.members(self.case, dtype, grad=self.grad, plain=self._plain(wiring))
            for name, value in self.theirs.items():
                if self.seen.dtypes[name] != dtype:
                    continue
                if name not in ours or ours[name].shape != value.shape:
                    return np.inf
                want = np.asarray(ours[name], np.float64)
                if dtype == "float64" and relative(want, value) <= TOLERANCE:
                    continue  # as `check` lets it pass
                of_name = {member: found[name] for member, found in each.items()}
                bound = from_members(name, want, of_name, dtype, arithmetic=arithmetic)
                worst = max(worst, norms(want - value).over(bound.norms))
        return worst

    def departures(self, whole: float, progress: Progress) -> tuple[Departed, ...]:
        """Mistakes that explain the results, the nearest first."""
        tried, rows = self.tried, []
        for number, each in enumerate(tried):
            progress("departures", number, len(tried))
            distance, tensor = self.distance(each.wiring)
            if distance <= 0.5 * whole:
                rows.append((distance, tensor, each))
        progress("departures", len(tried), len(tried))
        header, found = as_header(lattice.OWN, {}, self.case), list[Departed]()
        for distance, tensor, each in sorted(rows, key=lambda row: row[0])[:JUDGED]:
            if (ratio := self.ratio(each.wiring)) <= PASS:
                found.append(Departed("", each.words, header, True, distance, ratio, tensor))
        return tuple(found)


def _worst(judge: _Judge, of: parts.Plan) -> parts.Span:
    """The sequence with tokens whose results are furthest from ours."""
    ours = judge.results(None)

    def error(span: parts.Span) -> float:
        one, other = (
            parts.results_of(judge.subject, of, each, span) for each in (ours, judge.theirs)
        )
        return max((relative(one.get(name), x) for name, x in other.items()), default=0.0)

    return max((span for span in of.spans if not span.empty), key=error)


def _of_worst(
    subject: Subject,
    judge: _Judge,
    of: parts.Plan,
    depth: int,
    dtype: str | None,
    progress: Progress,
) -> Identification:
    """The answer about the worst sequence alone, which is named with the case."""
    span = _worst(judge, of)
    name = f"{judge.case.name}, sequence {span.number}"
    one = parts.case_of(judge.case, of, span).replaced(name=name)
    given = parts.results_of(subject, of, {**judge.seen.values, **judge.seen.gradients}, span)
    given = {
        each: x.astype(judge.seen.dtypes[each]) if judge.seen.dtypes[each] == "float32" else x
        for each, x in given.items()
    }
    assert subject.search is not None
    asked = dtype or judge.seen.dtype
    answer: Identification = subject.search.identify(one, given, depth, asked, progress)
    return answer
