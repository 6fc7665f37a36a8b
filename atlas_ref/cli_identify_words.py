"""What the commands identify and tolerance print for a reader (IDENT-9, TOL-10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atlas_ref import cli_output as output
from atlas_ref.oracle.identify import Fit, Identification
from atlas_ref.oracle.identify_words import setting, shown
from atlas_ref.oracle.norms import Norms
from atlas_ref.oracle.tolerance import FLOOR, MARGINAL, PASS, Tolerance

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Values that could not be tried and are listed one by one.
LISTED = 12

COLUMNS = ("", "max", "rms", "99th percentile")


def identification(found: Identification) -> list[RenderableType]:
    """The report."""
    told: list[RenderableType] = [f"{output.one_line(found.case)}: {found.verdict}" + (f": {found.why}" if found.why else "")]
    if found.match is not None:
        told.append(f"{'nearest' if found.verdict == 'NO MATCH' else 'match'}: {setting(found.match.convention)}{_how(found.match)}")
        if found.own:
            told.append("that is the case's own convention")
        if found.preset is not None and found.verdict != "NO MATCH":
            told.append(f"preset: {found.preset}")
    if found.runner_up is not None:
        told.append(f"runner-up: {setting(found.runner_up.convention)}{_how(found.runner_up)}{_worse(found)}")
    if found.undecided:
        told.append("not decided by this case:")
        rows = [(axis, ", ".join(map(shown, values))) for axis, values in found.undecided.items()]
        told.append(output.table("", ("axis", "values that fit, the match's first"), rows))
    if found.twins:
        twins = [(setting(twin.changes), twin.reason) for twin in found.twins]
        told.append(output.table("", ("cannot be told from the match", "because"), twins))
    told += [f"void: {axis}: {why}" for axis, why in sorted(found.void.items())]
    told += [f"not tried: {value}: {why}" for value, why in list(found.untried.items())[:LISTED]]
    told += [f"not used: {name}: no convention changes it" for name in found.unused]
    return [*told, f"{found.searched} conventions compared"] if found.searched else told


def _how(fit: Fit) -> str:
    if fit.ratio is None:
        return f" (distance {fit.distance:.3g} in {fit.tensor})"
    return f" (distance {fit.distance:.3g}, {fit.ratio:.3g} tolerances, in {fit.tensor})"


def _worse(found: Identification) -> str:
    if found.times_worse is None:
        return ""
    return ", infinitely worse" if found.times_worse == float("inf") else f", {found.times_worse:.3g} times worse"


def about_deciding(found: Identification, decided: str) -> str:
    """What came of --decide."""
    if found.verdict != "UNDECIDABLE":
        return "no case is needed to decide"
    if decided.startswith("none"):
        return decided
    return f"wrote {decided}: run your code on it, and identify that"


def derivation(found: Tolerance, case: str) -> list[RenderableType]:
    """Every member, the floor, the sum, and what it means for a verdict."""
    rows = [(member, *_row(error)) for member, error in found.ensemble.items()]
    worst = Norms(*(max(column) for column in zip(*found.ensemble.values(), strict=True)))
    factor = f", times {found.amplification:.3g} that Newton-Schulz amplifies" if found.amplification > 1.0 else ""
    rows += [
        ("largest error", *_row(worst)),
        (f"floor: {FLOOR} units in the last place{factor}", *_row(found.floor)),
        ("tolerance: their sum", *_row(found.norms)),
        (f"PASS up to {PASS:g} times", *_row(Norms(*(PASS * each for each in found.norms)))),
        (f"MARGINAL up to {MARGINAL:g} times", *_row(Norms(*(MARGINAL * each for each in found.norms)))),
    ]
    told: list[RenderableType] = [
        f"{output.one_line(case)}: {found.name} in {found.dtype}: error of each member of the ensemble, in three norms",
        output.table("", COLUMNS, rows),
    ]
    return [*told, *([found.note] if found.note else [])]


def _row(each: Norms) -> tuple[str, ...]:
    return tuple(output.number(value) for value in each)
