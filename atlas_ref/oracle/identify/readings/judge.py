"""Results of a case under some readings, and how far they are from the results under test.

Specified in specs/deep_memory_cases.md (DEEPCASE-14), where IDENT-3 to IDENT-7 say nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.family.arithmetic import MEMBERS, PLAIN
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.readings.nodes import Node, redrawn, relative
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.tolerance import PASS, Tolerance, from_members
from atlas_ref.oracle.norms import norms
from atlas_ref.oracle.subjects.subject import Searched
from atlas_ref.types import Array

#: Numbers of results that are kept.
KEPT = 2**14

#: Relative distance at which float64 no longer tells two readings apart.
SAME = 1e-13


class Judge:
    """Distances and tolerances of the readings of one case."""

    def __init__(self, case: Case, observation: Observation, searched: Searched) -> None:
        self.case, self.observation, self.searched = case, observation, searched
        self.others = redrawn(convert(case, "float64"))
        self.kept: dict[Any, Mapping[str, Array]] = {}

    def results(self, chosen: Sequence[Any], *, grad: bool) -> Mapping[str, Array]:
        """Results under some readings in float64, kept where they are small."""
        key = (tuple(each.name for each in chosen), grad)
        if key not in self.kept:
            found = ensemble.exact(self.case, grad=grad, plain=self._plain(chosen))
            if sum(x.size for x in found.values()) > KEPT:
                return found
            self.kept[key] = found
        return self.kept[key]

    def _plain(self, chosen: Sequence[Any]) -> ensemble.Plain:
        return lambda inputs, case, rounding: self.searched.run(inputs, case, rounding, chosen)

    def distance(self, chosen: Sequence[Any], *, grad: bool = False) -> tuple[float, str]:
        """The distance of some readings from the results, the worst tensor's, and its name.

        Values rank; gradients do where there is nothing else (IDENT-3). Of a reading that sums in a
        narrower format, in the order of its sums that is nearest (DEEPCASE-15).

        Args:
            grad: whether gradients do, where there are values too.
        """
        grad = grad or not self.observation.values
        near = self._apart_from_theirs(self.results(chosen, grad=grad), grad)
        if not any(self.searched.narrow(each) for each in chosen):
            return near
        plain = self._plain(chosen)
        return min(
            near,
            *(
                self._apart_from_theirs(
                    ensemble.exact(self.case, grad=grad, plain=plain, way=way), grad
                )
                for way in MEMBERS
                if way != PLAIN
            ),
        )

    def _apart_from_theirs(self, ours: Mapping[str, Array], grad: bool) -> tuple[float, str]:
        """The distance of some results from those under test, and the tensor that is worst."""
        theirs = self.observation.gradients if grad else self.observation.values
        worst = (0.0, next(iter(theirs)))
        for name, value in theirs.items():
            worst = max(worst, (relative(ours.get(name), value), name))
        return worst

    def tolerances(self, chosen: Sequence[Any], *, grad: bool) -> dict[str, Tolerance]:
        """The tolerance of every result under some readings (TOL-3 to TOL-7)."""
        plain = self._plain(chosen)
        dtypes = self.observation.dtypes
        exact = ensemble.exact(self.case, grad=grad, plain=plain)
        factors = ensemble.amplification(self.case, exact, grad=grad, plain=plain)
        bounds: dict[str, Tolerance] = {}
        for dtype in dict.fromkeys(dtypes.values()):
            members = ensemble.members(self.case, dtype, grad=grad, plain=plain)
            arithmetic = "float64" if dtype == "float64" else "float32"
            for name in (each for each, kind in dtypes.items() if kind == dtype):
                if name not in exact or (name.startswith("grad/") and not grad):
                    continue
                bounds[name] = from_members(
                    name,
                    np.asarray(exact[name], np.float64),
                    {member: each[name] for member, each in members.items()},
                    dtype,
                    arithmetic=arithmetic,
                    amplification=factors.get(name, 1.0),
                )
        return bounds

    def ratio(
        self, chosen: Sequence[Any], bounds: Mapping[str, Tolerance], *, grad: bool
    ) -> tuple[float, str]:
        """Error over tolerance under some readings, the worst tensor's, and its name."""
        theirs = {**self.observation.values, **(self.observation.gradients if grad else {})}
        ours = self.results(chosen, grad=grad)
        worst = (0.0, next(iter(theirs)))
        for name, value in theirs.items():
            own = ours.get(name)
            if name not in bounds or own is None or own.shape != value.shape:
                return np.inf, name
            gap = np.asarray(own, np.float64) - value
            finite = bool(np.isfinite(gap).all())
            worst = max(worst, (norms(gap).over(bounds[name].norms) if finite else np.inf, name))
        return worst

    def own_ratio(self, chosen: Sequence[Any], *, grad: bool) -> tuple[float, str]:
        """As `ratio`, by the tolerance under the same readings."""
        return self.ratio(chosen, self.tolerances(chosen, grad=grad), grad=grad)

    def is_same(self, best: Node, node: Node) -> bool:
        """Whether two readings are one function of cases of this shape (IDENT-4).

        They are, where they agree on the case and on other numbers in its place.
        """
        grad = bool(self.observation.gradients)
        if self.between(best, node, grad=grad) > SAME:
            return False
        other = self.case.replaced(inputs=self.others)
        ours, theirs = (
            ensemble.exact(other, grad=grad, plain=self._plain(each.chosen))
            for each in (best, node)
        )
        return self._apart(ours, theirs) <= SAME

    def between(self, best: Node, node: Node, *, grad: bool) -> float:
        """The largest relative distance of a result under two readings."""
        ours, theirs = (self.results(each.chosen, grad=grad) for each in (best, node))
        return self._apart(ours, theirs)

    def _apart(self, ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> float:
        names = {*self.observation.values, *self.observation.gradients}
        return max(relative(theirs.get(name), ours[name]) for name in names if name in ours)

    def misses_gradients_alone(self, node: Node) -> bool:
        """Whether a reading explains the values, so that gradients alone miss it."""
        seen = self.observation
        if not (seen.values and seen.gradients):
            return False
        return self.own_ratio(node.chosen, grad=False)[0] <= PASS
