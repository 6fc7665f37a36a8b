"""What a sweep draws of a rule, and how a case of it becomes smaller, as data of its subject.

Specified in specs/sweep.md, SWEEP-14.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

Arrays = dict[str, np.ndarray[Any, Any]]

#: Values by the name under which they are drawn, the plainest first.
Space = Mapping[str, Sequence[Any]]

#: A change of the inputs of a case, by numbers of the generator.
Change = Callable[[Arrays, "np.random.Generator"], None]


class Candidate(NamedTuple):
    """A header and tensors that may or may not be a case."""

    header: dict[str, Any]
    tensors: Arrays


#: Name of an axis that has none of its own, as of one whose size follows from another.
UNNAMED = ""

#: Input -> names of its axes.
Names = Mapping[str, tuple[str, ...]]


class Shape(NamedTuple):
    """A tensor that has a shape and nothing else."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


def in_words(text: str, x: Any, rank: int) -> tuple[str, ...]:
    """Names of the axes of a tensor: its words, and in front of them the last of so many rows."""
    own = [word for word in text.split() if word != "..."]
    return (*(f"B{i}" for i in range(rank - x.ndim + len(own), rank)), *own)


def is_row(name: str) -> bool:
    """Whether an axis is one of a batch."""
    return name.startswith("B")


def size(names: Names, inputs: Mapping[str, Any], name: str) -> int:
    """Places of an axis, which some tensors may have once for all; 1 of one that is not there."""
    places = [x.shape[names[each].index(name)] for each, x in inputs.items() if name in names[each]]
    return int(max(places, default=1))


def take(names: Names, inputs: Arrays, places: Mapping[str, Sequence[int]]) -> Arrays:
    """Some places of named axes, and rows of steps with their tokens, in every tensor that has them.

    An axis of rows with one place for all stays as it is.
    """
    found = dict(inputs)
    if "T" in places:
        steps = size(names, inputs, "R") // size(names, inputs, "T")
        rows = [t * steps + i for t in places["T"] for i in range(steps)]
        places = {**places, "R": rows}
    for each, x in inputs.items():
        for axis, name in enumerate(names[each]):
            if name in places and not (is_row(name) and x.shape[axis] == 1):
                x = np.take(x, list(places[name]), axis=axis)
        found[each] = x
    return found


def along_tokens(names: Callable[[Any], Names], case: Case, tokens: Sequence[int]) -> Candidate:
    """Some tokens of a case, with the rows of their steps.

    Args:
        names: (case) -> names of the axes of its inputs.
    """
    return Candidate(case.header.plain(), take(names(case), case.inputs, {"T": tokens}))


#: Smaller candidates of a case, the boldest first; None for one that does not exist.
Move = Callable[[Any], Iterator[Candidate | None]]


class Drawing(NamedTuple):
    """What a sweep draws of a rule (SWEEP-14).

    Attributes:
        space: values that each name is drawn from, in the order of drawing.
        request: (fields, choices, long) -> fields of `Request` and those of `tensors`, made to fit
            where they are not fixed.
        regimes: name -> change of the inputs; the first leaves them as they are.
        convention: (generator) -> axes of the convention; None for a rule without one.
        tensors: (inputs, fields, header, generator) -> None; adds tensors that a request does not
            name and changes their kind, by those of the fields that `of_tensors` names.
        of_tensors: names of the space that `tensors` reads.
        closed: names that take no other values than those of the space.
        later: names that are drawn where they are fixed alone, by numbers of their own, since they
            came after a draw that was published.
        long: names of the space whose values are others in a long case (SWEEP-12); empty for a rule
            without such cases.
        named: changes of the inputs that are asked for by name alone; `slow` is that of a long case.
        moves: smaller candidates of a case, in the order in which they are tried (SWEEP-7).
    """

    space: Space
    request: Callable[[dict[str, Any], Space, bool], dict[str, Any]]
    regimes: Mapping[str, Change]
    convention: Callable[[np.random.Generator], dict[str, Any]] | None = None
    tensors: Callable[[Arrays, Mapping[str, Any], Any, np.random.Generator], None] | None = None
    of_tensors: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    long: Space = {}
    named: Mapping[str, Change] = {}
    moves: tuple[Move, ...] = ()


#: Sizes of a case of the linear family, in the order of drawing; the first value is the plainest.
SIZES: dict[str, tuple[int, ...]] = {
    "tokens": (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 33),
    "d_in": (1, 2, 3, 4, 5, 7, 8),
    "d_out": (1, 2, 3, 4, 5, 7, 8),
    "heads": (1, 2, 3),
    "batch": (1, 1, 2),
}

#: Tokens of a long case: more than the usual chunks of kernels, by one or two (SWEEP-12).
LONG = (65, 130, 257)


#: Tokens that three packed sequences of unequal lengths need.
PACKED = 6


def leading(request: Any, groups: int = 1) -> tuple[int, ...]:
    """Leading axes of a case at level projected: rows of a batch, where there are several, and heads.

    Args:
        groups: value heads of a key head; 1 for the axes of keys.
    """
    heads = request.heads * groups
    return (request.batch, heads) if request.batch > 1 else (heads,)


def starts(request: Any) -> np.ndarray[Any, Any] | None:
    """Tokens at which packed sequences start, but the first of all; None where nothing is packed.

    With `packed` there are three sequences, and two of few tokens, no two of one length (CASE-40).
    """
    steps = np.arange(request.tokens)
    if request.packed:
        first = max(1, request.tokens // 5)
        second = first - (first - request.tokens) // 3  # a third of what is left, rounded up
        places = (first, second) if request.tokens >= PACKED else (first,)
        return np.isin(steps, places).astype(np.uint8)
    if not request.reset:
        return None
    begun: np.ndarray[Any, Any] = (steps > 0) & (steps % request.reset == 0)
    return begun.astype(np.uint8)


def events(request: Any) -> Arrays:
    """Which tokens write, every one of some, and where packed sequences start."""
    found = Arrays()
    if request.pulse > 1:
        steps = np.arange(request.tokens)
        found["in/active"] = ((steps + 1) % request.pulse == 0).astype(np.uint8)
    if (first := starts(request)) is not None:
        found["in/reset"] = first
    return found


def rows_of_lengths(request: Any, tensors: Mapping[str, Any]) -> Arrays:
    """Masks of rows of unequal lengths: row i has i silent tokens, counted anew after T - 1 (CASE-40).

    They stand in front, behind which sequences start as much later, or behind, where none starts.
    """
    tokens = np.arange(request.tokens)
    silent = np.arange(request.batch)[:, None] % request.tokens
    left = request.padded == "left"
    writes = tokens >= silent if left else tokens < request.tokens - silent
    found = Arrays({"in/active": writes.astype(np.uint8)})
    if "in/reset" in tensors:
        reset = np.broadcast_to(tensors["in/reset"], writes.shape)
        places = np.maximum(tokens - silent, 0) if left else np.broadcast_to(tokens, writes.shape)
        found["in/reset"] = np.take_along_axis(reset, places, axis=-1) * found["in/active"]
    return found


def one(draw: np.random.Generator, values: Sequence[Any]) -> Any:
    """One of the values, by one number of the generator, however many there are."""
    return values[int(draw.uniform() * len(values))]


def count(value: Any) -> int:
    """A whole number from 1 as it is; 1 of anything else, which is refused elsewhere."""
    return value if isinstance(value, int) and value > 0 else 1


def fewer(size: int) -> Iterator[Sequence[int]]:
    """Places of an axis to keep: the first, halves, all but one."""
    if size > 1:
        half = size // 2
        yield from (range(1), range(half), range(half, size))
        for place in reversed(range(size)):
            yield [i for i in range(size) if i != place]


def smaller(size: int) -> Iterator[int]:
    """Sizes to try instead, the boldest first."""
    yield from dict.fromkeys(n for n in (1, size // 2, size - 1) if 1 <= n < size)


def header_of(case: Case, fields: Mapping[str, Any]) -> Any:
    """The header with these keys.

    Raises:
        ValueError: keys or values that the rule does not have.
    """
    return type(case.header).model_validate_json(json.dumps(dict(fields)))


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """An object without some of its keys."""
    return {name: value for name, value in fields.items() if name not in names}
