"""The derivation of a tolerance as JSON (TOL-10)."""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.tolerance import FLOOR, MARGINAL, PASS, Tolerance


def plain(found: Tolerance, case: str) -> dict[str, Any]:
    """The derivation as JSON."""
    return {
        "case": case,
        "tensor": found.name,
        "dtype": found.dtype,
        "ensemble": {member: error._asdict() for member, error in found.ensemble.items()},
        "floor": found.floor._asdict(),
        "units": FLOOR,
        "amplification": found.amplification,
        "tolerance": found.norms._asdict(),
        "pass": PASS,
        "marginal": MARGINAL,
        "cannot_separate": list(found.merged),
        "note": found.note,
    }
