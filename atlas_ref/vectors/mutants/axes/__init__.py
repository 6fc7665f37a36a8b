"""Mistakes that go with the axes which came after the first sets (VEC-25)."""

from __future__ import annotations

from atlas_ref.oracle.cases.case import Case
from atlas_ref.vectors.mutants.axes import bounds, ceiling, fading, maps, momenta, surrogate
from atlas_ref.vectors.mutants.mistake import Mistake, Seen

#: Modules of mistakes of a memory, each of one axis.
KINDS = (momenta, fading, bounds, ceiling, surrogate)


def mistakes(case: Case, at: Seen | None) -> list[Mistake]:
    """Mistakes of the younger axes of a case; none where it has their first values."""
    of_memory = KINDS if at is not None else ()
    return [*maps.mistakes(case), *(each for kind in of_memory for each in kind.mistakes(at))]


def named() -> dict[str, str]:
    """Mistakes in words, by name."""
    return {name: words for kind in (*KINDS, maps) for name, words in kind.named().items()}
