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

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.inputs import converted
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family import candidates, lattice
from atlas_ref.oracle.family.facts import facts, refusal
from atlas_ref.oracle.judge.norms import rounded
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.oracle.subjects import memory
from atlas_ref.vectors.inputs import split
from atlas_ref.vectors.mutants import (
    axes,
    backward,
    boundaries,
    chunked,
    erase_chunks,
    erase_layout,
    forward,
    matrices,
    own,
    tensors,
)
from atlas_ref.vectors.mutants.mistake import Mistake, Results, Seen, computed, seen

#: Tokens of a span where a case has none: of kernels that freeze the memory over chunks.
SPAN = 3

#: Axes whose other values are no mutants: bfloat16 lets an eps pass, and the first targets were
#: searched before there was a momentum_kind (VEC-16).
FINE = ("norm_eps", "norm_guard")
YOUNGER = ("momentum_kind",)

#: Results that are lost where a call is cut: name -> results, the mistake in words.
LOST: dict[str, tuple[tuple[str, ...], str]] = {
    "momentum lost at a cut": (("out/S",), "a second call starts with a momentum of zero"),
    "window lost at a cut": (
        ("out/window_k", "out/window_v", "out/window_gate_before"),
        "a second call starts with an empty window",
    ),
    "reference lost at a cut": (("out/M_ref",), "a second call starts a span of its own"),
    "phase lost at a cut": (("phase",), "a second call counts its span from its first token"),
    "residuals lost at a cut": (
        ("out/window_residual",),
        "a second call starts with stored residuals of zero",
    ),
    "momenta lost at a cut": (("out/window_momentum",), "a second call starts with no momenta"),
}


def mutants(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """Names and results of every mutant of a case, rounded to `dtype`; the arithmetic is float32.

    Args:
        case: with inputs as kernels have them, see `inputs.rounded`.
    """
    if own.has(case):
        if boundaries.long(case):
            yield from boundaries.mutants(case, dtype)
            return
        if not erase_chunks.long(case):
            yield from own.mutants(case, dtype)
            yield from erase_layout.mutants(case, dtype)
        if erase_chunks.has(case):
            yield from erase_chunks.mutants(case, dtype)
        return
    if boundaries.long(case):
        yield from boundaries.mutants(case, dtype)
        return
    at = seen(case)
    if SUBJECTS[case.header.rule].has_axes:
        yield from _conventions(case, dtype)
    for mistake in mistakes(case, at):
        yield mistake.name, computed(case, mistake, dtype)
    if at is not None:
        yield from _chunks(at, dtype)
        yield from _cuts(at, dtype)


def words(name: str) -> str:
    """A mutant in words, for a reader."""
    meanings = {
        mistake.name: mistake.words
        for mistake in (
            *forward.MISTAKES,
            *backward.MISTAKES,
            *matrices.NEWTON_SCHULZ,
            *tensors.TOKENS,
            *tensors.MAPS,
        )
    }
    meanings |= (
        boundaries.named()
        | chunked.MISTAKES
        | erase_chunks.named()
        | erase_layout.named()
        | axes.named()
        | {lost: meaning for lost, (_, meaning) in LOST.items()}
    )
    return meanings.get(name) or own.words(name) or f"convention {name} in place of the case's"


# -- conventions -----------------------------------------------------------------------------------


def _conventions(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    spanned = case
    if SUBJECTS[case.header.rule].has_tokens and case.header.span is None:
        spanned = case.replaced(header=case.header.replaced(span=SPAN))
    points = conventions(spanned)
    names = list(points)
    with np.errstate(all="ignore"):
        inputs = converted(case, "float32")
        for numbers, results in candidates.evaluated(
            spanned, inputs, [lattice.convention(points[name]) for name in names]
        ):
            for place, number in enumerate(numbers):
                yield (
                    names[number],
                    {
                        name: rounded(np.asarray(value[place]), dtype)
                        for name, value in results.items()
                    },
                )


def conventions(case: Case) -> dict[str, lattice.Point]:
    """Conventions one change away that a case can tell from its own, by their change."""
    of, own = facts(case), lattice.point(case.convention)
    folded, points = lattice.folded(of, own), {}
    for point in lattice.around(own, tried(case), 1):
        if lattice.folded(of, point) != folded and refusal(of, lattice.convention(point)) is None:
            points[change_named(lattice.changes(own, point))] = point
    return points


def tried(case: Case) -> dict[str, tuple[Any, ...]]:
    """The values of every axis that are mutants, the case's own among them.

    A younger axis is tried where the case has another value of it than the first (VEC-25).
    """
    c = case.convention
    plain = {axis for axis in YOUNGER if getattr(c, axis) == lattice.values()[axis][0]}
    listed = lattice.tried(c, case.header.rule)
    return {axis: values for axis, values in listed.items() if axis not in {*FINE, *plain}}


def change_named(changes: dict[str, Any]) -> str:
    """A convention as the one change that makes it: axis=value."""
    axis, value = next(iter(changes.items()))
    return f"{axis}={value:g}" if isinstance(value, float) else f"{axis}={value}"


# -- mistakes --------------------------------------------------------------------------------------


def mistakes(case: Case, at: Seen | None) -> list[Mistake]:
    """Mistakes that can be made in a case."""
    grad = any(name in case.inputs for name in ("in/y_bar", "in/X_bar", "in/phi_bar"))
    listed = [*tensors.mistakes(case), *axes.mistakes(case, at)]
    if at is not None:
        listed += [each for each in (*forward.MISTAKES, *backward.MISTAKES) if each.made_in(at)]
    if case.convention.has_newton_schulz:
        listed += [each for each in matrices.NEWTON_SCHULZ if at is None or each.made_in(at)]
    return [each for each in listed if grad or not each.grad]


def _chunks(at: Seen, dtype: str) -> Iterator[tuple[str, Results]]:
    for name in chunked.MISTAKES:
        if chunked.made_in(at, name):
            yield name, chunk_form(at, dtype, name)


def chunk_form(at: Seen, dtype: str, wrong: str | None = None) -> Results:
    """Results of the chunk form, perhaps with a mistake."""
    with np.errstate(all="ignore"):
        outputs = chunked.run(at.inputs, at.structure.reference, wrong)
        results = memory.named(at.case, outputs)
        return {name: rounded(np.asarray(value), dtype) for name, value in results.items()}


def _needed(at: Seen, name: str) -> bool:
    """Whether the second call depends on the results that are lost.

    momentum_then_window does not look at the window (CONV-16). Under call_start a stored residual
    is the same as one computed again, so that its position decides nothing (CONV-14).
    """
    if name == "window lost at a cut":
        return at.structure.order == "window_then_momentum"
    return (
        name not in ("phase lost at a cut", "residuals lost at a cut")
        or at.structure.frozen == "chunk_start"
    )


def _cuts(at: Seen, dtype: str) -> Iterator[tuple[str, Results]]:
    """Results of two calls in float32, with a state lost between them."""
    case, places = at.case, split.places(at.case)
    if not places:
        return
    place = places[len(places) // 2]
    tokens = at.tokens
    head, _ = split.in_two(case, place)
    before = evaluate(head, dtype="float32")
    for name, (lost, _) in LOST.items():
        if not set(lost) & {*before.tensors, *before.header} or not _needed(at, name):
            continue
        try:
            tail = evaluate(
                split.resumed(case, before, range(place, tokens), lost=lost), dtype="float32"
            )
        except CaseError:  # the convention cannot do without it
            continue
        results = split.joined(before.tensors, tail.tensors)
        yield (
            name,
            {
                each: rounded(value, dtype)
                for each, value in results.items()
                if each in ("out/y", "out/M", "out/S")
            },
        )
