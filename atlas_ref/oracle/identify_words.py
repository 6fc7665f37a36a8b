"""Conventions as options of the command line, and what `identify` says as JSON (IDENT-9)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.identify import Fit, Identification


def setting(changes: Mapping[str, Any]) -> str:
    """A convention or changes of one, as the option --convention takes them."""
    return " ".join(_option(axis, value) for axis, value in changes.items()) or "spec"


def _option(axis: str, value: Any) -> str:
    if axis == "preset":
        return str(value)
    if isinstance(value, Mapping):
        return " ".join(f"{axis}.{key}={shown(each)}" for key, each in value.items()) or f"{axis}={{}}"
    return f"{axis}={shown(value)}"


def shown(value: Any) -> str:
    """A value as an option takes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def plain(found: Identification, out: str, decided: str = "") -> dict[str, Any]:
    """The report as JSON."""
    return {
        "case": found.case,
        "out": out,
        "exit": found.exit_code,
        "verdict": found.verdict,
        "why": found.why,
        "match": _fit(found.match),
        "preset": found.preset,
        "own": found.own,
        "runner_up": _fit(found.runner_up),
        "times_worse": found.times_worse,
        "undecided": found.undecided,
        "indistinguishable": [{"changes": twin.changes, "reason": twin.reason, "distance": twin.distance} for twin in found.twins],
        "void": dict(sorted(found.void.items())),
        "not_tried": found.untried,
        "not_used": list(found.unused),
        "searched": found.searched,
        "deciding_case": decided or None,
    }


def _fit(fit: Fit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    return {
        "convention": fit.convention,
        "option": setting(fit.convention),
        "distance": fit.distance,
        "error_over_tolerance": fit.ratio,
        "tensor": fit.tensor,
    }
