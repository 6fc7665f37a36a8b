"""Every reading of a case of rule dplr: settings, and mistakes that can be made in it."""

from __future__ import annotations

from collections.abc import Sequence

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.dplr.program import read
from atlas_ref.oracle.dplr.readings import (
    axes,
    calls,
    factors,
    forms,
    habits,
    inside,
    rows,
    slopes,
)
from atlas_ref.oracle.program.reading import Reading


def settings(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
    """Every other value of every setting, one at a time, beside some readings (DPLRCASE-9)."""
    return list(axes.settings(read(case, case.inputs, chosen)))


def mistakes(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
    """Mistakes that can be made in a case beside some readings (DPLRCASE-10)."""
    return habits.habits(read(case, case.inputs, chosen))


def further(case: Case) -> list[Reading]:
    """Mistakes that are tried where no setting and no other mistake explains results (DPLRCASE-25)."""
    context = read(case, case.inputs)
    values = [
        *factors.mistakes(context),
        *forms.mistakes(context),
        *calls.mistakes(context),
        *rows.mistakes(context),
        *inside.mistakes(context),
    ]
    graded = "in/y_bar" in context.inputs or "in/M_bar" in context.inputs
    return [*values, *(slopes.mistakes(context) if graded else [])]


def presets(case: Case) -> dict[str, list[Reading]]:
    """Whole readings that have a name: none, a member is a setting."""
    return {}


def keeps(case: Case, each: Reading) -> bool:
    """Whether a reading has the shapes of the case's trace (DPLRCASE-12)."""
    context = read(case, case.inputs)
    return context.square or "state_layout" not in each.settings
