"""The program of rule tnt: the settings of its memories, and its loop (PROG-1, TNTCASE-12)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.context import Inputs
from atlas_ref.oracle.program.derive.ops import places_of_ops
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.tnt import inputs as tnt_inputs
from atlas_ref.oracle.tnt import loop, parameters, tensors
from atlas_ref.oracle.tnt.context import TntContext, shapes
from atlas_ref.oracle.tnt.readings import axes, habits
from atlas_ref.oracle.tnt.settings import Settings, settings_of
from atlas_ref.oracle.tnt.writes import EXTRA, WRITE
from atlas_ref.rules import FAMILY

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case


def clauses(settings: Settings, inputs: Inputs) -> dict[str, str]:
    """The clause of each op of a case (TNTCASE-9)."""
    own = FAMILY[settings.rule].clauses
    of_reads = {f"{m.name}/y": own["y"] for m in settings.memories}
    return {
        "y": "TNT-1",
        "projected": "TNT-7",
        **of_reads,
        **{op: own[op] for op in WRITE if op in own},
    }


PROGRAM = Program(
    name=parameters.NAME,
    tensors=tensors.SHARED,
    shapes=shapes,
    states=(),
    matrices=(),
    settings=(),
    loop=loop.results,
    rounding={},
    clause="TNT-1",
    clauses=clauses,
    follows=True,
    mistakes=habits.habits,
    others=axes.together,
    presets=axes.presets,
    draw=tnt_inputs.rows,
    context=TntContext,
)


@cache
def _with_memories(names: tuple[str, ...]) -> Program:
    """The program with the settings and the ops of memories of these names."""
    of_write = (*(f"{EXTRA}/{op}" for op in WRITE), *WRITE)
    listing = [f"{name}/{op}" for name in names for op in ("projected", *of_write, "y")]
    return PROGRAM._replace(settings=axes.settings(names), listing=(*listing, "y"))


def program_and_settings(case: Case) -> tuple[Program, Settings]:
    """The program of a case, and its parameters, of which replay and search are made."""
    settings = settings_of(case)
    return _with_memories(tuple(m.name for m in settings.memories)), settings


#: Results of a case under some readings (TNTCASE-5, TOL-3).
run = of_program.of_cases(program_and_settings)


#: Ops of a case under some readings, each with its tokens.
_places = places_of_ops(program_and_settings)


def keeps(case: Case, each: Reading) -> bool:
    """Whether the ops of a reading are the case's own, of the same tokens (TNTCASE-10).

    A last chunk that is not written has none, and is compared by what its tokens read.
    """
    whole = {name: value for name, value in each.settings.items() if not name.endswith(".tail")}
    return _places(case) == _places(case, [each._replace(settings=whole)])
