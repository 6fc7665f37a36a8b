"""Every reading of a case of a deep memory: settings, and mistakes that can be made in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.deep.readings import reading
from atlas_ref.oracle.deep.readings.axes import AXES
from atlas_ref.oracle.deep.readings.backward import BACKWARD
from atlas_ref.oracle.deep.readings.events import EVENTS
from atlas_ref.oracle.deep.readings.function import FUNCTION
from atlas_ref.oracle.deep.readings.losses import LOSSES
from atlas_ref.oracle.deep.readings.momenta import MOMENTA
from atlas_ref.oracle.deep.readings.reading import Reading, readings, seen
from atlas_ref.oracle.deep.readings.retained import RETAINED
from atlas_ref.oracle.deep.readings.tokens import TOKENS
from atlas_ref.oracle.deep.readings.write import WRITE
from atlas_ref.oracle.deep.write import Rounding
from atlas_ref.types import Array

#: Mistakes of the forward pass, of the outer gradient, and of what a user chooses of a write.
FORWARD: tuple[Reading, ...] = (*FUNCTION, *WRITE, *MOMENTA, *TOKENS, *EVENTS)
KNOBS: tuple[Reading, ...] = (*LOSSES, *RETAINED)
MISTAKES: tuple[Reading, ...] = (*FORWARD, *BACKWARD, *KNOBS)


def settings(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
    """Every other value of every axis, one at a time, beside some readings (DEEPCASE-14)."""
    return list(readings(seen(case, chosen), AXES))


#: What the memories of MIRAS share: gradient descent at the weights of a span (DEEP-34).
MIRAS: dict[str, Any] = {"newton_schulz": "none", "reference": "chunk_start"}

#: Whole readings of public code and papers, by the settings that they change (DEEP-22, DEEP-34).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-mag": {
        "parameters.unfinished": "flush",
        "read": "call_end",
        "parameters.coupling": "batch_shared",
        "parameters.reduction": "mean",
        "parameters.fast": "all",
        "parameters.vectors": "unit",
    },
    "titans-pytorch": {
        "gradient_scale": "2/d_out",
        "rate": "momentum",
        "parameters.fast": "all",
        "parameters.vectors": "raw",
    },
    "moneta": {
        **MIRAS,
        "parameters.bias": {"kind": "lp"},
        "parameters.retention": {"kind": "lq"},
    },
    "yaad": {**MIRAS, "parameters.bias": {"kind": "huber"}, "parameters.retention": {"kind": "l2"}},
    "memora": {**MIRAS, "parameters.bias": {"kind": "l2"}, "parameters.retention": {"kind": "kl"}},
}


def presets(case: Case) -> dict[str, list[Reading]]:
    """The readings of each preset that differ from the case; atlas-mag writes once a call.

    Without memora where weights have no logarithms.
    """
    every = settings(case)
    tokens = case.inputs["in/k"].shape[-2]
    wanted = {
        name: {**axes, **({"parameters.chunk": tokens} if name == "atlas-mag" else {})}
        for name, axes in PRESETS.items()
    }
    return {
        name: [each for each in every if each.change.items() <= axes.items()]
        for name, axes in wanted.items()
        if not MIRAS.items() <= axes.items() or _possible(axes, every)
    }


def _possible(axes: Mapping[str, Any], every: Sequence[Reading]) -> bool:
    """Whether each value is that of the case or of a reading."""
    own = {axis: value for each in every for axis, value in each.before.items()}
    tried = [each.change for each in every]
    return all(
        axis not in own or own[axis] == value or {axis: value} in tried
        for axis, value in axes.items()
    )


def run(
    inputs: Mapping[str, Array], case: Case, rounding: Any, chosen: Sequence[Reading]
) -> dict[str, Array]:
    """Results of a case under some readings, as `Subject.plain` has them."""
    rounds = Rounding(
        rounding.way, rounding.touch, rounding.argument, rounding.store or Rounding().store
    )
    return reading.run(case, inputs, rounds, chosen=chosen)


def mistakes(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
    """Mistakes that can be made in a case beside some readings (DEEPCASE-15).

    Those of the gradient are, where it has cotangents.
    """
    at, graded = seen(case, chosen), "in/y_bar" in case.inputs
    return [each for each in MISTAKES if (graded or not each.grad) and each.made_in(at)]
