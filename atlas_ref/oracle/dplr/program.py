"""The program of rule dplr: its tensors, its formulas and its loop (PROG-1, DPLRCASE-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atlas_ref.oracle.dplr import loop, parameters, plain_formulas, tensors
from atlas_ref.oracle.dplr.context import DplrContext, shapes
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.graph import wide
from atlas_ref.oracle.program.hook import Take, computed
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Ops of a row, in the order in which they are listed.
ROWS = (
    *("k", "decayed", "momentum", "erase_read", "erase_write", "found", "value", "change"),
    *("S", "M", "z"),
)

PROGRAM = Program(
    name="dplr",
    tensors=tensors.TENSORS,
    shapes=shapes,
    states=("M", "S", "z", "A"),
    matrices=("decayed", "S", "M"),
    settings=(),
    loop=loop.results,
    rounding=dict.fromkeys("MSzA", "store"),
    clause="DPLR-2",
    draw=tensors.rows,
    formulas=plain_formulas.computed,
    context=DplrContext,
    steps=lambda settings: int(settings.steps),
    step_ops=ROWS,
)


def read(case: Case, inputs: Mapping[str, Array], chosen: Sequence[Reading] = ()) -> DplrContext:
    """Settings and inputs of a case under some readings at once; what a formula makes is in float64."""
    settings = parameters.parsed(case.header)
    if settings.gate_formula is not None or settings.beta_formula is not None:
        inputs = {name: wide(x) for name, x in inputs.items()}
    context: Any = of_program.seen(PROGRAM, settings, inputs, of_program.exact(PLAIN), chosen)
    return context  # type: ignore[no-any-return]


def run(
    inputs: Mapping[str, Array],
    case: Case,
    rounding: Rounding,
    chosen: Sequence[Reading] = (),
    *,
    take: Take = computed,
) -> dict[str, Array]:
    """Results of a case under some readings, as `Subject.plain` has them (DPLRCASE-9, TOL-3).

    Args:
        take: the hook of a trace (DPLRCASE-11).
    """
    settings = parameters.parsed(case.header)
    return of_program.run(PROGRAM, settings, inputs, rounding, chosen, take=take)
