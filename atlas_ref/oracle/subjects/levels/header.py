"""Checks of the header of a block: what it needs, and what each level has for itself (CASE-31)."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from atlas_ref.messages import first_problem
from atlas_ref.oracle.cases.tensor_spec import BLOCK
from atlas_ref.oracle.subjects.base.header import check_given_gates
from atlas_ref.oracle.subjects.levels import learned, nested


def check_header(header: Any) -> None:
    """Refuse keys that each level has for itself, and schedules that do not fit the levels.

    Raises:
        ValueError: names the key or the level, what was found and what is needed.
    """
    check_given_gates(header)
    if header.level != "token":
        raise ValueError(
            f"level: rule {BLOCK} takes tokens, so token is needed, found {header.level}"
        )
    for key in ("window", "span", "phase", "convention", "feature_map", "window_weights"):
        if key in header.model_fields_set:
            raise ValueError(f"{key}: each level of rule {BLOCK} has its own")
    if header.levels is None:
        raise ValueError(f"levels: missing, rule {BLOCK} needs them")
    if header.schedule is None:
        raise ValueError(f"schedule: missing, rule {BLOCK} needs the periods of its levels")
    _check_schedule(header)
    for number in range(len(header.levels)):
        try:
            header.of_level(number)
        except ValidationError as error:
            raise ValueError(f"levels[{number}]: {first_problem(error)}") from None


def _check_schedule(header: Any) -> None:
    schedule, levels = header.schedule, header.levels
    if schedule.level is not None:
        raise ValueError(f"schedule.level: rule {BLOCK} has all levels, found {schedule.level}")
    if len(schedule.periods) != len(levels):
        raise ValueError(
            f"schedule.periods: {len(schedule.periods)} periods for {len(levels)} levels"
        )
    if header.nested:
        nested.check_header(header)
    if schedule.learned is not None:
        learned.check_header(header)
    if header.combine == "masked" and 1 not in schedule.periods:
        raise ValueError("combine: masked needs a level of period 1")
