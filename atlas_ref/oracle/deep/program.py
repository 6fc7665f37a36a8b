"""The program of rule deep_memory: its tensors, settings, mistakes and loop (PROG-1, DEEPCASE-12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atlas_ref.oracle.deep import loop, parameters, tensors
from atlas_ref.oracle.deep.context import DeepContext, shapes
from atlas_ref.oracle.deep.readings import listed
from atlas_ref.oracle.deep.readings.axes import AXES
from atlas_ref.oracle.deep.readings.presets import presets
from atlas_ref.oracle.deep.settings import Settings, settings
from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.context import Inputs
from atlas_ref.oracle.program.derive import ops, readings
from atlas_ref.oracle.program.hook import hook_of, same
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Clause of the values of a memory function, by its kind.
FUNCTIONS = {"linear": "MEMFUN-1", "mlp": "MEMFUN-7", "polynomial": "MEMFUN-4"}

#: Clause of other ops; PART/ is all ops with this part in front.
CLAUSES = {
    "residual": "DEEP-7",
    "cotangent": "DEEP-7",
    "gradient/": "DEEP-7",
    "norm": "DEEP-10",
    "clipped/": "DEEP-9",
    "S/": "DEEP-11",
    "X0/": "NS-6",
    "U/": "DEEP-12",
    "W/": "DEEP-13",
    "y": "DEEP-15",
}


def clauses(settings: Settings, inputs: Inputs) -> dict[str, str]:
    """The clause of each op of a case (DEEPCASE-12)."""
    c, network = settings.c, settings.deep_momentum
    found = CLAUSES | {"write/y": FUNCTIONS[settings.function.kind]}
    if c.has_newton_schulz:
        found |= {f"X{i + 1}/": "NS-1" for i in range(c.newton_schulz_settings.steps)}
    functions = {"write": settings.function, "read": settings.function}
    if network is not None:
        functions |= {"learn": network.function, "move": network.function}
        found |= {"S/": "DEEP-37", "slope": "DEEP-38", "learn/y": "DEEP-37", "move/y": "DEEP-37"}
    for place, f in functions.items():
        found |= {f"{place}/": FUNCTIONS[f.kind], f"{place}/s": "MEMFUN-5"}
    return found


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
    clauses=clauses,
    listing=("read", "y"),
    behind=("in/retain",),
    sparse=True,
    mistakes=listed.mistakes,
    context=DeepContext,
)


def program_and_settings(case: Case) -> tuple[Program, Settings]:
    """The program of a case, and its settings (DEEPCASE-2)."""
    k, v = case.inputs["in/k"], case.inputs["in/v"]
    own = parameters.config(case.header, k.shape[-1], v.shape[-1])
    own = own.replaced(convention=case.convention)
    return PROGRAM, settings(own, parameters.names(own), parameters.network(own))


#: Results of a case under some readings (TOL-3).
run = of_program.of_cases(program_and_settings)


def keeps(case: Case, each: Reading) -> bool:
    """Whether the ops of a reading have the tokens and shapes of the case's own (DEEPCASE-13)."""
    own, other = (
        readings.context_of_case(program_and_settings, case, chosen) for chosen in ((), (each,))
    )
    if _shapes(own.settings) != _shapes(other.settings):
        return False
    moved = hook_of(other, {}, (each,)).part("events", same, other.plan)
    before, after = ([(e.token, len(e.rows)) for e in plan.writes] for plan in (own.plan, moved))
    return before == after


def _shapes(s: Settings) -> tuple[Any, ...]:
    """What the names and shapes of ops follow from."""
    c = s.c
    steps = c.newton_schulz_settings.steps if c.has_newton_schulz else 0
    network = () if s.deep_momentum is None else _pieces(s.deep_momentum.function)
    own = (_pieces(s.function), s.fast, s.clip == "none", s.adaptive, steps)
    return (*own, s.window, s.coupling, network)


def _pieces(f: Any) -> tuple[Any, ...]:
    """What the values of a memory function, and what each is made of, follow from."""
    if f.kind == "linear":
        return (f.kind,)
    if f.kind == "mlp":
        return (f.kind, f.depth, f.residual_norm, f.with_input or f.residual_norm)
    return (f.kind, f.compressed, f.gated, f.with_input)


_FOUND = readings.search(program_and_settings, "deep")

#: Readings of a case: its settings, mistakes, and presets of public code (DEEPCASE-14).
SEARCHED = _FOUND._replace(
    presets=lambda case: presets(case, _FOUND.settings(case)),
    keeps=keeps,
    named={each.name: each.words for each in listed.MISTAKES},
)

#: The trace of a case.
TRACED = ops.trace(program_and_settings, lambda case: "in/k")
