"""Distances that correct programs may have from ours: measured, not guessed.

Specified in specs/tolerance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend.threads import one_for_products
from atlas_ref.oracle.cases.case import Case, CaseError, require_supported
from atlas_ref.oracle.cases.inputs import check_dtype
from atlas_ref.oracle.cases.inputs import round_inputs as stored
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.judge.alternatives import Alternative
from atlas_ref.oracle.judge.alternatives import alternatives as known_alternatives
from atlas_ref.oracle.judge.states import judged_in, kept_in
from atlas_ref.oracle.norms import FORMATS, Norms, largest, norms, round_to, ulp
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.types import Array

#: Units in the last place of a tensor's scale that are always allowed (TOL-4).
FLOOR = 4

#: Multiples of the tolerance up to which a result is PASS, and MARGINAL (TOL-6).
PASS, MARGINAL = 2.0, 4.0


class Tolerance(NamedTuple):
    """One time the allowed error of a tensor (TOL-1, TOL-6).

    PASS is an error of up to two times it, MARGINAL of up to four times.

    Attributes:
        name: the tensor, `out/y`, or the op.
        dtype: format that results are in.
        max, rms, p99: the allowed error in each norm: ensemble + floor.
        floor: 4 units in the last place of the tensor's scale, in each norm, times the
            amplification.
        ensemble: the error of each member, by name.
        amplification: factor by which Newton-Schulz magnifies a relative change of its argument, at
            least 1.
        note: for a reader: settings that this precision cannot tell apart.
        units: that the floor counts.
        merged: known alternatives that this precision cannot separate from ours, where it separates
            none.
        handed: of a state, a narrower format to which it may be rounded when it is handed over.
        merged_handed: `merged` of a state that was.
    """

    name: str
    dtype: str
    max: float
    rms: float
    p99: float
    floor: Norms
    ensemble: dict[str, Norms]
    amplification: float = 1.0
    note: str = ""
    merged: tuple[str, ...] = ()
    units: int = FLOOR
    handed: str = ""
    merged_handed: tuple[str, ...] = ()

    @property
    def norms(self) -> Norms:
        return Norms(self.max, self.rms, self.p99)


def from_members(
    name: str,
    want: Array,
    members: Mapping[str, Array],
    dtype: str,
    *,
    arithmetic: str | None = None,
    amplification: float = 1.0,
    units: int = FLOOR,
) -> Tolerance:
    """The tolerance of a tensor from the results of each member of the ensemble (TOL-3 to TOL-5).

    Args:
        want: the truth, float64.
        dtype: format that results are in.
        arithmetic: format of the arithmetic, which the amplification concerns; `dtype` when None.
        units: in the last place of the tensor's scale that are always allowed.
    """
    errors = {
        member: norms(np.asarray(value, np.float64) - want) for member, value in members.items()
    }
    worst = largest(list(errors.values()))
    computed = arithmetic or dtype
    floor = Norms(
        *(
            units
            * (
                amplification * ulp(size, computed)
                + (ulp(size, dtype) if computed != dtype else 0.0)
            )
            for size in norms(want)
        )
    )
    allowed = Norms(*(error + least for error, least in zip(worst, floor, strict=True)))
    return Tolerance(name, dtype, *allowed, floor, errors, amplification, units=units)


def with_member(tolerance: Tolerance, name: str, error: Norms) -> Tolerance:
    """A tolerance whose ensemble has one more member."""
    ensemble, floor = {**tolerance.ensemble, name: error}, tolerance.floor
    worst = largest(list(ensemble.values()))
    allowed = Norms(*(x + least for x, least in zip(worst, floor, strict=True)))
    return tolerance._replace(max=allowed.max, rms=allowed.rms, p99=allowed.p99, ensemble=ensemble)


def tolerances(
    case: Case,
    *,
    dtype: str,
    state_dtype: str | None = None,
    states: bool = False,
    only: Sequence[str] | None = None,
    results: Mapping[str, Array] | None = None,
    alternatives: bool = True,
) -> dict[str, Tolerance]:
    """The tolerance of every result of a case, by the full rule (TOL-1 to TOL-8).

    Args:
        dtype: format that the results are in: float64, float32, or bfloat16 or float16, for which
            the inputs are rounded to it, arithmetic and state are float32, and results are rounded
            again.
        state_dtype: format that M and S are rounded to after every token; None for the one that the
            case declares, if it does.
        states: judge M and S by the format of the state, float32 where `state_dtype` is None, and
            not by `dtype` (TOL-8).
        only: names of results, `out/y`, `grad/k`; every `out/...` when None.
        results: the truth, float64, where it is known already: of the rounded case.
        alternatives: look for known alternatives that this precision cannot separate from ours, for
            `note` and `merged`.

    Raises:
        CaseError: a dtype that does not exist, a name that is no result of this case, gradients
            without a cotangent.
    """
    for word in (dtype, state_dtype):
        if word is not None:
            check_dtype(case.name, word, FORMATS)
    require_supported(case)
    require_state(case, state_dtype)
    state_dtype = kept_in(case.header, state_dtype)
    case = stored(case, dtype) if dtype in ("bfloat16", "float16") else case
    grad = any(name.startswith("grad/") for name in only or ())
    with one_for_products():
        want = evaluate(case, grad=grad).tensors if results is None else results
    names = [name for name in want if name.startswith("out/")] if only is None else list(only)
    for name in names:
        if name not in want:
            raise CaseError(
                f"{case.name}: {name}: not a result of this case; it has {', '.join(want)}"
            )
    with one_for_products():
        by_member = ensemble.members(case, dtype, state_dtype=state_dtype, states=states, grad=grad)
        exact = ensemble.exact(case, grad=grad)
        factors = ensemble.amplification(case, exact, grad=grad)
        others = known_alternatives(case, want) if alternatives else []
    by_name = {}
    for name in names:
        truth = np.asarray(exact.get(name, want[name]), np.float64)
        each = {
            member: results[name] for member, results in by_member.items() if name in results
        } or {"as given": round_to(truth, dtype)}
        arithmetic = "float64" if dtype == "float64" else "float32"
        kind = judged_in(name, dtype, state_dtype) if states else dtype
        plain = from_members(
            name, truth, each, kind, arithmetic=arithmetic, amplification=factors.get(name, 1.0)
        )
        plain = plain._replace(handed="" if kind == dtype else dtype)
        by_name[name] = _with_alternatives(plain, others, norms(truth))
    return by_name


def require_state(case: Case, state_dtype: str | None) -> None:
    """Refuse a format of the state that does not exist, or where the case is no memory (LAYER-11).

    Raises:
        CaseError: names the case and the layer.
    """
    if state_dtype is not None:  # whether or not results are judged by it
        check_dtype(f"{case.name}: state-dtype", state_dtype, FORMATS)
    if state_dtype is not None and SUBJECTS[case.header.rule].states is None:
        raise CaseError(
            f"{case.name}: state-dtype: belongs to a memory, {case.title} has no state to round"
        )


def _with_alternatives(
    tolerance: Tolerance, others: Sequence[Alternative], size: Norms
) -> Tolerance:
    """A tolerance with the alternatives that would pass for ours, or ours for them (TOL-6).

    Args:
        size: of the truth, whose last places a state loses that is handed over in fewer bits.
    """
    differ = [each for each in others if tolerance.name in each.apart]

    def hidden(bound: Norms) -> list[str]:
        return [each.words for each in differ if each.apart[tolerance.name].over(bound) <= PASS]

    if tolerance.handed:
        lost = (0.5 * ulp(each, tolerance.handed) / PASS for each in size)
        wide = Norms(*map(sum, zip(tolerance.norms, lost, strict=True)))
        merged = hidden(wide)
        tolerance = tolerance._replace(
            merged_handed=tuple(merged) if len(merged) == len(differ) else ()
        )
    words = hidden(tolerance.norms)
    if not words:
        return tolerance
    note = (
        f"{tolerance.dtype} cannot separate this case's {tolerance.name} from that of: "
        f"{'; '.join(words)}"
    )
    return tolerance._replace(note=note, merged=tuple(words) if len(words) == len(differ) else ())


def basis(tolerance: Tolerance, norm: str = "max") -> str:
    """Derivation of a tolerance, in one line."""
    member, worst = worst_member(tolerance, norm)
    floor = getattr(tolerance.floor, norm)
    factor = (
        f" times {tolerance.amplification:.3g} of Newton-Schulz"
        if tolerance.amplification > 1.0
        else ""
    )
    return (
        f"{norm}: {worst:.3g} ({member}) + {floor:.3g} ({tolerance.units} units in the last place "
        f"of {tolerance.dtype}{factor})"
    )


def worst_member(tolerance: Tolerance, norm: str) -> tuple[str, float]:
    """The member whose error is largest in a norm."""
    member = max(tolerance.ensemble, key=lambda each: getattr(tolerance.ensemble[each], norm))
    return member, float(getattr(tolerance.ensemble[member], norm))


def plain(tolerance: Tolerance, case: str) -> dict[str, Any]:
    """The derivation of a tolerance as JSON (TOL-10)."""
    return {
        "case": case,
        "tensor": tolerance.name,
        "dtype": tolerance.dtype,
        "ensemble": {member: error._asdict() for member, error in tolerance.ensemble.items()},
        "floor": tolerance.floor._asdict(),
        "units": FLOOR,
        "amplification": tolerance.amplification,
        "tolerance": tolerance.norms._asdict(),
        "pass": PASS,
        "marginal": MARGINAL,
        "cannot_separate": list(tolerance.merged),
        "note": tolerance.note,
    }
