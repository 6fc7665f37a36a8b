"""Distances that correct programs may have from ours: measured, not guessed.

Specified in specs/tolerance.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.backend.threads import one_for_products
from atlas_ref.conventions import Convention
from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.cases.family import require_family
from atlas_ref.oracle.cases.inputs import check_dtype
from atlas_ref.oracle.cases.inputs import rounded as stored
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.family.arithmetic import MEMBERS
from atlas_ref.oracle.judge import ensemble, op_steps
from atlas_ref.oracle.judge.alternatives import Alternative
from atlas_ref.oracle.judge.alternatives import alternatives as known_alternatives
from atlas_ref.oracle.judge.norms import FORMATS, Norms, largest, norms, rounded, ulp
from atlas_ref.oracle.judge.states import gap, holds, judged_in, kept_in
from atlas_ref.oracle.judge.verdicts import Comparison, Verdict
from atlas_ref.oracle.registry import SUBJECTS
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array

#: Units in the last place of a tensor's scale that are always allowed (TOL-4).
FLOOR = 4

#: The same for one op on recorded inputs, which is rounded once when it is recorded (TOL-9).
OP_FLOOR = 2

#: Multiples of the tolerance up to which a result is PASS, and MARGINAL (TOL-6).
PASS, MARGINAL = 2.0, 4.0

#: Draws from the half unit by which a recorded input may have been rounded (TOL-9).
DRAWS = 6


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


def op_tolerance(
    op: str,
    inputs: Mapping[str, Array],
    convention: Convention | NewtonSchulz,
    dtype: str,
    *,
    function: Callable[[Mapping[str, Array]], Array] | None = None,
    exact: tuple[str, ...] = (),
) -> Tolerance:
    """The tolerance of one op on its recorded inputs (TOL-9).

    Args:
        op: residual, gradient, S, X0, X1.., U, M or y, which are evaluated in every arithmetic (the
            names and shapes of their inputs are those of `op_steps.evaluate`); any other name needs
            `function`.
        inputs: inputs of the op, as recorded; leading axes, tokens among them, may stand in front.
        convention: the case's.
        dtype: format of the recorded tensors. Arithmetic is float64 for float64 and float32 for all
            others.
        function: the op itself, from inputs of one dtype, where it is none of the above.
        exact: names of inputs that are the case's own, and so were not rounded when they were
            recorded.
    """
    arithmetic = "float64" if dtype == "float64" else "float32"
    wide = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
    narrow = {name: value.astype(FORMATS[arithmetic][0]) for name, value in wide.items()}
    is_op = function is None

    def evaluated(way: Any, values: Mapping[str, Array]) -> Array:
        return (
            op_steps.evaluate(op, values, convention, way) if function is None else function(values)
        )

    with np.errstate(all="ignore"):
        want = np.asarray(evaluated(MEMBERS[0], wide), np.float64)
        by_member = {
            way.name: evaluated(way, narrow) for way in (MEMBERS if is_op else MEMBERS[:1])
        }
        for number in range(DRAWS if is_op else DRAWS + 2):
            way = MEMBERS[number % len(MEMBERS)]
            by_member[f"inputs within half a unit, draw {number + 1}"] = evaluated(
                way, _redrawn(narrow, dtype, exact, number)
            )
        members = {member: rounded(np.asarray(value), dtype) for member, value in by_member.items()}
    return from_members(op, want, members, dtype, units=OP_FLOOR)


def _redrawn(
    inputs: Mapping[str, Array], dtype: str, exact: tuple[str, ...], seed: int
) -> dict[str, Array]:
    """Inputs that round to the recorded ones: anywhere within half a unit of the last place."""
    draw = np.random.Generator(np.random.Philox(seed))
    half = 2.0 ** -(FORMATS[dtype][1] + 1)
    return {
        name: value
        if name in exact
        else (value * (1.0 + half * draw.uniform(-1.0, 1.0, value.shape))).astype(value.dtype)
        for name, value in inputs.items()
    }


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
    require_family(case, "a tolerance", own=SUBJECTS[case.header.rule].own)
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
        } or {"as given": rounded(truth, dtype)}
        arithmetic = "float64" if dtype == "float64" else "float32"
        kind = judged_in(name, dtype, state_dtype) if states else dtype
        plain = from_members(
            name, truth, each, kind, arithmetic=arithmetic, amplification=factors.get(name, 1.0)
        )
        plain = plain._replace(handed="" if kind == dtype else dtype)
        by_name[name] = _with_alternatives(plain, others, norms(truth))
    return by_name


def require_state(case: Case, state_dtype: str | None) -> None:
    """Refuse a format of the state where the case is no memory (LAYER-11).

    Raises:
        CaseError: names the case and the layer.
    """
    own = SUBJECTS[case.header.rule].own
    if state_dtype is not None and own is not None and own.states is None:
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
        bad = _first(~np.isfinite(array) & ~beyond)
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
    place = _first(distance == np.max(distance, initial=0.0)) or ()
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
        place = _first(beyond) or ()
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


def _first(where: Array) -> tuple[int, ...] | None:
    return (
        tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))
        if where.any()
        else None
    )


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
