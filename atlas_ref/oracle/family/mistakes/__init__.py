"""Mistakes that a program of the base family can make, which mutants and identify share.

Those of a vector set are a selection of them (VEC-16); identify tries all (IDENT-17). The order of
the list is that in which mistakes which are one function of a case are told.
"""

from __future__ import annotations

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.mistake import Mistake, Seen, see
from atlas_ref.oracle.family.mistakes import (
    backward,
    boundaries,
    bounds,
    ceiling,
    chunked,
    cuts,
    fading,
    forward,
    maps,
    matrices,
    momenta,
    surrogate,
    tensors,
)
from atlas_ref.oracle.registry import SUBJECTS

#: Modules of mistakes of a memory, each of one axis that came after the first sets (VEC-25).
AXES = (momenta, fading, bounds, ceiling, surrogate)

#: Mistakes that are the same in every case in which they can be made.
FIXED: tuple[Mistake, ...] = (
    *forward.MISTAKES,
    *backward.MISTAKES,
    *matrices.NEWTON_SCHULZ,
    *tensors.TOKENS,
    *tensors.MAPS,
)


def mistakes(case: Case) -> list[Mistake]:
    """Every mistake that can be made in a case, but those at the starts of chunks of a long one.

    Mistakes of the backward pass are listed where the case has a cotangent.
    """
    grad = any(name in case.inputs for name in ("in/y_bar", "in/X_bar", "in/phi_bar"))
    at = see(case)
    listed = [*tensors.mistakes(case), *of_axes(case, at)]
    if at is not None:
        listed += [each for each in (*forward.MISTAKES, *backward.MISTAKES) if each.made_in(at)]
    if case.convention.has_newton_schulz:
        listed += [each for each in matrices.NEWTON_SCHULZ if at is None or each.made_in(at)]
    if at is not None:
        listed += [*chunked.mistakes(at), *cuts.mistakes(at)]
    return [each for each in listed if grad or not each.grad]


def every(case: Case) -> list[Mistake]:
    """Mistakes that can be made in a case and are no other case, those of chunks last (IDENT-17)."""
    at_chunks = boundaries.mistakes(case) if SUBJECTS[case.header.rule].has_sequence else []
    listed = [each for each in (*mistakes(case), *at_chunks) if each.case is None]
    end = case.convention.read == "call_end"
    return [each._replace(words=each.as_if, whole=each.whole or end) for each in listed]


def of_axes(case: Case, at: Seen | None) -> list[Mistake]:
    """Mistakes of the younger axes of a case; none where it has their first values (VEC-25)."""
    of_memory = AXES if at is not None else ()
    return [*maps.mistakes(case), *(each for kind in of_memory for each in kind.mistakes(at))]


def words_by_name() -> dict[str, str]:
    """Every mistake in words, by its name."""
    words = {each.name: each.words for each in FIXED} | chunked.MISTAKES
    for kind in (boundaries, *AXES, maps, cuts):
        words |= kind.words_by_name()
    return words
