"""Fit of a gradient_scale that is none of the listed numbers (IDENT-13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.lattice import Point
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.score import score
from atlas_ref.rules import names_with
from atlas_ref.types import Array

#: First values; how many points are refined in how many rounds of how many values.
GRID = tuple(2.0**i for i in range(-6, 7))
POINTS, ROUNDS, VALUES = 8, 8, 13

#: Points that are also evaluated between those values, and the factors.
FINER, STEPS = 100, (2.0**-0.6, 2.0**-0.4, 2.0**-0.2, 1.0, 2.0**0.2, 2.0**0.4, 2.0**0.6)

#: Largest distance that is worth refining.
NEAR = 0.5


def fit(
    case: Case, inputs: Mapping[str, Array], points: Sequence[Point], observation: Observation
) -> list[Point]:
    """Points whose gradient_scale fits the results under test better than any listed value does;
    best first.

    Args:
        points: where to look: what is at most one change away from a base, without Newton-Schulz,
            which hides the scale.
    """
    place = lattice.PLACE["gradient_scale"]
    bare = dict.fromkeys(
        (*each[:place], 1.0, *each[place + 1 :])
        for each in points
        if each[lattice.PLACE["newton_schulz"]] == "none"
    )
    if not bare or case.header.rule not in names_with("has_error"):
        return []
    first = _best(case, inputs, [(each, scale) for each in bare for scale in GRID], observation)
    between = [(each, best * step) for each, (_, best) in _nearest(first, FINER) for step in STEPS]
    second = _best(case, inputs, between, observation) if between else {}
    fits = [
        (*_refine(case, inputs, each, best, observation), each)
        for each, (_, best) in _nearest(second, POINTS)
    ]
    return [_at(each, scale) for gap, scale, each in sorted(fits, key=lambda one: one[0])]


def _best(
    case: Case,
    inputs: Mapping[str, Array],
    trials: Sequence[tuple[Point, float]],
    observation: Observation,
) -> dict[Point, tuple[float, float]]:
    """The least distance of each point, and the scale that has it."""
    result: dict[Point, tuple[float, float]] = {}
    for (each, scale), gap in zip(
        trials, _distances(case, inputs, trials, observation), strict=True
    ):
        if each not in result or gap < result[each][0]:
            result[each] = (float(gap), scale)
    return result


def _nearest(
    scores: Mapping[Point, tuple[float, float]], count: int
) -> list[tuple[Point, tuple[float, float]]]:
    return sorted(
        ((each, best) for each, best in scores.items() if best[0] < NEAR),
        key=lambda pair: pair[1][0],
    )[:count]


def _refine(
    case: Case, inputs: Mapping[str, Array], at: Point, scale: float, observation: Observation
) -> tuple[float, float]:
    """The least distance near a first scale, and the scale that has it.

    Found by ever finer grids around the best.
    """
    width, gap = 0.2, np.inf
    for _ in range(ROUNDS):
        values = scale * np.exp(width * np.linspace(-1.0, 1.0, VALUES))
        distance = _distances(case, inputs, [(at, float(value)) for value in values], observation)
        best = int(np.argmin(distance))
        scale, gap, width = float(values[best]), float(distance[best]), width * 2.5 / (VALUES - 1)
    return gap, scale


def _distances(
    case: Case,
    inputs: Mapping[str, Array],
    trials: Sequence[tuple[Point, float]],
    observation: Observation,
) -> Array:
    return score(
        case, inputs, [lattice.convention(_at(each, scale)) for each, scale in trials], observation
    ).distance


def _at(point: Point, scale: float) -> Point:
    place = lattice.PLACE["gradient_scale"]
    return (*point[:place], float(f"{scale:.6g}"), *point[place + 1 :])
