"""Every reading of a case of a deep memory: settings, and mistakes that can be made in it."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.deep.readings.axes import AXES
from atlas_ref.oracle.deep.readings.backward import BACKWARD
from atlas_ref.oracle.deep.readings.events import EVENTS
from atlas_ref.oracle.deep.readings.function import FUNCTION
from atlas_ref.oracle.deep.readings.reading import Reading, readings, seen
from atlas_ref.oracle.deep.readings.tokens import TOKENS
from atlas_ref.oracle.deep.readings.write import WRITE

#: Mistakes of the forward pass, and of the outer gradient.
FORWARD: tuple[Reading, ...] = (*FUNCTION, *WRITE, *TOKENS, *EVENTS)
MISTAKES: tuple[Reading, ...] = (*FORWARD, *BACKWARD)


def settings(case: Any) -> list[Reading]:
    """Every other value of every axis, one at a time (DEEPCASE-14)."""
    return list(readings(seen(case), AXES))


def mistakes(case: Any) -> list[Reading]:
    """Mistakes that can be made in a case; those of the gradient where it has cotangents."""
    at, graded = seen(case), "in/y_bar" in case.inputs
    return [each for each in MISTAKES if (graded or not each.grad) and each.made_in(at)]
