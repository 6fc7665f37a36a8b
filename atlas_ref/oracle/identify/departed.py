"""Departures that explain results where no convention of the case does (IDENT-14, IDENT-15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.score import beyond_reach, judged_alone, score, seen_as
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.judge.tolerance import PASS

if TYPE_CHECKING:
    from atlas_ref.oracle.family.mistake import Mistake

#: Departures that are judged by their tolerance at most, and how far they may be from the results.
JUDGED, NEAR = 8, 0.1


class Departed(NamedTuple):
    """A departure under which ours equals the results.

    Attributes:
        feature, words: as of `Mistake`.
        convention: under which it does, as a header would state it; own: that of the case.
        distance, ratio, tensor: as of `Fit`.
    """

    feature: str
    words: str
    convention: dict[str, Any]
    own: bool
    distance: float
    ratio: float
    tensor: str

    @property
    def phrase(self) -> str:
        """The departure in a phrase."""
        under = "the case's own convention" if self.own else setting(self.convention)
        return f"as if {self.words}, under {under}"


def departures(
    case: Case,
    conventions: Sequence[tuple[Convention, dict[str, Any], float]],
    observation: Observation,
    progress: Progress = unwatched,
) -> tuple[Departed, ...]:
    """Every departure that explains the results, features of the case first (IDENT-14).

    Args:
        conventions: under which departures are tried, with how a header would state each and its
            distance from the results; the case's own first. A departure that leaves most of that
            distance says nothing. It is named under the first that it explains the results with.
    """
    values = observation.values
    if not values:
        return ()
    observation = Observation(values, {}, {n: observation.dtypes[n] for n in values}, ())
    from atlas_ref.oracle.family.departures import ignore_features  # of conventions alone
    from atlas_ref.oracle.family.habits import habits

    rows: list[tuple[float, int, str, Mistake, Case]] = []
    for number, (convention, _, whole) in enumerate(conventions):
        view = seen_as(case, convention)
        tried = [
            each
            for each in (*ignore_features(view), *habits(view))
            if number == 0 or each.feature != "span"  # which a convention says, and was searched
        ]
        most = min(NEAR, 0.5 * whole)
        for done, each in enumerate(tried):
            progress("departures", done, len(tried))
            other = view if each.case is None else each.case(view)
            distance, tensor = _distance(other, observation, columns=each.columns)
            rows += [(distance, number, tensor, each, other)] if distance <= most else []
        progress("departures", len(tried), len(tried))
    found: dict[str, Departed] = {}
    for distance, number, worst, each, other in sorted(rows, key=lambda row: row[:2])[:JUDGED]:
        convention = other.convention
        if beyond_reach(other, convention, observation, worst, distance):
            continue
        ratio, tensor = judged_alone(other, convention, observation, columns=each.columns)
        if ratio <= PASS and (each.as_if not in found or number == 0):
            header = conventions[number][1]
            found[each.as_if] = Departed(
                each.feature, each.as_if, header, number == 0, distance, ratio, tensor
            )
    return tuple(sorted(found.values(), key=lambda each: (not each.own, not each.feature)))


def _distance(case: Case, observation: Observation, *, columns: bool) -> tuple[float, str]:
    """The distance of the case that a program computes, and the tensor that decides it."""
    try:
        inputs = convert(case, "float64")
        found = score(case, inputs, [case.convention], observation, columns=columns)
    except CaseError:  # a tensor that it makes is not finite
        return np.inf, ""
    return float(found.distance[0]), found.tensor(0)
