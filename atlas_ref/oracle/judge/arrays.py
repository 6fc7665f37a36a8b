"""The verdict on one array against ours.

Specified in specs/tolerance.md.
"""

from __future__ import annotations

import numpy as np

from atlas_ref.oracle.judge.norms import FORMATS, Norms, norms, rounded
from atlas_ref.oracle.judge.states import gap, holds
from atlas_ref.oracle.judge.tolerance import MARGINAL, PASS, Tolerance, basis
from atlas_ref.oracle.judge.verdicts import Comparison, Verdict
from atlas_ref.types import Array


def judged(case_name: str, name: str, got: Array, want: Array, tolerance: Tolerance) -> Comparison:
    """The verdict on one array: the worst of three norms, in multiples of the tolerance (TOL-1,
    TOL-6).

    Args:
        got: as it was handed over, in any floating dtype.
        want: ours, float64.

    Returns:
        a comparison whose `error` and `tolerance` are those of the norm that decides; PASS is an
        error of up to two tolerances, MARGINAL of up to four.
    """
    row = Comparison(case_name, name, "WRONG", basis=basis(tolerance))
    if got.shape != want.shape:
        return row._replace(why=f"shape {got.shape}, expected {want.shape}")
    if got.dtype.name not in FORMATS:
        return row._replace(
            verdict="UNDECIDABLE", why=f"no tolerance is stated for {got.dtype.name}"
        )
    got, want = got.astype(np.float64), want.astype(np.float64)
    handed = tolerance.handed if tolerance.handed and holds(got, tolerance.handed) else ""
    kind, merged = (
        (handed, tolerance.merged_handed) if handed else (tolerance.dtype, tolerance.merged)
    )
    beyond = np.isinf(got) & np.isfinite(want) & (rounded(want, kind) == got)
    sides: tuple[tuple[Array, Verdict, str], ...] = (
        (got, "WRONG", ""),
        (want, "UNDECIDABLE", "ours is "),
    )
    for array, verdict, whose in sides:
        bad = first_true(~np.isfinite(array) & ~beyond)
        if bad is not None:
            why = f"{whose}{array[bad]} at {bad}" + (
                ": the rule itself overflows here" if whose else ""
            )
            return row._replace(
                verdict=verdict, place=bad, got=float(got[bad]), want=float(want[bad]), why=why
            )
    with np.errstate(over="ignore"):
        distance = np.where(beyond, 0.0, gap(got, want, handed))
    error = norms(distance)
    ratio = error.over(tolerance.norms)
    place = first_true(distance == np.max(distance, initial=0.0)) or ()
    norm = decisive(error, tolerance.norms)
    row = row._replace(
        error=getattr(error, norm),
        tolerance=getattr(tolerance.norms, norm),
        basis=basis(tolerance, norm)
        + (f", beside half a unit of {handed} in which it was handed over" if handed else ""),
    )
    if got.size:
        row = row._replace(place=place, got=float(got[place]), want=float(want[place]))
    if ratio <= PASS and beyond.any():
        place = first_true(beyond) or ()
        why = f"ours is {want[place]:.6g} at {place}, which {kind} cannot hold"
        return row._replace(
            verdict="UNDECIDABLE",
            place=place,
            got=float(got[place]),
            want=float(want[place]),
            why=why,
        )
    if ratio <= PASS and merged:
        why = f"{kind} cannot separate ours from {'; '.join(merged)}"
        return row._replace(verdict="UNDECIDABLE", why=why)
    word: Verdict = "PASS" if ratio <= PASS else "MARGINAL" if ratio <= MARGINAL else "WRONG"
    return row._replace(verdict=word)


def decisive(error: Norms, bound: Norms) -> str:
    """The norm whose quotient is worst."""
    return max(
        Norms._fields,
        key=lambda norm: Norms.over(
            *(Norms(*[getattr(each, norm)] * 3) for each in (error, bound))
        ),
    )


def first_true(where: Array) -> tuple[int, ...] | None:
    """Index of the first True, or None."""
    return (
        tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))
        if where.any()
        else None
    )
