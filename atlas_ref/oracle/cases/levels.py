"""Schedules of a case: which level writes at which token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.subjects.subject import LONGEST
from atlas_ref.types import Array


def active(schedule: Any, tokens: int) -> Array:
    """Mask (T, k) of the tokens at which each level writes: step mod period is 0 (PULSE-2)."""
    steps = schedule.first_step + np.arange(tokens)
    return np.stack([steps % period == 0 for period in schedule.periods], axis=-1)


def with_schedule(header: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with `in/active` from the schedule of the case (CASE-30).

    Raises:
        ValueError: an `in/active` that says something else; a step that results could not name.
    """
    sequence = inputs.get("in/x" if header.level == "token" else "in/k")
    if header.schedule is None or sequence is None or len(sequence.shape) < 2:
        return dict(inputs)
    check_step(header.schedule, sequence.shape[-2])
    mask = active(header.schedule, sequence.shape[-2])[:, header.schedule.level].astype(np.uint8)
    file_mask = inputs.get("in/active")
    if (
        file_mask is not None
        and file_mask.shape == mask.shape
        and file_mask.dtype.kind in "bu"
        and (file_mask != mask).any()
    ):
        t = int(np.argmax(file_mask != mask))
        raise ValueError(
            f"in/active: {int(file_mask[t])} at token {t}, where the schedule says {mask[t]}; "
            "leave it out, or the schedule"
        )
    return {**inputs, "in/active": mask if file_mask is None else file_mask}


def check_step(schedule: Any, tokens: int) -> None:
    """Refuse a step after the last token that results could not name (CASE-2, CASE-30).

    Raises:
        ValueError: names the first step and the number of tokens.
    """
    if len(str(schedule.first_step + tokens)) > LONGEST:
        raise ValueError(
            f"schedule.first_step: {schedule.first_step}, the step after {tokens} tokens has "
            f"more than {LONGEST} digits"
        )
