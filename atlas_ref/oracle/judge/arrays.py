"""The verdict on one array against ours: by the fixed tolerance of float64, or a measured one.

Specified in specs/case.md and specs/tolerance.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from atlas_ref.oracle.cases.inputs import STORED
from atlas_ref.oracle.judge.states import gap, holds
from atlas_ref.oracle.judge.tolerance import MARGINAL, PASS, Tolerance, basis
from atlas_ref.oracle.judge.verdicts import Comparison, Verdict
from atlas_ref.oracle.norms import FORMATS, Norms, norms, round_to
from atlas_ref.types import Array

#: ||got - want|| / ||want|| allowed for results in float64 (CASE-20), and its basis in words.
TOLERANCE = 1e-12
BASIS = "fixed for float64 (CASE-20)"


def compare_arrays(
    case: str,
    name: str,
    got: Array,
    want: Array,
    tolerance: float = TOLERANCE,
    basis: str = BASIS,
) -> Comparison:
    """The verdict on one array against ours, by the tolerance of float64 (CASE-20, CASE-21)."""
    row = Comparison(case, name, "WRONG", tolerance=tolerance, basis=basis)
    if got.shape != want.shape:
        return _of_other_shape(
            row, got, want, lambda x: compare_arrays(case, name, x, want, tolerance, basis)
        )
    if is_whole(want):
        return _compared_exactly(row, got, want)
    if got.dtype.name not in STORED:
        why = f"no tolerance is stated for {got.dtype.name}"
        return row._replace(verdict="UNDECIDABLE", tolerance=None, basis="", why=why)
    if want.size == 0:  # the keys that a window of one key leaves
        return row._replace(verdict="PASS", error=0.0)
    got, want = got.astype(np.float64), want.astype(np.float64)
    bad = first_true(~np.isfinite(got))
    if bad is not None:
        return row._replace(
            place=bad, got=float(got[bad]), want=float(want[bad]), why=f"{got[bad]} at {bad}"
        )
    bad = first_true(~np.isfinite(want))
    if bad is not None:
        why = f"ours is {want[bad]} at {bad}: the rule itself gives no finite number here"
        return row._replace(
            verdict="UNDECIDABLE", place=bad, got=float(got[bad]), want=float(want[bad]), why=why
        )
    with np.errstate(over="ignore"):
        place = first_true(np.abs(got - want) == np.max(np.abs(got - want), initial=0.0)) or ()
    error = relative_error(got, want)
    word: Verdict = "PASS" if error <= tolerance else "WRONG"
    return row._replace(
        verdict=word, error=error, place=place, got=float(got[place]), want=float(want[place])
    )


def _of_other_shape(
    row: Comparison, got: Array, want: Array, judge: Callable[[Array], Comparison]
) -> Comparison:
    """The row of a result that has not our shape, with what would make it right (CASE-21)."""
    from atlas_ref.oracle.judge.layouts import other_shape  # which a right answer does not need

    return row._replace(why=other_shape(got, want, lambda moved: judge(moved).verdict == "PASS"))


def is_whole(x: Array) -> bool:
    """Whether results are whole numbers or a mask, which have no tolerance."""
    return x.dtype.kind in "biu"


def _compared_exactly(row: Comparison, got: Array, want: Array) -> Comparison:
    """The verdict on whole numbers or masks, which must be equal (LAYER-10)."""
    row = row._replace(tolerance=None, basis="")
    if got.dtype.kind not in "biu":
        return row._replace(why=f"dtype {got.dtype.name}, whole numbers are needed")
    bad = first_true(got != want)
    if bad is None:
        return row._replace(verdict="PASS", error=0.0)
    return row._replace(
        place=bad,
        got=float(got[bad]),
        want=float(want[bad]),
        why=f"{int(got[bad])} at {bad}, expected {int(want[bad])}",
    )


def relative_error(got: Array, want: Array) -> float:
    """||got - want|| / ||want||; ||got|| where want is 0; NaN or infinity where the gap has one.

    Right at any scale: the norms are taken of arrays scaled to 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        gap, gap_norm = _scaled_norm(got - want)
    size, size_norm = _scaled_norm(want)
    if gap == 0.0 or not math.isfinite(gap):
        return gap
    return gap * gap_norm if size == 0.0 else (gap / size) * (gap_norm / size_norm)


def _scaled_norm(x: Array) -> tuple[float, float]:
    """The largest magnitude, and the norm of x divided by it."""
    top = float(np.max(np.abs(x), initial=0.0))
    return (top, float(np.linalg.norm(x / top))) if 0.0 < top < math.inf else (top, 0.0)


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
        return _of_other_shape(
            row, got, want, lambda x: judged(case_name, name, x, want, tolerance)
        )
    if got.dtype.name not in FORMATS:
        return row._replace(
            verdict="UNDECIDABLE", why=f"no tolerance is stated for {got.dtype.name}"
        )
    got, want = got.astype(np.float64), want.astype(np.float64)
    handed = tolerance.handed if tolerance.handed and holds(got, tolerance.handed) else ""
    kind, merged = (
        (handed, tolerance.merged_handed) if handed else (tolerance.dtype, tolerance.merged)
    )
    beyond = np.isinf(got) & np.isfinite(want) & (round_to(want, kind) == got)
    sides: tuple[tuple[Array, Verdict, str], ...] = (
        (got, "WRONG", ""),
        (want, "UNDECIDABLE", "ours is "),
    )
    for array, verdict, whose in sides:
        bad = first_true(~np.isfinite(array) & ~beyond)
        if bad is not None:
            why = f"{whose}{array[bad]} at {bad}" + (
                ": the rule itself gives no finite number here" if whose else ""
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
