"""Compare somebody's results with ours: one verdict per tensor. Specified in specs/case.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.case import Case, CaseError, differentiable
from atlas_ref.oracle.evaluate import evaluate, under
from atlas_ref.oracle.schema import result_names
from atlas_ref.oracle.tensors import RESULTS

Verdict = Literal["PASS", "WRONG", "MISSING", "UNDECIDABLE", "NOT SUPPORTED"]

#: ||got - want|| / ||want|| allowed for a tensor recorded in each dtype (CASE-20).
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}

#: The result that a rule exists for; its absence is a verdict.
MAIN_RESULT = {"newton_schulz": "out/X", "feature_map": "out/phi"}


class Comparison(NamedTuple):
    """The verdict on one tensor.

    Attributes:
        tensor: its name, `out/y`.
        error: ||got - want|| / ||want||, absolute where want is 0; None where nothing could be compared.
        tolerance: the error allowed, by the dtype of what was recorded.
        place: where |got - want| is largest, or the first entry that is not finite.
        got, want: the entries there.
        why: what is wrong in words, where the numbers do not say it.
    """

    case: str
    tensor: str
    verdict: Verdict
    error: float | None = None
    tolerance: float | None = None
    place: tuple[int, ...] | None = None
    got: float | None = None
    want: float | None = None
    why: str = ""


def check(
    case: Case,
    *,
    only: Sequence[str] | None = None,
    dtype: str = "float64",
    convention: str | Mapping[str, Any] | None = None,
    form: str = "sequential",
    chunk: int | None = None,
) -> list[Comparison]:
    """Compare the results recorded in a case with ours (CASE-23).

    Args:
        only: names to compare, with or without `out/` ("y", "M", "grad/k"); all that are recorded when None.
        dtype: arithmetic of ours: float64, which is the truth, or float32.
        convention: take ours under this convention instead of the case's: a preset, or axes that change the case's own.
        form, chunk: compute ours in this form, see `evaluate`.

    Raises:
        CaseError: the case records no results, or results that the rule does not have; `only` names what no rule has;
            a dtype or convention that does not exist; a form that does not compute the case.
    """
    wanted = None if only is None else chosen([only] if isinstance(only, str) else only)
    if not case.supported:
        return [Comparison(case.name, "-", "NOT SUPPORTED", why=f"rule {case.header.rule}: not yet supported")]
    if convention is not None:
        case = under(case, convention)
    if not case.recorded:
        raise CaseError(f"{case.name}: no out/... or grad/... tensor is recorded, so there is nothing to check")
    compared = [name for name in case.recorded if wanted is None or name in wanted]
    ours = evaluate(case, grad=any(name.startswith("grad/") for name in compared), dtype=dtype, form=form, chunk=chunk).tensors
    known = [*ours, *("grad/" + name.removeprefix("in/") for name in differentiable(case))]
    for name in case.recorded:
        if name not in known:
            alike = ", ".join(dict.fromkeys(n for n in known if n.startswith(name.split("/")[0] + "/")))
            raise CaseError(f"{case.name}: {name}: not a result of this case; it has {alike}")
    main = MAIN_RESULT.get(case.header.rule, "out/y")
    expected = {*compared, main} if wanted is None or main in wanted else {*compared}
    return [_compare(case, name, want) for name, want in ours.items() if name in expected]


def chosen(only: Sequence[str]) -> set[str]:
    """Full names of the results to compare.

    Raises:
        CaseError: a name that is no result of any rule.
    """
    wanted = {name if name.startswith(("out/", "grad/")) else f"out/{name}" for name in only}
    unknown = sorted(wanted - result_names())
    if unknown:
        raise CaseError(
            f"only: {unknown[0]}: no rule has such a result; results are {', '.join(RESULTS)}, and grad/ before an input's name"
        )
    return wanted


def _compare(case: Case, name: str, want: np.ndarray[Any, Any]) -> Comparison:
    if name not in case.recorded:
        return Comparison(case.name, name, "MISSING", why="this result is not recorded")
    return compare_arrays(case.name, name, case.recorded[name], want)


def compare_arrays(case: str, name: str, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> Comparison:
    """The verdict on one array against ours (CASE-20, CASE-21)."""
    kind = got.dtype.name
    verdict = Comparison(case, name, "WRONG", tolerance=TOLERANCE.get(kind))
    if got.shape != want.shape:
        return verdict._replace(why=f"shape {got.shape}, expected {want.shape}")
    undecided = verdict._replace(verdict="UNDECIDABLE", why=f"no tolerance is stated for {kind}")
    if kind not in ("float64", "float32", "float16", "bfloat16"):
        return undecided
    got, want = got.astype(np.float64), want.astype(np.float64)
    bad = _first(~np.isfinite(got))
    if bad is not None:
        return verdict._replace(place=bad, got=float(got[bad]), want=float(want[bad]), why=f"{got[bad]} at {bad}")
    bad = _first(~np.isfinite(want))
    if bad is not None:
        why = f"ours is {want[bad]} at {bad}: the rule itself overflows here"
        return verdict._replace(verdict="UNDECIDABLE", place=bad, got=float(got[bad]), want=float(want[bad]), why=why)
    if kind not in TOLERANCE:
        return undecided
    with np.errstate(over="ignore"):
        place = _first(np.abs(got - want) == np.max(np.abs(got - want), initial=0.0)) or ()
    error = relative_error(got, want)
    word: Verdict = "PASS" if error <= TOLERANCE[kind] else "WRONG"
    return verdict._replace(verdict=word, error=error, place=place, got=float(got[place]), want=float(want[place]))


def _first(where: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """Index of the first True."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)) if where.any() else None


def relative_error(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    """||got - want|| / ||want||; ||got|| where want is 0. At any scale: the norms are taken of what is scaled to 1."""
    with np.errstate(over="ignore"):
        gap, gap_norm = _scaled_norm(got - want)
    size, size_norm = _scaled_norm(want)
    if gap == 0.0 or math.isinf(gap):
        return gap
    return gap * gap_norm if size == 0.0 else (gap / size) * (gap_norm / size_norm)


def _scaled_norm(x: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The largest magnitude, and the norm of x divided by it."""
    top = float(np.max(np.abs(x), initial=0.0))
    return (top, float(np.linalg.norm(x / top))) if 0.0 < top < math.inf else (top, 0.0)


def exit_code(comparisons: Iterable[Comparison]) -> int:
    """0 when every compared tensor is PASS, 1 when one is not, 3 when nothing could be compared (CASE-26)."""
    verdicts = [c.verdict for c in comparisons if c.verdict != "NOT SUPPORTED"]
    if not verdicts:
        return 3
    return 0 if all(v == "PASS" for v in verdicts) else 1
