"""What a case could have declared of a correct program, and its verdicts under that.

Specified in specs/dplr_cases.md (DPLRCASE-23, DPLRCASE-24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.cases.case import Case, CaseError, make
from atlas_ref.oracle.judge.states import holds, is_state
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.oracle.registry import SUBJECTS

#: Verdicts of a declared case, by name of the result.
Rows = Mapping[str, Comparison]

#: Times the tolerance of a declaration up to which a result passes that is beyond its own.
ONCE = 1.0

#: Formats that a state may be kept in; numbers of the first are mostly of the other too.
NARROW = ("bfloat16", "float16")


def state_parameters(case: Case, parameters: Mapping[str, Any]) -> Case | None:
    """A case with some parameters beside its own; None where it may not have them."""
    header = case.header.plain()
    header["parameters"] = {**header.get("parameters", {}), **parameters}
    try:
        return make(header, case.inputs, name=case.name)
    except CaseError:
        return None


def words_of(parameters: Mapping[str, Any]) -> str:
    """Parameters as an option takes them."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def missing_declaration(
    case: Case, rows: Rows, again: Callable[[Case], Rows]
) -> dict[str, Comparison]:
    """Verdicts under the first declaration that all results pass by once its tolerance (DPLRCASE-23).

    The last declaration, whose tolerance is widest, goes first, so that a program with another
    mistake costs one measurement.

    Args:
        rows: verdicts of results in one format.
        again: verdicts on the same results under the tolerance of another case.

    Returns:
        the verdicts that are other than before; none where no declaration explains them.
    """
    missed = [name for name, row in rows.items() if row.verdict in ("MARGINAL", "WRONG")]
    if not missed or any(rows[name].ratio is None for name in missed):
        return {}
    declarations = SUBJECTS[case.header.rule].undeclared(case)
    choices = [(each, other) for each in declarations if (other := state_parameters(case, each))]
    if not choices or not _once(again(choices[-1][1]), missed):
        return {}
    for parameters, other in choices:
        found = again(other)
        if _once(found, missed):
            why = f"passes with parameters.{words_of(parameters)} declared (DPLRCASE-23)"
            return {name: found[name]._replace(why=why) for name in missed}
    return {}


def _once(rows: Rows, missed: list[str]) -> bool:
    """Whether every result that was missed is within once its tolerance."""
    ratios = [rows[name].ratio for name in missed]
    return all(ratio is not None and ratio <= ONCE for ratio in ratios)


def kept_formats(results: Mapping[str, Any], asked: str | None) -> list[str]:
    """Narrow formats of a state that a program may have, from what it hands over (DPLRCASE-24).

    A format is taken only where all numbers of every state handed over are of it.

    Args:
        asked: the format that was said to be the state's, or that of the case; None for neither.
    """
    states = [x for name, x in results.items() if is_state(name)]
    if asked is not None or not states:
        return []
    return [
        dtype
        for dtype in NARROW
        if all(x.dtype.kind == "f" and x.dtype.itemsize > 2 and holds(x, dtype) for x in states)
    ]
