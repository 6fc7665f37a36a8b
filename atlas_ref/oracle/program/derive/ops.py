"""The ops of a case, read off one run of the loop: names, inputs, tokens; and the trace (PROG-3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.context import base, writes
from atlas_ref.oracle.program.graph import Graph, graph
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.program.run import exact, run
from atlas_ref.oracle.subjects.subject import Traced
from atlas_ref.types import Array

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: The program of a case, and its parameters.
Stated = Callable[[Any], tuple[Program, Any]]


def traced(stated: Stated, along: Callable[[Any], str]) -> Traced:
    """The trace of a subject, from the loop alone (PROG-3).

    Args:
        stated: (case) -> its program and parameters.
        along: (case) -> the input whose last axes are tokens and channels.
    """

    last: list[tuple[Any, Graph]] = []  # the last case, of which every op asks

    def noted(case: Case) -> Graph:
        if not last or last[0][0] is not case:
            last[:] = [(case, graph(*stated(case), case))]
        return last[0][1]

    def listed(case: Case) -> list[tuple[str, tuple[str, ...], str]]:
        program, _ = stated(case)
        found = noted(case)
        return [
            (op, found.sources(op), program.clauses.get(base(op), program.clause))
            for op in found.ordered()
        ]

    def tokens(case: Case, op: str) -> tuple[int, ...]:
        """All of them, where every token that writes computes it; else those that do."""
        found = noted(case).tokens.get(op, [])
        every = range(case.inputs[along(case)].shape[-2])
        if all(t in found for t in every if writes(case.inputs, t) is not False):
            return tuple(every)
        return tuple(sorted(found))

    def evaluated(
        case: Case,
        inputs: Mapping[str, Array],
        take: Callable[..., Array],
        arithmetic: Arithmetic,
        chosen: Sequence[Reading] = (),
    ) -> dict[str, Array]:
        program, settings = stated(case)
        return run(program, settings, inputs, exact(arithmetic), chosen, take=take)

    def leading(case: Case) -> int:
        return int(case.inputs[along(case)].ndim) - 2

    return Traced(ops=listed, run=evaluated, tokens=tokens, leading=leading)
