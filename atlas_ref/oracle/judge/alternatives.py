"""Known alternatives to a case's convention, and how far their results are from ours (TOL-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family.facts import facts, refusal
from atlas_ref.oracle.norms import Norms, norms
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.types import Array

#: Numbers that a case's sequence and matrices may have for its alternatives to be evaluated at
#: every check.
LARGEST = 2**14

#: Relative distance at which float64 itself no longer tells two settings apart.
ROUNDING = 1e-13


class Alternative(NamedTuple):
    """A convention one change away, and the distances from ours of the results that it changes."""

    changes: dict[str, Any]
    apart: dict[str, Norms]

    @property
    def words(self) -> str:
        return ", ".join(
            f"{axis} {value:g}" if isinstance(value, float) else f"{axis} {value}"
            for axis, value in self.changes.items()
        )


def alternatives(case: Case, ours: Mapping[str, Array]) -> list[Alternative]:
    """Every convention one change away from the case's that float64 tells from it.

    None for a large case.
    """
    if (
        not SUBJECTS[case.header.rule].has_axes
        or sum(value.size for value in case.inputs.values()) > LARGEST
    ):
        return []
    of, own = facts(case), lattice.point(case.convention)
    axes = lattice.tried_values(case.convention, case.header.rule, of.names)
    points = dict.fromkeys(lattice.fold(of, each) for each in lattice.around(own, axes, 1))
    points.pop(lattice.fold(of, own), None)
    base = lattice.fold(of, own)
    chosen = [each for each in points if refusal(of, lattice.convention(each)) is None]
    result: list[Alternative] = []
    with np.errstate(all="ignore"):
        for numbers, results in candidates.evaluate(
            case, convert(case, "float64"), [lattice.convention(each) for each in chosen]
        ):
            for place, number in enumerate(numbers):
                gaps = {
                    name: norms(value[place] - ours[name])
                    for name, value in results.items()
                    if _comparable(ours, name, value)
                }
                apart = {
                    name: gap
                    for name, gap in gaps.items()
                    if gap.rms > ROUNDING * norms(ours[name]).rms
                }
                if apart:
                    result.append(Alternative(lattice.changes(base, chosen[number]), apart))
    return result


def _comparable(ours: Mapping[str, Array], name: str, value: Array) -> bool:
    return name in ours and value.shape[1:] == ours[name].shape
