"""The ops of a case, read off one run of the loop: names, inputs, tokens; and the trace (PROG-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atlas_ref.oracle.family.arithmetic import PLAIN, Arithmetic
from atlas_ref.oracle.program.context import base, writes
from atlas_ref.oracle.program.hook import keep_and_transpose, keep_state
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.program.run import exact, run
from atlas_ref.oracle.subjects.subject import Traced
from atlas_ref.types import Array
from tape import Variable, plain
from tape.core import Tape, recording

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: The program of a case, and its parameters.
Stated = Callable[[Any], tuple[Program, Any]]


class Graph:
    """Ops of one run with the values that each was computed from (PROG-3).

    Attributes:
        inputs: op -> names of its inputs, in the order in which they are met: an op of the same
            token, in/NAME, or NAME[t-1] of what an earlier token left; each with whether the op is
            computed of it, and not a state that a token leaves as it is.
        tokens: op -> tokens that compute it.
        first: names of states that have a first value.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, dict[str, bool]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.first: set[str] = set()
        #: What a value is by its id or its place on a tape, and the value, which therefore stays alive.
        self._values: dict[int, tuple[Sequence[str], Any, Any]] = {}

    def label(self, value: Array, names: Sequence[str], t: Any) -> Array:
        """A view of a value that is known by these names from now on.

        Args:
            names: each as `inputs` has it, or an op.
            t: the token of these ops, or a range of tokens.
        """
        view = np.asarray(value).view()
        self.first |= {*names} if t == -1 else set()
        self._values[id(view)] = (names, t, view)
        return view

    def take(
        self, op: str, t: int, compute: Callable[..., Array], *arguments: Any, counts: Any = None
    ) -> Array:
        """The value of an op, whose arguments are noted.

        Raises:
            ValueError: an argument that is neither an input, a first state nor an op.
        """
        writes = compute is not keep_state and compute is not keep_and_transpose
        found = self.inputs.setdefault(op, {})
        for value in arrays(arguments):
            for key in self._keys(op, t, value):
                names, of, _ = self._values[key]
                now = t in of if isinstance(of, range) else of == t
                for name in names:
                    name = name if now or name.startswith("in/") or "[" in name else f"{name}[t-1]"
                    found[name] = found.get(name, False) or writes
        self.tokens.setdefault(op, []).append(t)
        return compute(*arguments)

    def _keys(self, op: str, t: int, value: Array) -> Sequence[int]:
        """Where an argument has its names."""
        if id(value) not in self._values:
            raise ValueError(f"op {op} at token {t}: an argument that has no name")
        return (id(value),)

    def forget(self) -> None:
        """Let go of the values, of which nobody will ask."""
        self._values.clear()

    def sources(self, op: str, *, written: bool = False) -> tuple[str, ...]:
        """Names of the inputs of an op; NAME[start] for a first state that no token replaces.

        Args:
            written: at tokens alone that compute it, where some do.
        """
        first = {f"{name}[t-1]": name for name in self.first if name not in self.tokens}
        inputs = self.inputs[op]
        found = [
            each for each, of in inputs.items() if of or not written or not any(inputs.values())
        ]
        return tuple(f"{first[each]}[start]" if each in first else each for each in found)

    def order(self) -> list[str]:
        """Ops behind those of their token that they read, else as they are met first.

        At a token that writes nothing a state is met before what it is else made of.
        """
        waiting, found = list(self.inputs), list[str]()
        while waiting:
            ready = (op for op in waiting if not self.inputs[op].keys() & set(waiting) - {op})
            found.append(next(ready))
            waiting.remove(found[-1])
        return found


class Followed(Graph):
    """Ops of a run whose arguments may be computed of values that have names (PROG-3).

    Values with names are variables of a tape, which knows of which of them another one is made. A
    value that is made of none is a constant.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def label(self, value: Array, names: Sequence[str], t: int | None) -> Array:
        """A variable that is known by these names, and by nothing before it."""
        found = self._tape.variable(plain(value))
        self.first |= {*names} if t == -1 else set()
        self._values[found.index] = (names, t, found)
        return found

    def _keys(self, op: str, t: int, value: Array) -> Sequence[int]:
        """Ops of which an argument is made, the latest first, then inputs as they were named."""
        waiting = [value.index] if isinstance(value, Variable) else []
        met, found = set[int](), list[int]()
        while waiting:
            if (index := waiting.pop()) in met:
                continue
            met.add(index)
            if index in self._values:
                found.append(index)
                continue
            for parents, _ in self._tape.entries[index]:
                several = parents if isinstance(parents, tuple) else (parents,)
                waiting += [each for each in several if each is not None]
        inputs = [key for key in sorted(found) if self._values[key][0][0].startswith("in/")]
        return [*sorted({*found} - {*inputs}, reverse=True), *inputs]

    def forget(self) -> None:
        """Let go of the values and of the tape."""
        super().forget()
        self._tape.entries.clear()


def arrays(arguments: Sequence[Any]) -> Iterator[Any]:
    """The arrays among arguments and lists of them."""
    for each in arguments:
        if isinstance(each, np.ndarray | Variable):
            yield each
        elif isinstance(each, tuple | list):
            yield from arrays(each)


def graph(program: Program, settings: Any, case: Case) -> Graph:
    """The ops of a case by one run of its loop."""
    if not program.follows:
        return _note_ops(Graph(), program, settings, case)
    with recording() as tape:
        return _note_ops(Followed(tape), program, settings, case)


def _note_ops(found: Graph, program: Program, settings: Any, case: Case) -> Graph:
    given = case.inputs if program.tokens_of_ops is None else program.tokens_of_ops(case.inputs)
    inputs = {name: wide(x) for name, x in given.items()}
    with np.errstate(all="ignore"):
        run(program, settings, inputs, exact(PLAIN), take=found.take, label=found.label)
    found.forget()
    return found


def places_of_ops(stated: Stated) -> Callable[..., dict[str, list[int]]]:
    """What says which ops a case computes under readings, each with its tokens: (case, readings).

    Args:
        stated: (case) -> its program and parameters.
    """
    last: list[tuple[Any, dict[str, list[int]]]] = []  # the last case, beside which readings stand

    def places(case: Case, readings: Sequence[Reading] = ()) -> dict[str, list[int]]:
        if not readings and last and last[0][0] is case:
            return last[0][1]
        found: dict[str, list[int]] = {}

        def take(
            op: str, t: int, compute: Callable[..., Array], *arguments: Any, counts: Any = None
        ) -> Array:
            found.setdefault(op, []).append(t)
            return compute(*arguments)

        inputs = {name: wide(x) for name, x in case.inputs.items()}
        with np.errstate(all="ignore"):
            run(*stated(case), inputs, exact(PLAIN), readings, take=take)
        if not readings:
            last[:] = [(case, found)]
        return found

    return places


def wide(x: Any) -> Any:
    """An array of numbers in float64; a mask as it is."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def _place(program: Program, op: str) -> tuple[int, int, int]:
    """The place of an op in a listing: steps of ops that stand side by side stand together.

    An op that is not listed has that of its first part, and stands in front without one.
    """
    if op in program.listing:
        place = program.listing.index(op)
        return place, 0, place
    step, _, bare = op.rpartition("/")
    if bare not in program.listing or (step and bare not in program.step_ops):
        part = op.partition("/")[0]
        return program.listing.index(part) if part in program.listing else -1, 0, 0
    place = first = program.listing.index(bare)
    while first and {bare, program.listing[first - 1]} <= {*program.step_ops}:
        first -= 1
    return first, int(step[len("step") :] or 0), place


def _clause(clauses: Mapping[str, str], op: str) -> str:
    """The clause of an op, or of all of its layers, steps or levels, or of its first part."""
    bare = op.rpartition("/")[2]
    names = (op, base(op), bare, base(bare), op.partition("/")[0] + "/")
    return next((clauses[name] for name in names if clauses.get(name)), "")


class Listing(NamedTuple):
    """What is listed of a case by one run of its loop.

    Attributes:
        ops: name, inputs and clause of each op, in order.
        tokens: op -> tokens of its axis.
    """

    program: Program
    settings: Any
    ops: list[tuple[str, tuple[str, ...], str]]
    tokens: Mapping[str, tuple[int, ...]]


def listing(program: Program, settings: Any, case: Case, every: range) -> Listing:
    """The ops of a case (PROG-3).

    Args:
        every: its tokens.
    """
    found, clauses = graph(program, settings, case), program.clauses(settings, case.inputs)
    written, order = program.tokens_of_ops is not None, found.order()
    if program.listing:
        order.sort(key=partial(_place, program))

    def sources(op: str) -> tuple[str, ...]:
        names = found.sources(op, written=written)
        return tuple(sorted(names, key=program.behind.__contains__))

    def tokens(op: str) -> tuple[int, ...]:
        """All of them, where every token that writes computes it; else those that do."""
        own, writing = (
            {*found.tokens[op]},
            (t for t in every if writes(case.inputs, t) is not False),
        )
        if written or (not program.sparse and all(t in own for t in writing)):
            return tuple(every)
        return tuple(sorted(own))

    return Listing(
        program,
        settings,
        [(op, sources(op), _clause(clauses, op) or program.clause) for op in order],
        {op: tokens(op) for op in order},
    )


def trace(stated: Stated, along: Callable[[Any], str]) -> Traced:
    """The trace of a subject, from the loop alone (PROG-3).

    Args:
        stated: (case) -> its program and parameters.
        along: (case) -> the input whose last axes are tokens and channels.
    """

    last: list[tuple[Any, Listing]] = []  # the last case, of which every op asks

    def list_ops(case: Case) -> Listing:
        if not last or last[0][0] is not case:
            last[:] = [(case, listing(*stated(case), case, every(case)))]
        return last[0][1]

    def every(case: Case) -> range:
        return range(case.inputs[along(case)].shape[-2])

    def tokens(case: Case, op: str) -> tuple[int, ...]:
        own, none = list_ops(case), tuple(every(case))
        return own.tokens.get(op, none if own.program.tokens_of_ops is not None else ())

    def evaluate(
        case: Case,
        inputs: Mapping[str, Array],
        take: Callable[..., Array],
        arithmetic: Arithmetic,
        chosen: Sequence[Reading] = (),
    ) -> dict[str, Array]:
        program, settings = stated(case)
        places = {op: {*of} for op, of in list_ops(case).tokens.items()} if chosen else {}

        def take_of_case(
            op: str, t: int, compute: Callable[..., Array], *arguments: Any, **counts: Any
        ) -> Array:
            """An op that the case has at this token, where a reading may have others."""
            if chosen and t not in places.get(op, ()):
                return compute(*arguments)
            return take(op, t, compute, *arguments, **counts)

        return run(program, settings, inputs, exact(arithmetic), chosen, take=take_of_case)

    def leading(case: Case) -> int:
        return int(case.inputs[along(case)].ndim) - 2

    return Traced(ops=lambda case: list_ops(case).ops, run=evaluate, tokens=tokens, leading=leading)
