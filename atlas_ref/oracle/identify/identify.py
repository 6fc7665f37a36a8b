"""Conventions under which ours equals the results under test. Specified in specs/identify.md.

What reads alone identify, and the time it takes: IDENT-10, IDENT-11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.conventions import PRESETS
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, refuse, require_supported
from atlas_ref.oracle.cases.inputs import check_dtype, check_size, convert
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.facts import facts
from atlas_ref.oracle.family.lattice import Point
from atlas_ref.oracle.identify import further, twins
from atlas_ref.oracle.identify.answer import Fit, Identification, Verdict
from atlas_ref.oracle.identify.departed import Departed, departures
from atlas_ref.oracle.identify.number import fit
from atlas_ref.oracle.identify.observation import Observation, observe
from atlas_ref.oracle.identify.readings import search_readings
from atlas_ref.oracle.identify.readings.nodes import observe_case, times_worse
from atlas_ref.oracle.identify.score import Scored, judge, judged_alone, score
from atlas_ref.oracle.identify.stages import is_large, score_in_stages
from atlas_ref.oracle.identify.stated import as_header, with_changes
from atlas_ref.oracle.judge.tolerance import MARGINAL, PASS
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects.base import search as searches
from atlas_ref.storage import faults

#: The nearest conventions under which departures are tried where none explains the results.
DEPARTING = 4

#: Mistakes of programs, about: a case on which so many take more than seconds is not asked for them.
MISTAKES = 100


def identify(
    case: Case,
    mine: Mapping[str, Any],
    *,
    depth: int = 2,
    dtype: str | None = None,
    progress: Progress = unwatched,
) -> Identification:
    """Search the conventions that make ours equal to the results under test (IDENT-1 to IDENT-8).

    Args:
        case: what the results were computed from; its own convention is one of the candidates.
        mine: results by name, `out/y`, `out/M`, `grad/k`, ...; any subset.
        depth: changes from the case's convention and from every preset, 0 to 2.
        dtype: format that the results were computed in; that of each array when None.
        progress: called with conventions or departures, how many are done, and how many there are.

    Raises:
        CaseError: a reserved rule, results that are none of this case or have another shape, a
            dtype that does not exist.
    """
    search = require_searched(case, dtype)
    answer: Identification = search.identify(case, mine, depth, dtype, progress)
    return answer


def by_conventions(
    case: Case, mine: Mapping[str, Any], depth: int, dtype: str | None, progress: Progress
) -> Identification:
    """The answer of a rule that has conventions, `identify` of them (IDENT-1 to IDENT-8)."""
    observation = observe(case, mine, dtype)
    for name, array in {**observation.values, **observation.gradients}.items():
        if not np.isfinite(array).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            why = f"{name}: {array[at]} at {at}: no convention is compared with what is not finite"
            return Identification(case.name, "NOT FINITE", why, dtype=observation.dtype)
    if observation.dtype in ("bfloat16", "float16"):
        case = stored(case, observation.dtype)
    search = Search(case, observation, depth, progress)
    answer = search.answer()
    answer = _further(answer, lambda: search.with_departures(answer, 0))
    stages = (search.with_number, search.with_changes, search.with_departures)
    backward = answer.verdict == "NO MATCH" and search.gradients_alone()
    mistakes = partial(search.with_mistakes, backward=backward)
    for more in (mistakes, *stages) if backward else (*stages, mistakes):
        unexplained = answer.verdict == "NO MATCH" and not answer.departures
        answer = _further(answer, partial(more, answer)) if unexplained else answer
    return answer


def require_searched(case: Case, dtype: str | None = None) -> searches.Search:
    """Refuse a case that identify does not take; else the search of its subject (IDENT-1).

    Raises:
        CaseError: a rule that is not searched, a dtype that does not exist, a case that is too large.
    """
    require_supported(case)
    search = SUBJECTS[case.header.rule].search
    if search is None:
        refuse(case, "identify")
    if dtype is not None:
        check_dtype(case.name, dtype, FORMATS)
    check_size(case)
    return search


def _further(answer: Identification, more: Callable[[], Identification]) -> Identification:
    """The answer after one more stage; where that fails, as it was (CASE-38)."""

    def as_before(words: str) -> Identification:
        return answer._replace(failed=(*answer.failed, words))

    return faults.told("a stage of the search", more, as_before)


def by_readings(
    case: Case, mine: Mapping[str, Any], depth: int, dtype: str | None, progress: Progress
) -> Identification:
    """The answer of a subject that has readings of its own (DEEPCASE-14)."""
    searched = SUBJECTS[case.header.rule].searched
    assert searched is not None
    narrow = observe_case(case, mine, dtype).dtype
    case = stored(case, narrow) if narrow in ("bfloat16", "float16") else case
    return search_readings(case, mine, searched, depth=depth, dtype=dtype, progress=progress)


class Search:
    """One search: its points, their distances, and the answer."""

    def __init__(
        self, case: Case, observation: Observation, depth: int, progress: Progress = unwatched
    ) -> None:
        self.case, self.observation, self.depth = case, observation, depth
        self.progress = progress
        self.facts = facts(case)
        self.inputs = convert(case, "float64")
        self.bases = {
            name: lattice.fold(self.facts, base)
            for name, base in lattice.bases(self.facts, case.convention).items()
        }
        space = self._enumerate(depth)
        self.points, self.conventions, self.untried = (
            list(space.points),
            list(space.conventions),
            dict(space.untried),
        )
        self.large = is_large(case, len(self.points))
        self.scores: Scored = (score_in_stages if self.large else score)(
            case, self.inputs, self.conventions, observation, progress=progress
        )

    def _enumerate(self, depth: int) -> lattice.Enumerated:
        return lattice.enumerate_points(self.facts, lattice.point(self.case.convention), depth)

    def _left_out(self) -> dict[str, str]:
        whole = self.large and "out/y" in self.observation.values
        return (
            {"read call_end": "the case is large, and its first tokens do not show it"}
            if whole
            else {}
        )

    def answer(self) -> Identification:
        order = np.argsort(self.scores.distance, kind="stable")
        if not np.isfinite(self.scores.distance[order[:1]]).any():
            return Identification(
                self.case.name,
                "NO MATCH",
                "no convention could be compared",
                searched=len(self.points),
            )
        ratios, tensors = judge(
            self.case, self.inputs, self.conventions, self.observation, self.scores, order
        )
        fitting = [i for i in order if ratios.get(i, np.inf) <= PASS]
        open_ = [i for i in order if ratios.get(i, np.inf) <= MARGINAL] if fitting else []
        best = min(fitting or [int(order[0])], key=self._cost)
        fits = {best, *open_}
        second = next(
            (i for i in order if i not in fits and np.isfinite(self.scores.distance[i])), None
        )
        match = self._fit(best, ratios, tensors)
        runner_up = None if second is None else self._fit(second, ratios, tensors)
        verdict: Verdict = (
            "NO MATCH" if not fitting else "MATCH" if len(open_) == 1 else "UNDECIDABLE"
        )
        undecided = twins.open_axes(self.points[best], [self.points[i] for i in open_])
        beside = [i for i in open_ if i != best]
        presets = (
            [name for name, base in self.bases.items() if base == self.points[best]]
            if fitting
            else []
        )
        return Identification(
            self.case.name,
            verdict,
            self._why(verdict, match, undecided),
            match,
            preset=next((name for name in presets if name in PRESETS), None),
            own=lattice.OWN in presets,
            whole=float(self.scores.distance[self.points.index(self.bases[lattice.OWN])]),
            from_own=with_changes({}, lattice.changes(self.bases[lattice.OWN], self.points[best])),
            runner_up=runner_up,
            times_worse=times_worse(match, runner_up),
            twins=twins.twins(
                self.case,
                self.inputs,
                self.observation,
                self._candidate(best),
                [self._candidate(i) for i in beside],
            ),
            undecided=undecided,
            void=twins.void(self.facts, self.conventions[best]),
            untried=self.untried | self._left_out(),
            searched=len(self.points),
            unused=self.observation.unused,
            dtype=self.observation.dtype,
            fits=tuple(self.conventions[i] for i in [best, *beside] if fitting),
        )

    def with_number(self, answer: Identification) -> Identification:
        """The answer with a gradient_scale that is not listed, where one explains the results.

        Source: IDENT-13.
        """
        if self.large or not self.observation.values:
            return answer
        points = set(self.points)
        near = [each for each in self._enumerate(min(self.depth, 1)).points if each in points]
        added = [
            each
            for each in fit(self.case, self.inputs, near, self.observation)
            if each not in points
        ][:1]
        if not added:
            return answer
        self._extend(added)
        again = self.answer()
        return answer if again.verdict == "NO MATCH" else again

    def _extend(self, added: Sequence[Point]) -> None:
        new = [lattice.convention(each) for each in added]
        self.points += added
        self.conventions += new
        more = score(self.case, self.inputs, new, self.observation, progress=self.progress)
        self.scores = self.scores.followed_by(more)

    def with_changes(self, answer: Identification) -> Identification:
        """The answer with a third or fourth change, where those explain the results (IDENT-16)."""
        if self.depth < 2 or self.large or not self.observation.values:
            return answer
        own, known = self.bases[lattice.OWN], set(self.points)
        whole = float(self.scores.distance[self.points.index(own)])
        for more in range(further.ROUNDS):
            order = np.argsort(self.scores.distance, kind="stable")
            if not further.explains_most(float(self.scores.distance[order[0]]), whole):
                break
            starts = further.starts(self.points, order, own, self.depth + more)
            self._extend(list(further.beside(self.facts, self.case.convention, starts, known)))
            best = int(np.argmin(self.scores.distance))
            if judged_alone(self.case, self.conventions[best], self.observation)[0] <= PASS:
                match = [self.points[best]]  # what is beside it may fit as well
                self._extend(list(further.beside(self.facts, self.case.convention, match, known)))
                again = self.answer()
                return answer if again.verdict == "NO MATCH" else again
        return answer

    def with_departures(self, answer: Identification, near: int = DEPARTING) -> Identification:
        """The answer with what explains the results and is no convention (IDENT-14, IDENT-15).

        Args:
            near: conventions under which departures are tried beside the case's own, nearest first.
        """
        if answer.match is None or answer.own:
            return answer
        own = self.points.index(self.bases[lattice.OWN])
        order = np.argsort(self.scores.distance, kind="stable")
        nearest = [] if self.large or not near else [*map(int, order[:near]), *self._by_column()]
        tried = dict.fromkeys([own, *nearest])
        if self.gradients_alone():
            return answer
        views = [
            (self.conventions[i], self.described(self.points[i]), float(self.scores.distance[i]))
            for i in tried
        ]
        found = departures(self.case, views, self.observation, self.progress)
        return self._explain(answer, found)

    def with_mistakes(self, answer: Identification, *, backward: bool) -> Identification:
        """The answer with mistakes of programs under the case's own convention (IDENT-17).

        Args:
            backward: mistakes of the backward pass are tried, and no others.
        """
        from atlas_ref.oracle.identify.mistaken import mistaken  # where nothing else explains

        if answer.match is None or is_large(self.case, MISTAKES):
            return answer
        found, failed = mistaken(
            self.case, self.observation, backward=backward, progress=self.progress
        )
        answer = answer._replace(failed=(*answer.failed, *failed))
        return self._explain(answer, found) if found else answer

    def _explain(self, answer: Identification, found: tuple[Departed, ...]) -> Identification:
        """The answer with departures that explain the results."""
        if not found or answer.verdict != "NO MATCH":
            return answer._replace(departures=found)
        why = f"{self._far()} explains these results; ours is the same {found[0].phrase}"
        return answer._replace(departures=found, why=why)

    def _by_column(self) -> list[int]:
        """The convention that is nearest where a retain gate scales columns of M, if one may.

        Those that are nearest as the case is say nothing about it (IDENT-14).
        """
        from atlas_ref.oracle.family.departures import may_scale_columns  # of conventions alone

        if not self.observation.values or not may_scale_columns(self.case):
            return []
        distance = score(
            self.case,
            self.inputs,
            self.conventions,
            self.observation,
            columns=True,
            progress=self.progress,
        ).distance
        equal = np.flatnonzero(distance <= 2.0 * distance.min())
        return [min(map(int, equal), key=self._cost)]

    def gradients_alone(self) -> bool:
        """Whether the case's own or the nearest convention explains the values.

        Gradients alone miss it then.
        """
        seen = self.observation
        some = (self.points.index(self.bases[lattice.OWN]), int(np.argmin(self.scores.distance)))
        return bool(seen.values and seen.gradients) and any(
            judged_alone(self.case, self.conventions[i], seen)[0] <= PASS for i in some
        )

    def _far(self) -> str:
        return (
            "no preset",
            "no convention up to one change from a preset",
            "no convention up to two changes from a preset",
        )[self.depth]

    def _why(self, verdict: Verdict, match: Fit, undecided: Mapping[str, Any]) -> str:
        if verdict == "NO MATCH":
            how = (
                f"{match.ratio:.3g} tolerances"
                if match.ratio is not None
                else f"a distance of {match.distance:.3g}"
            )
            return (
                f"{self._far()} explains these results; the nearest misses {match.tensor} by {how}"
            )
        if verdict == "UNDECIDABLE":
            return (
                f"several settings fit: this case cannot decide {', '.join(undecided)}; every "
                "other axis is decided"
            )
        return ""

    def _candidate(self, i: int) -> twins.Candidate:
        return twins.Candidate(self.points[i], self.conventions[i])

    def _fit(self, i: int, ratios: Mapping[int, float], tensors: Mapping[int, str]) -> Fit:
        return Fit(
            self.described(self.points[i]),
            float(self.scores.distance[i]),
            ratios.get(i),
            tensors.get(i, self.scores.tensor(i)),
        )

    def _cost(self, i: int) -> tuple[int, int]:
        """Changes from the nearest base.

        Among equals the case's own convention comes first, then the presets in order.
        """
        return min(
            (len(lattice.changes(base, self.points[i])), place)
            for place, base in enumerate(self.bases.values())
        )

    def described(self, at: Point) -> dict[str, Any]:
        """A point as a header would state it."""
        name, base = min(self.bases.items(), key=lambda item: len(lattice.changes(item[1], at)))
        return as_header(name, lattice.changes(base, at), self.case)
