"""Every mutant of a case, another convention or a mistake, with the results of a kernel that has it
(VEC-16).

A mutant is killed by a vector if a result of it is not PASS by the measured tolerance. What a case
cannot show by the shapes and settings alone is no mutant of it: void axes and settings that are the
same function (CONV-3, IDENT-4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.dplr import parameters
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family import mistakes as table
from atlas_ref.oracle.family.facts import facts, refusal
from atlas_ref.oracle.family.mistake import Mistake, Results, compute
from atlas_ref.oracle.family.mistakes import boundaries
from atlas_ref.oracle.norms import round_to
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.sweep.first import tokens_of
from atlas_ref.vectors.inputs import dplr_targets
from atlas_ref.vectors.mutants import erase_chunks, erase_layout, own

#: Tokens of a span where a case has none: of kernels that freeze the memory over chunks.
SPAN = 3

#: Axes whose other values are no mutants: bfloat16 lets an eps pass, and the first targets were
#: searched before there was a momentum_kind (VEC-16).
FINE = ("norm_eps", "norm_guard")
YOUNGER = ("momentum_kind",)


def mutants(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """Names and results of every mutant of a case, rounded to `dtype`; the arithmetic is float32.

    Args:
        case: with inputs as kernels have them, see `inputs.round_inputs`.
    """
    if own.has(case) and not long(case):
        if not erase_chunks.long(case):
            yield from own.mutants(case, dtype)
            yield from erase_layout.mutants(case, dtype)
        if erase_chunks.has(case):
            yield from erase_chunks.mutants(case, dtype)
        return
    if SUBJECTS[case.header.rule].has_axes and not long(case):
        yield from _conventions(case, dtype)
    for mistake in selected(case):
        yield mistake.name, compute(case, mistake, dtype)


def selected(case: Case) -> list[Mistake]:
    """Mistakes that are mutants of a case: of a long one those at the starts of chunks (VEC-21)."""
    return boundaries.mistakes(case, _second(case)) if long(case) else table.mistakes(case)


def long(case: Case) -> bool:
    """Whether a case has more tokens than the smallest chunk, so that its mutants are these."""
    some = SUBJECTS[case.header.rule].has_sequence or bool(_second(case))
    return some and tokens_of(case) > boundaries.SIZES[0]


def _second(case: Case) -> str:
    """The state beside the memory of a member of the linear family, whose chunks are calls (VEC-28)."""
    dplr = case.header.rule == dplr_targets.RULE
    return parameters.parse(case.header).of.second if dplr else ""


def words(name: str) -> str:
    """A mutant in words, for a reader."""
    meanings = table.words_by_name() | erase_chunks.named() | erase_layout.named()
    return meanings.get(name) or own.words(name) or f"convention {name} in place of the case's"


# -- conventions -----------------------------------------------------------------------------------


def _conventions(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    spanned = case
    if SUBJECTS[case.header.rule].has_tokens and case.header.span is None:
        spanned = case.replaced(header=case.header.replaced(span=SPAN))
    points = conventions(spanned)
    names = list(points)
    with np.errstate(all="ignore"):
        inputs = convert(case, "float32")
        for numbers, results in candidates.evaluate(
            spanned, inputs, [lattice.convention(points[name]) for name in names]
        ):
            for place, number in enumerate(numbers):
                yield (
                    names[number],
                    {
                        name: round_to(np.asarray(value[place]), dtype)
                        for name, value in results.items()
                    },
                )


def conventions(case: Case) -> dict[str, lattice.Point]:
    """Conventions one change away that a case can tell from its own, by their change."""
    of, own = facts(case), lattice.point(case.convention)
    folded, points = lattice.fold(of, own), {}
    for point in lattice.around(own, tried(case), 1):
        if lattice.fold(of, point) != folded and refusal(of, lattice.convention(point)) is None:
            points[change_named(lattice.changes(own, point))] = point
    return points


def tried(case: Case) -> dict[str, tuple[Any, ...]]:
    """The values of every axis that are mutants, the case's own among them.

    A younger axis is tried where the case has another value of it than the first (VEC-25).
    """
    c = case.convention
    plain = {axis for axis in YOUNGER if getattr(c, axis) == lattice.values()[axis][0]}
    listed = lattice.tried_values(c, case.header.rule)
    return {axis: values for axis, values in listed.items() if axis not in {*FINE, *plain}}


def change_named(changes: dict[str, Any]) -> str:
    """A convention as the one change that makes it: axis=value."""
    axis, value = next(iter(changes.items()))
    return f"{axis}={value:g}" if isinstance(value, float) else f"{axis}={value}"
