"""Known alternatives to a case's convention, and how far their results are from ours (TOL-6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family.facts import facts, refusal
from atlas_ref.oracle.norms import Norms, norms
from atlas_ref.oracle.registry import PACKED, SUBJECTS
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.sequences.parts import Plan

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
    packed = case.has_sequences
    plan = PACKED["parts"].plan(SUBJECTS[case.header.rule], case) if packed else None
    of = facts(case if plan is None else _longest(case, plan))
    own = lattice.point(case.convention)
    axes = lattice.tried_values(case.convention, case.header.rule, of.names)
    points = dict.fromkeys(lattice.fold(of, each) for each in lattice.around(own, axes, 1))
    points.pop(lattice.fold(of, own), None)
    base = lattice.fold(of, own)
    chosen = [each for each in points if refusal(of, lattice.convention(each)) is None]
    result: list[Alternative] = []
    conventions = [lattice.convention(each) for each in chosen]
    with np.errstate(all="ignore"):
        for number, results in _results(case, plan, conventions):
            gaps = {
                name: norms(value - ours[name])
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


def _results(
    case: Case, plan: Plan | None, conventions: Sequence[Convention]
) -> Iterator[tuple[int, Mapping[str, Array]]]:
    """The number of each convention, and its results; of sequences those of all (CASE-45)."""
    if plan is None:
        for numbers, results in candidates.evaluate(case, convert(case, "float64"), conventions):
            for place, number in enumerate(numbers):
                yield number, {name: value[place] for name, value in results.items()}
        return
    inputs = convert(case, "float64")
    by_sequence = [
        None
        if span.empty
        else dict(_results(PACKED["parts"].case_of(case, plan, span), None, conventions))
        for span in plan.spans
    ]
    calls = SUBJECTS[case.header.rule].calls
    for number in range(len(conventions)):
        found = [None if each is None else each[number] for each in by_sequence]
        yield number, PACKED["parts"].join(calls, plan, inputs, found)


def _longest(case: Case, plan: Plan) -> Case:
    """The longest sequence with its first state, of which settings are looked for."""
    longest = max(plan.spans, key=lambda each: each.last - each.first)._replace(fresh=False)
    one: Case = PACKED["parts"].case_of(case, plan, longest)
    return one


def _comparable(ours: Mapping[str, Array], name: str, value: Array) -> bool:
    return name in ours and value.shape == ours[name].shape
