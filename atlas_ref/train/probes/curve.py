"""Curves of capacity: what was recalled over the number of pairs, beside what theory expects.

Specified in specs/probes.md (PROBE-5, PROBE-11 to PROBE-13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from atlas_ref.messages import Progress, unwatched
from atlas_ref.train.probes import limits
from atlas_ref.train.probes.capacity import Settings, check_size, measure


class Point(NamedTuple):
    """One number of pairs: means over draws, and expectations where a formula is known.

    Attributes:
        pairs: N.
        by_angle, by_error: pairs recalled (PROBE-5).
        spread: standard deviation of by_angle over draws.
        error: root of the mean squared error, relative to the values; inf for a memory that grew
            without end.
        expected_by_angle, expected_error: by PROBE-13, PROBE-11 and PROBE-12; else None.
    """

    pairs: int
    by_angle: float
    by_error: float
    spread: float
    error: float
    expected_by_angle: float | None
    expected_error: float | None


def curve(
    settings: Settings,
    counts: Sequence[int],
    seeds: Sequence[int] = range(8),
    *,
    progress: Progress = unwatched,
) -> tuple[Point, ...]:
    """Measure each number of pairs, with the same draws (PROBE-5).

    Args:
        settings: the memory and what is written.
        counts: numbers of pairs.
        seeds: one draw of pairs for each.
        progress: called with "pairs", numbers of pairs done, and all of them.

    Raises:
        ValueError: as `capacity.measure`.
    """
    for count in counts:
        check_size(settings, count, len(seeds))
    points = []
    for done, count in enumerate(counts):
        progress("pairs", done, len(counts))
        points.append(_point(settings, count, seeds))
    progress("pairs", len(counts), len(counts))
    return tuple(points)


def _point(settings: Settings, count: int, seeds: Sequence[int]) -> Point:
    found = measure(settings, count, seeds)
    expected = limits.moments(settings, count)
    numbers = found.by_angle.sum(axis=1)
    with np.errstate(over="ignore"):
        error = float(np.sqrt((found.error**2).mean()))
    return Point(
        pairs=count,
        by_angle=float(numbers.mean()),
        by_error=float(found.by_error.sum(axis=1).mean()),
        spread=float(numbers.std()),
        error=error,
        expected_by_angle=None if expected is None else limits.by_angle(expected, settings.d_v),
        expected_error=None if expected is None else float(np.sqrt(expected.error.mean())),
    )
