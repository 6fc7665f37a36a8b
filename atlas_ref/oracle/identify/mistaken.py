"""Mistakes of programs of the base family, tried where nothing else explains results (IDENT-17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family import mistakes
from atlas_ref.oracle.family.mistake import run
from atlas_ref.oracle.identify.departed import Departed
from atlas_ref.oracle.identify.observation import Observation
from atlas_ref.oracle.identify.readings import Search
from atlas_ref.oracle.identify.readings.judge import Judge
from atlas_ref.oracle.judge.tolerance import Tolerance, with_member
from atlas_ref.oracle.norms import norms, round_to
from atlas_ref.oracle.subjects.subject import Searched
from atlas_ref.types import Array

#: The mistakes of the base family as a subject with readings of its own has them.
SEARCHED = Searched(
    settings=lambda case, chosen=(): [],
    departures=lambda case, chosen=(): [],
    presets=lambda case: {},
    run=run,
    keeps=lambda case, reading: True,
    named=mistakes.words_by_name(),
    word="",
    further=mistakes.every,
)


class _Judge(Judge):
    """A judge that knows programs in the place of the loop, which have no arithmetic to choose."""

    def results(self, chosen: Sequence[Any], *, grad: bool) -> Mapping[str, Array]:
        program = chosen[0].program if chosen else None
        if program is None:
            return super().results(chosen, grad=grad)
        key = (chosen[0].name, grad)
        if key not in self.kept:
            self.kept[key] = program("float64")
        return self.kept[key]

    def tolerances(self, chosen: Sequence[Any], *, grad: bool) -> dict[str, Tolerance]:
        """For a program, those of the case's own reading, with its own rounding as a member."""
        program = chosen[0].program if chosen else None
        if program is None:
            return super().tolerances(chosen, grad=grad)
        wide, narrow = self.results(chosen, grad=grad), program("float32")
        found = super().tolerances((), grad=grad)
        for name, each in found.items():
            if each.dtype != "float64" and name in wide:
                error = norms(
                    np.asarray(round_to(narrow[name], each.dtype), np.float64) - wide[name]
                )
                found[name] = with_member(each, "the program", error)
        return found


def mistaken(
    case: Case, observation: Observation, *, backward: bool, progress: Progress = unwatched
) -> tuple[tuple[Departed, ...], tuple[str, ...]]:
    """Mistakes under which ours equals the results, and what failed in words (IDENT-17, IDENT-18).

    Args:
        backward: whether values are right, so that mistakes of the backward pass are tried. Else
            values alone decide, where there are some.
    """
    values = observation.values
    if values and not backward:
        observation = Observation(values, {}, {n: observation.dtypes[n] for n in values}, ())
    search = Search(case, observation, SEARCHED, progress)
    search.judge = _Judge(case, observation, SEARCHED)
    with np.errstate(all="ignore"):  # a mistake may overflow
        found = search.departures(search.own, further=True)
    return tuple(found), tuple(dict.fromkeys(search.failed))
