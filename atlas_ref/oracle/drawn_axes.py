"""How a sweep draws a convention: presets, a few axes, settings of Newton-Schulz.

Specified in specs/sweep.md, SWEEP-2. What came after draw 2 is stated, not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from atlas_ref.conventions import PRESETS, Convention
from atlas_ref.oracle.drawing import Space, one

#: Presets and axes of every rule that are stated, not drawn: they came after draw 2, which would be
#: another draw with them (SWEEP-2).
LATER = (
    "nl-hecate-clamp",
    "norm_eps",
    "norm_guard",
    "momentum_kind",
    "retain_bounds",
    "step_bounds",
    "memory_ceiling",
)

#: Values of axes that are stated, not drawn, for the same reason.
LATER_VALUES = {"reference": ("surrogate",)}

#: Values of the axes that take numbers; the others list theirs themselves.
NUMBERS: Space = {
    "gradient_scale": (1.0, 2.0, 0.5, "2/d_out"),
    "query_scale": (1.0, "1/sqrt(d_in)"),
}

#: Values of each setting of Newton-Schulz.
NEWTON_SCHULZ: Space = {
    "coefficients": ("muon", "cubic", "polar_express"),
    "steps": (5, 1, 3),
    "eps": (1e-7, 1e-2),
    "norm_factor": (1.0, 1.25),
    "guard": ("add", "clamp", "return"),
    "transpose": ("tall", "never"),
    "scale": ("1", "sqrt", "norm"),
    "argument": ("S", "nesterov", "written_back", "accumulated"),
}


def preset(draw: np.random.Generator, share: float) -> str:
    """A preset in a share of the cases, else `spec`."""
    presets = [name for name in PRESETS if name not in LATER]
    return str(one(draw, presets)) if draw.uniform() < share else "spec"


def axes(
    draw: np.random.Generator, *, idle: Sequence[str] = (), values: Space = NUMBERS
) -> dict[str, Any]:
    """Up to three axes changed.

    Args:
        idle: axes that the rule does not have.
        values: those of some axes, where they are not all that the axis lists.
    """
    changes: dict[str, Any] = {}
    drawn = [a for a in Convention.model_fields if a not in ("newton_schulz", *idle, *LATER)]
    for _ in range(int(draw.integers(4))):
        axis = str(one(draw, drawn))
        changes[axis] = one(draw, choices(axis, values))
    return changes


def choices(axis: str, values: Space = NUMBERS) -> Sequence[Any]:
    """Values of an axis that are drawn, the default first."""
    words = get_args(Convention.model_fields[axis].annotation)
    return values.get(axis) or tuple(w for w in words if w not in LATER_VALUES.get(axis, ()))


def newton_schulz(
    draw: np.random.Generator, values: Mapping[str, Sequence[Any]] = NEWTON_SCHULZ
) -> Any:
    """none in half of the cases, else a quarter of the settings."""
    settings = {key: one(draw, each) for key, each in values.items() if draw.uniform() < 0.25}
    return "none" if draw.uniform() < 0.5 else settings
