"""The ops of a case, read off one run of the loop: names, inputs, tokens; and the trace (PROG-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.program.context import base, writes
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.program.run import run
from atlas_ref.oracle.subjects.subject import Rounding, Traced
from atlas_ref.types import Array

#: The program of a case, and its parameters.
Stated = Callable[[Any], tuple[Program, Any]]


class Graph:
    """Ops of one run with the values that each was computed from.

    Attributes:
        inputs: op -> names of its inputs, in the order in which they are met: an op of the same
            token, in/NAME, or NAME[t-1] of what an earlier token left.
        tokens: op -> tokens that compute it.
        first: names of states that have a first value.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, dict[str, None]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.first: set[str] = set()
        #: What a value is by its id, and the value, which therefore stays alive.
        self._values: dict[int, tuple[str, int | None, Any]] = {}

    def label(self, name: str, value: Array, t: int | None) -> Array:
        """A view of a value that is known by this name from now on."""
        view = np.asarray(value).view()
        self.first |= {name} if t == -1 else set()
        self._values[id(view)] = (name, t, view)
        return view

    def take(self, op: str, t: int, compute: Callable[..., Array], *arguments: Any) -> Array:
        """The value of an op, whose arguments are noted.

        Raises:
            ValueError: an argument that is neither an input, a first state nor an op.
        """
        found = self.inputs.setdefault(op, {})
        for value in arrays(arguments):
            if id(value) not in self._values:
                raise ValueError(f"op {op} at token {t}: an argument that has no name")
            name, of, _ = self._values[id(value)]
            found[name if of is None or of == t else f"{name}[t-1]"] = None
        self.tokens.setdefault(op, []).append(t)
        return compute(*arguments)

    def forget(self) -> None:
        """Let go of the values, of which nobody will ask."""
        self._values.clear()

    def sources(self, op: str) -> tuple[str, ...]:
        """Names of the inputs of an op; NAME[start] for a first state that no token replaces."""
        first = {f"{name}[t-1]": name for name in self.first if name not in self.tokens}
        return tuple(f"{first[each]}[start]" if each in first else each for each in self.inputs[op])

    def ordered(self) -> list[str]:
        """Ops behind those of their token that they read, else as they are met first.

        At a token that writes nothing a state is met before what it is else made of.
        """
        waiting, found = list(self.inputs), list[str]()
        while waiting:
            ready = (op for op in waiting if not self.inputs[op].keys() & set(waiting) - {op})
            found.append(next(ready))
            waiting.remove(found[-1])
        return found


def arrays(arguments: Sequence[Any]) -> Iterator[Any]:
    """The arrays among arguments and lists of them."""
    for each in arguments:
        if isinstance(each, np.ndarray):
            yield each
        elif isinstance(each, tuple | list):
            yield from arrays(each)


def graph(program: Program, settings: Any, case: Any) -> Graph:
    """The ops of a case by one run of its loop."""
    found, inputs = Graph(), {name: wide(x) for name, x in case.inputs.items()}
    with np.errstate(all="ignore"):
        run(program, settings, inputs, exact(PLAIN), take=found.take, label=found.label)
    found.forget()
    return found


def wide(x: Any) -> Any:
    """An array of numbers in float64; a mask as it is."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def exact(arithmetic: Arithmetic) -> Rounding:
    """An arithmetic in which nothing is rounded beside sums and products."""
    return Rounding(arithmetic, _same, _same, None)


def traced(stated: Stated, along: Callable[[Any], str]) -> Traced:
    """The trace of a subject, from the loop alone (PROG-3).

    Args:
        stated: (case) -> its program and parameters.
        along: (case) -> the input whose last axes are tokens and channels.
    """

    last: list[tuple[Any, Graph]] = []  # the last case, of which every op asks

    def noted(case: Any) -> Graph:
        if not last or last[0][0] is not case:
            last[:] = [(case, graph(*stated(case), case))]
        return last[0][1]

    def listed(case: Any) -> list[tuple[str, tuple[str, ...], str]]:
        program, _ = stated(case)
        found = noted(case)
        return [
            (op, found.sources(op), program.clauses.get(base(op), program.clause))
            for op in found.ordered()
        ]

    def tokens(case: Any, op: str) -> tuple[int, ...]:
        """All of them, where every token that writes computes it; else those that do."""
        found = noted(case).tokens.get(op, [])
        every = range(case.inputs[along(case)].shape[-2])
        if all(t in found for t in every if writes(case.inputs, t)):
            return tuple(every)
        return tuple(sorted(found))

    def evaluated(
        case: Any,
        inputs: Mapping[str, Array],
        take: Callable[..., Array],
        arithmetic: Arithmetic,
        chosen: Sequence[Reading] = (),
    ) -> dict[str, Array]:
        program, settings = stated(case)
        return run(program, settings, inputs, exact(arithmetic), chosen, take=take)

    return Traced(ops=listed, run=evaluated, tokens=tokens, along=along)


def _same(x: Array) -> Array:
    return x
