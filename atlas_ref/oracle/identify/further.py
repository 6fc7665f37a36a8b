"""A third and a fourth change, taken greedily where two explain most of the distance (IDENT-16)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from atlas_ref.conventions import Convention
from atlas_ref.oracle.family import lattice
from atlas_ref.oracle.family.facts import Facts, refusal
from atlas_ref.oracle.family.lattice import Point
from atlas_ref.types import Array

#: Rounds; conventions that one starts from, the nearest of all and of those near the case's own.
ROUNDS, STARTS, OWN_STARTS = 2, 6, 3

#: What may remain of the squared distance of the case's own convention.
REMAINS = 0.5

#: The nearest conventions among which those near the case's own are looked for.
LOOKED_AT = 500


def explains_most(nearest: float, own: float) -> bool:
    """Whether the nearest convention explains most of the squared distance of the case's own."""
    return nearest**2 <= REMAINS * own**2


def starts(points: Sequence[Point], order: Array, own: Point, changes: int) -> list[Point]:
    """The points that a round starts from, those near the case's own convention first.

    Args:
        order: of the points by distance.
        changes: how many an earlier round may have made to the case's own.
    """
    nearest = [points[int(i)] for i in order[:LOOKED_AT]]
    near_own = (each for each in nearest if len(lattice.changes(own, each)) <= changes)
    first = [each for each, _ in zip(near_own, range(OWN_STARTS), strict=False)]
    return list(dict.fromkeys([*first, *nearest[:STARTS]]))


def beside(of: Facts, own: Convention, some: Iterable[Point], known: set[Point]) -> Iterator[Point]:
    """Every point one change away from some, as far as the case tells it apart and is new.

    Args:
        own: the case's convention, whose values are tried beside those listed.
        known: points that are not new; the others join it.
    """
    axes = lattice.tried_values(own, of.rule, of.names)
    for start in some:
        for each in lattice.around(start, axes, 1):
            point = lattice.fold(of, each)
            if point not in known and refusal(of, lattice.convention(point)) is None:
                known.add(point)
                yield point
