"""Readings of a subject that has its own, under which ours equals the results under test.

Specified in specs/deep_memory_cases.md (DEEPCASE-14), where IDENT-1 to IDENT-7 say nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.identify.answer import Fit, Identification, Twin, Verdict
from atlas_ref.oracle.identify.departed import Departed
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.readings.early import first_wrong
from atlas_ref.oracle.identify.readings.judge import SAME, Judge
from atlas_ref.oracle.identify.readings.nodes import (
    Key,
    Node,
    apart,
    fitting_of,
    key_of,
    not_finite,
    observe_case,
    passing,
    times_worse,
    undecided_by,
    void_by,
)
from atlas_ref.oracle.identify.stated import says_nothing_new
from atlas_ref.oracle.judge.arrays import TOLERANCE
from atlas_ref.oracle.judge.tolerance import MARGINAL, PASS
from atlas_ref.oracle.norms import FORMATS
from atlas_ref.oracle.subjects.subject import Searched
from atlas_ref.storage import faults

T = TypeVar("T")

#: Nearest readings from which a second and a third setting are changed, readings that are judged
#: by one tolerance, and those that are judged by their own where that excludes the nearest.
STARTS, JUDGED, ALONE = 4, 40, 5

#: Nearest readings under which departures are tried, beside the case's own.
DEPARTING = 2

#: Distance up to which a mistake of those that are tried last is judged.
NEAR = 0.1

#: Share of the distance of the case's own reading at which a third setting is worth a search.
EXPLAINED = 0.7

#: Settings that fit beside the match and are listed.
LISTED = 24


def search_readings(
    case: Case,
    mine: Mapping[str, Any],
    searched: Searched,
    *,
    depth: int = 2,
    dtype: str | None = None,
    progress: Progress = unwatched,
) -> Identification:
    """Search the readings of a case that make ours equal to the results under test (DEEPCASE-14).

    Args:
        case: with inputs as the program saw them.
        searched: its readings.
        depth: settings that are changed at most, 0 to 2, and one more where that explains most.

    Raises:
        CaseError: results that are none of this case or have another shape.
    """
    search = Search(case, observe_case(case, mine, dtype), searched, progress)
    return search.answer(depth)


class Search:
    """One search: its nodes with their distances, and the answer."""

    def __init__(
        self,
        case: Case,
        observation: Observation,
        searched: Searched,
        progress: Progress = unwatched,
    ) -> None:
        self.case, self.observation, self.searched = case, observation, searched
        self.progress = progress
        self.judge = Judge(case, observation, searched)
        self.own = Node("", (), 0)
        self.nodes: dict[Key, Node] = {}
        self.far: dict[Key, tuple[float, str]] = {}
        self.ratios: dict[Key, tuple[float, str]] = {}
        #: Mistakes under the case's own reading.
        self.alone: list[Departed] = []
        self.failed: list[str] = []

    # -- nodes -------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[Node]) -> None:
        """Compare some nodes, each set of changes once."""
        fresh = {key: node for node in nodes if (key := key_of(node)) not in self.nodes}
        for done, (key, node) in enumerate(fresh.items()):
            self.progress("conventions", done, len(fresh))
            self.nodes[key] = node
            self.far[key] = self._distance(node.chosen)
        if fresh:
            self.progress("conventions", len(fresh), len(fresh))

    def _distance(self, chosen: Sequence[Any], *, grad: bool = False) -> tuple[float, str]:
        """The distance of some readings; infinite where they cannot be evaluated (CASE-38)."""
        return self._tell(
            f"the reading {' and '.join(each.name for each in chosen) or 'of the case itself'}",
            lambda: self.judge.distance(chosen, grad=grad),
            (np.inf, ""),
        )

    def _tell(self, what: str, tell: Callable[[], T], instead: T) -> T:
        """What `tell` returns; where that fails, a note of it and something else (CASE-38)."""

        def note(words: str) -> T:
            self.failed.append(words)
            return instead

        return faults.told(what, tell, note)

    def nearest(self) -> list[Node]:
        """Nodes by distance, then by what they change."""
        keys = sorted(self.nodes, key=lambda key: (self.far[key][0], self._cost(self.nodes[key])))
        return [self.nodes[key] for key in keys]

    def _cost(self, node: Node) -> tuple[int, int, int]:
        """Changes from the base, the case's own before a preset."""
        return (node.steps, bool(node.base), len(node.chosen))

    def errors(self) -> dict[Key, tuple[float, str]]:
        """Error over tolerance of the nearest nodes (IDENT-7).

        They are judged by the tolerance of the nearest; where that excludes it, the next by their
        own. What fits by its values is judged by its gradients too.
        """
        grad = not self.observation.values
        near = [node for node in self.nearest() if np.isfinite(self.far[key_of(node)][0])]
        if not near:
            return {}
        bounds = self.judge.tolerances(near[0].chosen, grad=grad)
        ratios = {key_of(n): self.judge.ratio(n.chosen, bounds, grad=grad) for n in near[:JUDGED]}
        if ratios[key_of(near[0])][0] > PASS:
            for node in near[1 : 1 + ALONE]:
                own = self.judge.own_ratio(node.chosen, grad=grad)
                ratios[key_of(node)] = min(own, ratios[key_of(node)])
        if self.observation.gradients and not grad:
            for key, (ratio, _) in list(ratios.items()):
                if ratio <= MARGINAL:
                    ratios[key] = self.judge.own_ratio(self.nodes[key].chosen, grad=True)
        graded = self.observation.gradients and not grad
        by_gradients = (lambda n: self.judge.distance(n.chosen, grad=True)) if graded else None
        return ratios | passing(ratios, self.observation, near[:JUDGED], self.far, by_gradients)

    # -- the answer --------------------------------------------------------------------------------

    def answer(self, depth: int) -> Identification:
        """The identification, searched as far as it takes."""
        if why := not_finite(self.observation):
            dtype = self.observation.dtype
            return Identification(self.case.name, "NOT FINITE", why, dtype=dtype)
        self.add([self.own])
        for stage in (self._near, self._further, self._fitting):
            self._tell("a stage of the search", partial(stage, depth), None)
        return self._identification(self.ratios)._replace(failed=tuple(dict.fromkeys(self.failed)))

    def _near(self, depth: int) -> None:
        """Presets and one changed setting, then mistakes."""
        self.add(self._starts())
        if depth > 0:
            self.add(self._beside(self.own))
        self.ratios = self.errors()
        self.alone = [] if fitting_of(self.ratios) else self.departures(self.own)

    def _starts(self) -> list[Node]:
        presets = self.searched.presets(self.case)
        return [Node(name, tuple(chosen), 0) for name, chosen in presets.items() if chosen]

    def _further(self, depth: int) -> None:
        """A second setting, and a third where that explains most."""
        for rounds in range(2 if depth > 1 else 0):
            if fitting_of(self.ratios) or self.alone or (rounds and not self._explains()):
                break
            for node in [*(self._starts() if not rounds else []), *self.nearest()[:STARTS]]:
                self.add(self._beside(node))
            self.ratios = self.errors()

    def _fitting(self, depth: int) -> None:
        """What is beside a match, which may fit as well."""
        if depth and (fitting := fitting_of(self.ratios)):
            best = min((self.nodes[key] for key in fitting), key=self._cost)
            if best.chosen:
                self.add(self._beside(best))
                self.ratios = self.errors()

    def _beside(self, node: Node) -> list[Node]:
        return node.beside(self.searched.settings(self.case, node.chosen))

    def _explains(self) -> bool:
        """Whether the nearest reading leaves so little that one more setting is worth a search."""
        return self.far[key_of(self.nearest()[0])][0] <= EXPLAINED * self.far[key_of(self.own)][0]

    def _identification(self, ratios: Mapping[Key, tuple[float, str]]) -> Identification:
        near = self.nearest()
        if not ratios:
            why = "no reading could be compared"
            return Identification(self.case.name, "NO MATCH", why, searched=len(self.nodes))
        fitting = fitting_of(ratios)
        fits = [key for key, (ratio, _) in ratios.items() if ratio <= MARGINAL] if fitting else []
        best = min((self.nodes[key] for key in fitting), key=self._cost, default=near[0])
        beside = [self.nodes[key] for key in fits if key != key_of(best)]
        same = [
            each
            for each in beside
            if self._tell("a comparison", partial(self.judge.is_same, best, each), False)
        ]
        others = [node for node in beside if node not in same]
        verdict: Verdict = "NO MATCH" if not fitting else "UNDECIDABLE" if others else "MATCH"
        match = self._fit(best, ratios)
        second = next(
            (n for n in near if key_of(n) not in fits and n is not best and self._is_finite(n)),
            None,
        )
        twins: tuple[Twin, ...] = ()
        twins = self._tell("a comparison", lambda: self._twins(best, others), twins)
        undecided = undecided_by(best, others)
        runner_up = None if second is None else self._fit(second, ratios)
        answer = Identification(
            self.case.name,
            verdict,
            self._why(verdict, match, undecided),
            match,
            preset=best.base if best.base and not best.steps else None,
            own=not best.chosen,
            whole=self.far[key_of(self.own)][0],
            from_own=best.changes,
            runner_up=runner_up,
            times_worse=times_worse(match, runner_up),
            twins=twins,
            undecided=undecided,
            void=self.case.void | void_by(best, same),
            searched=len(self.nodes),
            unused=self.observation.unused,
            dtype=self.observation.dtype,
            fits=tuple(node.chosen for node in (best, *others)) if fitting else (),
        )
        if fitting:
            return answer
        return self._tell("the search of mistakes", lambda: self._with_departures(answer), answer)

    def _is_finite(self, node: Node) -> bool:
        return bool(np.isfinite(self.far[key_of(node)][0]))

    def _fit(self, node: Node, ratios: Mapping[Key, tuple[float, str]]) -> Fit:
        key = key_of(node)
        distance, tensor = self.far[key]
        ratio, worst = ratios.get(key, (None, tensor))
        return Fit(self.described(node.changes), distance, ratio, worst)

    def described(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The convention of the case with changes, parameters beside its axes."""
        own = self.case.header.convention
        stated: dict[str, Any] = {"preset": own} if isinstance(own, str) else dict(own)
        for axis, value in changes.items():
            outer, dot, key = axis.partition(".")
            if outer == "newton_schulz" and dot:
                inside = stated.get(outer)
                stated[outer] = {**(inside if isinstance(inside, Mapping) else {}), key: value}
            else:
                stated[axis] = value
        return stated

    def _twins(self, best: Node, others: Sequence[Node]) -> tuple[Twin, ...]:
        """Settings that cannot be told from the match, those of the fewest changes first."""
        changed = [(node, apart(best, node)) for node in others]
        fits = {frozenset((a, repr(v)) for a, v in each.items()) for _, each in changed}
        listed = sorted(
            (pair for pair in changed if not says_nothing_new(pair[1], fits)),
            key=lambda p: len(p[1]),
        )
        return tuple(self._twin(best, *pair) for pair in listed[:LISTED])

    def _twin(self, best: Node, node: Node, changes: dict[str, Any]) -> Twin:
        grad = not self.observation.values
        distance = self.judge.between(best, node, grad=grad)
        same = "the same numbers on this case"
        reason = same if distance <= SAME else f"{self.observation.dtype} does not separate them"
        return Twin(changes, reason, distance)

    def _why(self, verdict: Verdict, match: Fit, undecided: Mapping[str, Any]) -> str:
        if verdict == "UNDECIDABLE":
            return (
                f"several settings fit: this case cannot decide {', '.join(undecided)}; every "
                "other axis is decided"
            )
        if verdict == "MATCH":
            return ""
        how = (
            f"a distance of {match.distance:.3g}"
            if match.ratio is None
            else f"{match.ratio:.3g} tolerances"
        )
        return f"no reading explains these results; the nearest misses {match.tensor} by {how}"

    # -- departures --------------------------------------------------------------------------------

    def _with_departures(self, answer: Identification) -> Identification:
        """The answer with mistakes that explain the results (IDENT-14)."""
        found = self.alone or self.departures(self.own, further=True)
        for node in (each for each in self.nearest()[:DEPARTING] if each.chosen):
            if not found:
                found = self.departures(node)
        if not found:
            return answer
        why = f"no reading explains these results; ours is the same {found[0].phrase}"
        return answer._replace(departures=tuple(found), why=why)

    def departures(self, node: Node, *, further: bool = False) -> list[Departed]:
        """Mistakes under a reading that explain the results.

        Args:
            further: those that are tried last (IDENT-17).
        """
        backward = self.judge.misses_gradients_alone(node)
        whole = self.judge.distance(node.chosen, grad=backward)[0]
        last, first = self.searched.further, self.searched.departures
        every = last(self.case) if further else first(self.case, node.chosen)
        tried = [each for each in every if each.grad == backward or not self.observation.values]
        start = first_wrong(self.judge, node) if further and not backward else None
        rows = []
        for done, each in enumerate(tried):
            self.progress("departures", done, len(tried))
            if start is None or each.whole or start.explains((*node.chosen, each)):
                rows.append((self._distance((*node.chosen, each), grad=backward)[0], each))
        rows = [row for row in rows if row[0] <= 0.5 * whole]
        if further:  # mistakes that are one function of this case are told in the order of the list
            rows = [(max(row[0], self._same()), row[1]) for row in rows if row[0] <= NEAR]
        found = (self._one(node, *row) for row in sorted(rows, key=lambda row: row[0])[:ALONE])
        return [each for each in found if each is not None]

    def _same(self) -> float:
        """The distance below which rounding alone tells two mistakes apart."""
        return 2.0 ** (4 - FORMATS[self.observation.dtype][1])

    def _one(self, node: Node, distance: float, each: Any) -> Departed | None:
        """A mistake that the results pass under; None where they do not."""
        graded = bool(self.observation.gradients)
        tell = partial(self.judge.own_ratio, (*node.chosen, each), grad=graded)
        ratio, tensor = self._tell(f"the reading {each.name}", tell, (np.inf, ""))
        fixed = set(self.observation.dtypes.values()) == {"float64"} and not graded
        if ratio > PASS and fixed and distance <= TOLERANCE:  # as `check` lets it pass
            ratio = distance / TOLERANCE
        if ratio > PASS:
            return None
        feature = each.words.partition(" ")[0] if each.words.startswith("in/") else ""
        stated = self.described(node.changes)
        return Departed(feature, each.words, stated, not node.chosen, distance, ratio, tensor)
