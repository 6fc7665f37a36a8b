"""The ops of a case of rule dplr, read off its loop, and the loop with a hook (DPLRCASE-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.dplr import program
from atlas_ref.oracle.dplr.parameters import Parameters, parsed
from atlas_ref.oracle.dplr.program import PROGRAM, ROWS
from atlas_ref.oracle.dplr.readings.calls import taken
from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.program import run as of_program
from atlas_ref.oracle.program.graph import Graph, wide
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Name, inputs and clause of an op.
Listed = tuple[str, tuple[str, ...], str]

#: Formula of log gates -> its clause.
CLAUSES = {
    "softplus": "GATES-17",
    "bounded": "GATES-18",
    "log_sigmoid": "GATES-19",
    "floored_sigmoid": "GATES-20",
    "exponential": "GATES-21",
}

#: Ops in the order in which they are listed; those of a step of a row stand together.
OPS = ("k", "A", "written_key", "log_gate", "gate", *ROWS[1:-1], "q", "z", "normaliser", "y")


def clauses(params: Parameters, *, silent: bool, masked: bool) -> dict[str, str]:
    """The clause of each op of a case.

    Args:
        silent: whether no token writes. masked: whether some token does not.
    """
    row = "DPLR-3" if params.order == "before_error" else "DPLR-2"
    row = "DPLR-21" if params.of.second == "S" else row
    state = "DPLR-7" if silent else row
    read = "DPLR-19" if params.of.second == "z" else "DPLR-5"
    return {
        **dict.fromkeys(("k", "q"), "DPLRCASE-2"),
        **dict.fromkeys(("A", "written_key"), "DPLR-20"),
        "log_gate": CLAUSES.get(params.gate_formula or "", ""),
        "gate": "DPLRCASE-3" if params.of.gated == "heads" else "DPLR-1",
        **dict.fromkeys(("decayed", "found", "momentum"), row),
        **dict.fromkeys(("erase_read", "erase_write"), "DPLR-8" if params.member else "DPLR-2"),
        "value": "DPLR-8",
        "change": "DPLR-21" if params.of.second == "S" else "DPLR-8",
        **dict.fromkeys(("S", "M"), state),
        **dict.fromkeys(("z", "normaliser"), "DPLR-19"),
        "y": "DPLRCASE-28" if masked and params.masked_read != "memory" else read,
    }


def _place(op: str) -> tuple[int, int, int]:
    step, _, bare = op.rpartition("/")
    place = OPS.index(bare)
    return (OPS.index(ROWS[1]) if bare in ROWS[1:-1] else place, int(step[4:] or 0), place)


def listed(case: Case) -> list[Listed]:
    """The ops that some token of a case computes, each with its inputs and clause.

    They are those of one run of the loop, over a token that writes and one that does not.
    """
    settings, graph, x = parsed(case.header), Graph(), case.inputs
    active = np.asarray(x.get("in/active", np.ones(x["in/q"].shape[-2])), bool)
    wrote = active.any(axis=tuple(range(active.ndim - 1)))
    quiet = ~active.all(axis=tuple(range(active.ndim - 1)))
    few = [int(np.argmax(each)) for each in (wrote, quiet) if each.any()]
    given = {name: wide(z) for name, z in taken(x, list(dict.fromkeys(few))).items()}
    with np.errstate(all="ignore"):
        of_program.run(
            PROGRAM, settings, given, of_program.exact(PLAIN), take=graph.take, label=graph.label
        )
    known = clauses(settings, silent=not wrote.any(), masked=bool(quiet.any()))
    found = []
    for op in sorted(graph.inputs, key=_place):
        step, _, bare = op.rpartition("/")
        clause = (
            "DPLR-4"
            if step not in ("", "step0") and bare in ("decayed", "found", "M")
            else known[bare]
        )
        found.append((op, graph.sources(op, written=True), clause))
    return found


def tokens(case: Case, op: str) -> tuple[int, ...]:
    """Tokens along the axis of an op, all of them."""
    return tuple(range(case.inputs["in/q"].shape[-2]))


def run(
    case: Case,
    inputs: Mapping[str, Array],
    take: Callable[..., Array],
    arithmetic: Arithmetic,
    chosen: Sequence[Reading] = (),
) -> dict[str, Array]:
    """Run a case with the hook `take` at every op of every token; its results (DPLRCASE-12).

    Args:
        take: called as take(op, t, compute, *arguments), where compute(*arguments) is the op at token t.
        chosen: readings of the case, which keep its ops.
    """
    names = {name for name, _, _ in listed(case)} if chosen else set()

    def known(op: str, t: int, compute: Callable[..., Array], *arguments: Any) -> Array:
        if chosen and op not in names:
            return compute(*arguments)
        return take(op, t, compute, *arguments)

    return program.run(inputs, case, of_program.exact(arithmetic), chosen, take=known)
