"""Settings that fit the results under test beside the match, and what they leave open (IDENT-6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family.facts import Facts, always_the_same, void_in
from atlas_ref.oracle.family.lattice import Point
from atlas_ref.oracle.identify import equivalence
from atlas_ref.oracle.identify.answer import Twin
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.properties import Numbers
from atlas_ref.oracle.identify.score import seen_as
from atlas_ref.oracle.identify.stated import says_nothing_new
from atlas_ref.types import Array

#: Settings that fit beside the match and are listed; of more, only their axes and number.
LISTED = 24


class Candidate(NamedTuple):
    """A convention of a search, and its point."""

    point: Point
    convention: Convention


def twins(
    case: Case,
    inputs: Mapping[str, Array],
    observation: Observation,
    match: Candidate,
    others: Sequence[Candidate],
) -> tuple[Twin, ...]:
    """Twins of the match, those of the fewest changes first (IDENT-6).

    A combination is listed only where its parts are not twins themselves.

    Args:
        inputs: of the case, float64.
        others: that fit beside the match.
    """
    if not others:
        return ()
    view = seen_as(case, match.convention)
    numbers = Numbers(view, convert(view, "float64"), match.convention)
    changed = [(lattice.changes(match.point, each.point), each) for each in others]
    fits = {frozenset((axis, repr(value)) for axis, value in each.items()) for each, _ in changed}
    listed = [pair for pair in changed if not says_nothing_new(pair[0], fits)]
    listed = sorted(listed, key=lambda pair: len(pair[0]))[:LISTED]
    apart = _distances(case, inputs, observation, [match, *(each for _, each in listed)])
    names = frozenset((*observation.values, *observation.gradients))
    return tuple(
        Twin(each, equivalence.why(numbers, match.point, each, names, distance), distance)
        for (each, _), distance in zip(listed, apart, strict=True)
    )


def _distances(
    case: Case,
    inputs: Mapping[str, Array],
    observation: Observation,
    chosen: Sequence[Candidate],
) -> list[float]:
    """Distances of all but the first from the first in float64, by the results under test."""
    names = list(observation.values) or ["out/y"]
    arrays: dict[int, dict[str, Array]] = {}
    with np.errstate(all="ignore"):
        for numbers, results in candidates.evaluate(
            case, inputs, [each.convention for each in chosen]
        ):
            for place, number in enumerate(numbers):
                arrays[number] = {name: results[name][place] for name in names if name in results}
    return [_apart(arrays[number], arrays[0]) for number in range(1, len(chosen))]


def _apart(theirs: Mapping[str, Array], ours: Mapping[str, Array]) -> float:
    """The largest relative distance of two results of one name, either of them transposed."""
    pairs = [(theirs[name], ours[name]) for name in ours if name in theirs]
    pairs = [(x, y if x.shape == y.shape else np.swapaxes(y, -1, -2)) for x, y in pairs]
    return max(
        (float(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1.0)) for x, y in pairs), default=0.0
    )


def open_axes(ours: Point, fitting: Sequence[Point]) -> dict[str, list[Any]]:
    """The axes on which points that fit differ, each with its values, ours first."""
    by_axis: dict[str, list[Any]] = {}
    for each in fitting:
        for axis, theirs in lattice.changes(ours, each).items():
            values = by_axis.setdefault(axis, [ours[lattice.PLACE[axis]]])
            if theirs not in values:
                values.append(theirs)
    return by_axis


def void(of: Facts, convention: Convention) -> dict[str, str]:
    """The axes that this case cannot decide under a convention, each with the reason."""
    reasons = void_in(of, convention)
    return reasons | dict.fromkeys(
        always_the_same(of, convention) - set(reasons), "the same function, whatever the value"
    )
