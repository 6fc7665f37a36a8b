"""Compare somebody's results with ours: one verdict per tensor. Specified in specs/case.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from atlas_ref.oracle.case import Case, CaseError
from atlas_ref.oracle.evaluate import evaluate

Verdict = Literal["PASS", "WRONG", "MISSING", "UNDECIDABLE", "NOT SUPPORTED"]

#: ||got - want|| / ||want|| allowed for a tensor recorded in each dtype (CASE-17).
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


def check(case: Case, *, only: Sequence[str] | None = None) -> list[Comparison]:
    """Compare the results recorded in a case with ours.

    Args:
        only: names to compare, with or without `out/` ("y", "M", "grad/k"); all that are recorded when None.

    Raises:
        CaseError: the case records no results, or results that the rule does not have.
    """
    if not case.supported:
        return [Comparison(case.name, "-", "NOT SUPPORTED", why=f"rule {case.header.rule}: not yet supported")]
    if not case.recorded:
        raise CaseError(f"{case.name}: no out/... or grad/... tensor is recorded, so there is nothing to check")
    grad = any(name.startswith("grad/") for name in case.recorded)
    ours = evaluate(case, grad=grad).tensors
    for name in case.recorded:
        if name not in ours:
            known = ", ".join(n for n in ours if n.startswith(name.split("/")[0] + "/"))
            raise CaseError(f"{case.name}: {name}: not a result of this case; it has {known}")
    chosen = _chosen(case, ours, only)
    return [_compare(case, name, ours[name]) for name in chosen]


def _chosen(case: Case, ours: Iterable[str], only: Sequence[str] | None) -> list[str]:
    main = MAIN_RESULT.get(case.header.rule, "out/y")
    names = [name for name in ours if name in case.recorded or name == main]
    if only is None:
        return names
    wanted = [name if name.startswith(("out/", "grad/")) else f"out/{name}" for name in only]
    return [name for name in names if name in wanted]


def _compare(case: Case, name: str, want: np.ndarray[Any, Any]) -> Comparison:
    if name not in case.recorded:
        return Comparison(case.name, name, "MISSING", why="this result is not recorded")
    return compare_arrays(case.name, name, case.recorded[name], want)


def compare_arrays(case: str, name: str, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> Comparison:
    """The verdict on one array against ours (CASE-17)."""
    kind = got.dtype.name
    if kind not in TOLERANCE:
        why = f"no tolerance is stated for {kind}" if got.dtype.kind != "i" else f"results are floating, found {kind}"
        return Comparison(case, name, "UNDECIDABLE", why=why)
    if got.shape != want.shape:
        return Comparison(case, name, "WRONG", tolerance=TOLERANCE[kind], why=f"shape {got.shape}, expected {want.shape}")
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not np.isfinite(got).all():
        index = tuple(int(i[0]) for i in np.nonzero(~np.isfinite(got)))
        return Comparison(
            case, name, "WRONG", None, TOLERANCE[kind], index, float(got[index]), float(want[index]), f"{got[index]} at {index}"
        )
    error = relative_error(got, want)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.abs(got - want))), got.shape)) if got.size else ()
    verdict: Verdict = "PASS" if error <= TOLERANCE[kind] else "WRONG"
    return Comparison(case, name, verdict, error, TOLERANCE[kind], index, float(got[index]), float(want[index]))


def relative_error(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    """||got - want|| / ||want||; ||got|| where want is 0. Scaled first, so that squares neither overflow nor vanish."""
    top = float(np.max(np.abs(want), initial=0.0)) or float(np.max(np.abs(got), initial=0.0))
    if top == 0.0:
        return 0.0
    distance = float(np.linalg.norm((got - want) / top))
    size = float(np.linalg.norm(want / top))
    return distance / size if size > 0 else distance * top


def exit_code(comparisons: Iterable[Comparison]) -> int:
    """0 when every compared tensor is PASS, 1 when one is not, 3 when nothing could be compared (CASE-16)."""
    verdicts = [c.verdict for c in comparisons if c.verdict != "NOT SUPPORTED"]
    if not verdicts:
        return 3
    return 0 if all(v == "PASS" for v in verdicts) else 1
