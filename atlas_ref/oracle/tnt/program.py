"""The program of rule tnt: the settings of its memories, and its loop (PROG-1, TNTCASE-12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.derive.readings import seen
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.oracle.tnt import inputs as tnt_inputs
from atlas_ref.oracle.tnt import loop, ops, parameters, tensors
from atlas_ref.oracle.tnt.context import TntContext, shapes
from atlas_ref.oracle.tnt.readings import axes, habits
from atlas_ref.oracle.tnt.settings import Settings, settings_of
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

PROGRAM = Program(
    name=parameters.NAME,
    tensors=tensors.SHARED,
    shapes=shapes,
    states=(),
    matrices=(),
    settings=(),
    loop=lambda context, hook: loop.run(context, loop.Means(context.rounding)),
    rounding={},
    clause="TNT-1",
    mistakes=habits.habits,
    others=axes.together,
    presets=axes.presets,
    draw=tnt_inputs.rows,
    context=TntContext,
)


@cache
def _with_memories(names: tuple[str, ...]) -> Program:
    """The program with the settings of memories of these names."""
    return PROGRAM._replace(settings=axes.settings(names))


def stated(case: Case) -> tuple[Program, Settings]:
    """The program of a case, and its parameters, of which replay and search are made."""
    settings = settings_of(case)
    return _with_memories(tuple(m.name for m in settings.memories)), settings


def run(
    inputs: Mapping[str, Array],
    case: Case,
    rounding: Rounding,
    chosen: Sequence[Reading] = (),
) -> dict[str, Array]:
    """Results of a case under some readings, as `Subject.plain` has them (TNTCASE-5, TOL-3)."""
    return of_program.run(*stated(case), inputs, rounding, chosen)


def keeps(case: Case, each: Reading) -> bool:
    """Whether the ops of a reading are the case's own, of the same tokens (TNTCASE-10)."""
    own, other = (
        {
            op: ops.tokens_under(at.settings, at.inputs, op)
            for op, _, _ in ops.listed_under(at.settings, at.inputs)
        }
        for at in (seen(stated, case), seen(stated, case, [each]))
    )
    return own == other
