"""Every reading of a case of a TNT: settings, presets, and mistakes that can be made in it."""

from __future__ import annotations

from collections.abc import Sequence

from atlas_ref.forms import tnt
from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.tnt.readings import axes, habits
from atlas_ref.oracle.tnt.readings.reading import Reading, Seen, read
from atlas_ref.oracle.tnt.settings import settings_of


def settings(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
    """Every other value of every axis, one at a time, beside some readings (TNTCASE-12)."""
    return list(axes.settings(read(case, case.inputs, chosen)))


def presets(case: Case) -> dict[str, list[Reading]]:
    """What a case changes to be a reading of the paper (TNT-12)."""
    at = Seen(settings_of(case), case.inputs)
    found = {}
    for name in tnt.PRESETS:
        made = axes.of_preset(at, name)
        if made is not None:
            found[name] = made
    return found


def mistakes(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
    """Mistakes that can be made in a case beside some readings.

    Those of the gradient are, where it has cotangents.
    """
    return habits.habits(read(case, case.inputs, chosen))
