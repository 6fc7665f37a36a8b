"""The program of rule dplr: its tensors, its formulas and its loop (PROG-1, DPLRCASE-10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.dplr import loop, parameters, plain_formulas, tensors
from atlas_ref.oracle.dplr.context import DplrContext, shapes
from atlas_ref.oracle.dplr.formulas import RAW
from atlas_ref.oracle.dplr.readings import axes, calls, factors, habits, inside, rows, slopes
from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.context import Inputs
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Ops of a row, in the order in which they are listed.
ROWS = (
    *("k", "decayed", "momentum", "erase_read", "erase_write", "found", "value", "change"),
    *("S", "M", "z"),
)

#: Ops in the order in which they are listed (DPLRCASE-11).
LISTING = ("k", "A", "written_key", "log_gate", "gate", *ROWS[1:-1], "q", "z", "normaliser", "y")

#: Formula of log gates -> its clause.
CLAUSES = {
    "softplus": "GATES-17",
    "bounded": "GATES-18",
    "log_sigmoid": "GATES-19",
    "floored_sigmoid": "GATES-20",
    "exponential": "GATES-21",
}


def clauses(settings: Any, inputs: Inputs) -> dict[str, str]:
    """The clause of each op of a case (DPLRCASE-11)."""
    some, every = (how(_active(inputs), axis=None) for how in (np.any, np.all))
    row = "DPLR-3" if settings.order == "before_error" else "DPLR-2"
    row = "DPLR-21" if settings.of.second == "S" else row
    read = "DPLR-19" if settings.of.second == "z" else "DPLR-5"
    later = range(1, settings.steps)
    return {
        **dict.fromkeys(("k", "q"), "DPLRCASE-2"),
        **dict.fromkeys(("A", "written_key"), "DPLR-20"),
        "log_gate": CLAUSES.get(settings.gate_formula or "", ""),
        "gate": "DPLRCASE-3" if settings.of.gated == "heads" else "DPLR-1",
        **dict.fromkeys(("decayed", "found", "momentum"), row),
        **dict.fromkeys(("erase_read", "erase_write"), "DPLR-8" if settings.member else "DPLR-2"),
        "value": "DPLR-8",
        "change": "DPLR-21" if settings.of.second == "S" else "DPLR-8",
        **dict.fromkeys(("S", "M"), row if some else "DPLR-7"),
        **{f"step{i}/{op}": "DPLR-4" for i in later for op in ("decayed", "found", "M")},
        **dict.fromkeys(("z", "normaliser"), "DPLR-19"),
        "y": read if every or settings.masked_read == "memory" else "DPLRCASE-28",
    }


def tokens_of_ops(inputs: Inputs) -> Inputs:
    """A token that writes and one that does not, which compute all ops between them."""
    active = _active(inputs)
    leading = tuple(range(active.ndim - 1))
    wrote, quiet = active.any(axis=leading), ~active.all(axis=leading)
    places = [int(np.argmax(each)) for each in (wrote, quiet) if each.any()]
    return calls.take(dict(inputs), list(dict.fromkeys(places)))


def _active(inputs: Inputs) -> Any:
    return np.asarray(inputs.get("in/active", np.ones(inputs["in/q"].shape[-2])), bool)


def further(context: DplrContext) -> list[Reading]:
    """Mistakes that are tried where no setting and no other mistake explains results (DPLRCASE-25)."""
    graded = "in/y_bar" in context.inputs or "in/M_bar" in context.inputs
    return [
        *factors.mistakes(context),
        *calls.of_chunk_forms(context),
        *calls.mistakes(context),
        *rows.mistakes(context),
        *inside.mistakes(context),
        *(slopes.mistakes(context) if graded else ()),
    ]


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
    clauses=clauses,
    listing=LISTING,
    tokens_of_ops=tokens_of_ops,
    mistakes=habits.habits,
    others=axes.settings,
    further=further,
    draw=tensors.rows,
    formulas=plain_formulas.compute,
    raw=RAW,
    context=DplrContext,
    steps=lambda settings: int(settings.steps),
    step_ops=ROWS,
)


def program_and_parameters(case: Case) -> tuple[Program, parameters.Parameters]:
    """The program of a case, and its parameters, of which replay and search are made (DPLRCASE-12)."""
    return PROGRAM, parameters.parse(case.header)


#: Results of a case under some readings (DPLRCASE-9, TOL-3).
run = of_program.of_cases(program_and_parameters)
