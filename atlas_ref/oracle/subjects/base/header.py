"""Checks of a header whose settings are its keys: of one memory, of Newton-Schulz, of a feature map.

Specified in specs/case.md (CASE-2).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.cases.tensor_spec import BLOCK, SEQUENCE_KEYS
from atlas_ref.rules import Rule, names_with


def check_header(header: Any, *, rule: Rule | None = None, has_feature_map: bool = False) -> None:
    """Refuse keys of other rules, and values that the rule does not have.

    Args:
        rule: of a memory; None where there is no sequence.
        has_feature_map: whether the header may choose one.

    Raises:
        ValueError: names the key, what was found and what is needed.
    """
    check_given_gates(header)
    _check_levels(header)
    for key in header.foreign_keys:
        raise ValueError(f"{key}: the rule {header.rule} has none")
    if rule is None:
        for key in SEQUENCE_KEYS:
            if key in header.model_fields_set:
                raise ValueError(f"{key}: the rule {header.rule} has no sequence")
    elif not rule.has_window and header.window != 1:
        raise ValueError(f"window: {header.rule} looks at one token, found {header.window}")
    if not has_feature_map and header.feature_map.kind != "identity":
        raise ValueError(f"feature_map: {header.rule} has none, found {header.feature_map.kind}")
    weighs = rule is not None and rule.has_window and header.level == "token"
    if header.window_weights is not None and not weighs:
        rules = " and ".join(names_with("has_window"))
        raise ValueError(f"window_weights: belongs to rule {rules} at level token")
    _check_schedule(header.schedule)


def check_given_gates(header: Any) -> None:
    """Refuse an axis of gates at level token, which computes them (GATES-15)."""
    if header.gate_axis is not None and header.level == "token":
        raise ValueError(
            f"gate_axis: belongs to given gates, at level projected, found {header.gate_axis}"
        )


def _check_levels(header: Any) -> None:
    """Refuse the keys of a block of levels."""
    for key in ("levels", "combine", "nested"):
        if key in header.model_fields_set:
            raise ValueError(f"{key}: belongs to rule {BLOCK}, this is {header.rule}")
    if header.schedule is not None and header.schedule.learned is not None:
        raise ValueError(
            f"schedule.learned: belongs to rule {BLOCK}, whose levels differ in who writes; "
            f"this is {header.rule}"
        )


def _check_schedule(schedule: Any) -> None:
    """Check that a schedule says which of its levels this memory is (CASE-30)."""
    if schedule is None:
        return
    if schedule.level is None or schedule.level >= len(schedule.periods):
        level = "none" if schedule.level is None else schedule.level
        raise ValueError(
            f"schedule.level: one of the {len(schedule.periods)} levels is needed, "
            f"from 0, found {level}"
        )
