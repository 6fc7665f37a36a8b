"""The program of rule deep_memory: its tensors, settings, mistakes and loop (PROG-1, DEEPCASE-12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atlas_ref.oracle.deep import loop, ops, tensors
from atlas_ref.oracle.deep.context import DeepContext, shapes
from atlas_ref.oracle.deep.readings import listed
from atlas_ref.oracle.deep.readings.axes import AXES
from atlas_ref.oracle.deep.readings.presets import presets
from atlas_ref.oracle.deep.settings import Settings
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.derive import readings
from atlas_ref.oracle.program.hook import hook_of, same
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case


PROGRAM = Program(
    name="deep_memory",
    tensors=tensors.SEQUENCE,
    shapes=shapes,
    states=(),
    matrices=(),
    settings=AXES,
    loop=loop.results,
    rounding={"W": "store", "S": "store"},
    clause="DEEP-7",
    mistakes=listed.mistakes,
    context=DeepContext,
)


def stated(case: Case) -> tuple[Program, Settings]:
    """The program of a case, and its settings (DEEPCASE-2)."""
    return PROGRAM, ops.settings_of(case)


def run(
    inputs: Mapping[str, Array],
    case: Case,
    rounding: Rounding,
    chosen: Sequence[Reading] = (),
) -> dict[str, Array]:
    """Results of a case under some readings, as `Subject.plain` has them (TOL-3)."""
    return of_program.run(*stated(case), inputs, rounding, chosen)


def traced(
    case: Case,
    inputs: Mapping[str, Array],
    take: Callable[..., Array],
    arithmetic: Arithmetic,
    chosen: Sequence[Reading] = (),
) -> dict[str, Array]:
    """The same with a hook at every op of every token."""
    exact = of_program.exact(arithmetic)
    return of_program.run(*stated(case), inputs, exact, chosen, take=take)


def keeps(case: Case, each: Reading) -> bool:
    """Whether the ops of a reading have the tokens and shapes of the case's own (DEEPCASE-13)."""
    own, other = (readings.seen(stated, case, chosen) for chosen in ((), (each,)))
    if _shapes(own.settings) != _shapes(other.settings):
        return False
    moved = hook_of(other, {}, (each,)).part("events", same, other.plan)
    before, after = ([(e.token, len(e.rows)) for e in plan.writes] for plan in (own.plan, moved))
    return before == after


def _shapes(s: Settings) -> tuple[Any, ...]:
    """What the names and shapes of ops follow from."""
    c = s.c
    steps = c.newton_schulz_settings.steps if c.has_newton_schulz else 0
    own = (ops.pieces(s.function), s.fast, s.clip == "none", s.adaptive, steps)
    network = () if s.deep_momentum is None else tuple(ops.pieces(s.deep_momentum.function))
    return (*own, s.window, s.coupling, network)


_FOUND = readings.searched(stated, "deep")

#: Readings of a case: its settings, mistakes, and presets of public code (DEEPCASE-14).
SEARCHED = _FOUND._replace(
    presets=lambda case: presets(case, _FOUND.settings(case)),
    keeps=keeps,
    named={each.name: each.words for each in listed.MISTAKES},
)
