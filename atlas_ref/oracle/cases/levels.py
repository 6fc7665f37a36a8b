"""Levels of a block as cases of their own, and schedules: which level writes at which token.

Specified in specs/case.md (CASE-30, CASE-32).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.conventions import resolve
from atlas_ref.oracle.cases.tensor_spec import LONGEST
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: What every level of a block shares.
SHARED = ("in/x", "in/reset")


def count(header: Any) -> int:
    return len(header.levels or ())


def inputs_of(header: Any, inputs: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The inputs that one level would have as a case of its own (CASE-32)."""
    prefix = f"in/level{number}/"
    own = {
        "in/" + name.removeprefix(prefix): value
        for name, value in inputs.items()
        if name.startswith(prefix)
    }
    return with_schedule(
        header.of_level(number),
        {**{name: inputs[name] for name in SHARED if name in inputs}, **own},
    )


def parts(case: Case) -> list[Any]:
    """The levels of a valid block as cases of their own."""
    cases = []
    for number in range(count(case.header)):
        header = case.header.of_level(number)
        convention = resolve(header.convention, rule=header.rule, level="token")
        inputs = inputs_of(case.header, case.inputs, number)
        cases.append(
            case.replaced(header=header, convention=convention, inputs=inputs, recorded={})
        )
    return cases


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
    if file_mask is not None and len(file_mask.shape) > 1:
        raise ValueError(
            f"in/active: by row, of shape {tuple(file_mask.shape)}, where the schedule says it for all "
            "rows; leave it out, or the schedule"
        )
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
