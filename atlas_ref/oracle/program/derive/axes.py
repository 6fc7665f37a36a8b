"""Names of the axes of every input of a case, read off the shapes that a program wants (PROG-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atlas_ref.oracle.drawing import Arrays, Candidate
from atlas_ref.oracle.program.derive.tensors import shapes
from atlas_ref.oracle.program.program import Program

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Sizes that no two axes share: of leading axes, and of those behind them.
LEADING, BEHIND = 211, 101


#: Input -> names of its axes, "" of one without a name.
Names = Mapping[str, tuple[str, ...]]


class Shape(NamedTuple):
    """A tensor that has a shape and nothing else."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


def groups_of(program: Program, settings: Any) -> tuple[str, int]:
    """The setting that counts value heads of a key head with its value; "" and 1 without one."""
    return next(
        ((each.name, getattr(settings, each.name)) for each in program.settings if each.heads),
        ("", 1),
    )


def axes(program: Program, settings: Any, inputs: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Input -> names of its axes.

    B0, B1 are those of a batch, V value heads, H key heads; then come the words of the tensor.
    """
    first, tensor = next(iter(program.tensors.items()))
    rank = len(inputs[first].shape) - len(tensor.axes.split()[1:])
    _, groups = groups_of(program, settings)
    lead = tuple(f"B{i}" for i in range(rank - 1)) + (("V",) if rank else ())
    sizes = {name: LEADING + i for i, name in enumerate(lead)}
    sizes |= {"H": BEHIND, "V": BEHIND * groups} if rank else {}
    for each in program.tensors.values():
        for word in each.axes.replace(", or", "").split():
            if word not in ("...", "heads"):
                sizes.setdefault(word, BEHIND + 2 * len(sizes) + 2)
    wanted = {
        name: Shape(tuple(sizes[word] for word in _words(each.axes, lead, inputs[name].ndim)))
        for name, each in program.tensors.items()
        if each.need == "yes"
    }
    labels = {size: name for name, size in sizes.items()}
    labels |= {sizes["V"]: "V"} if rank else {}  # where each head has a key of its own
    found = shapes(program, settings, wanted)
    return {name: tuple(labels[size] for size in found[name]) for name in inputs}


def in_words(text: str, x: Any, rank: int) -> tuple[str, ...]:
    """Names of the axes of a tensor: those in words, and in front of them the last of so many rows."""
    own = [word for word in text.split() if word != "..."]
    return (*(f"B{i}" for i in range(rank - x.ndim + len(own), rank)), *own)


def is_row(name: str) -> bool:
    """Whether an axis is one of a batch."""
    return name.startswith("B")


def size(names: Names, inputs: Mapping[str, Any], name: str) -> int:
    """Places of an axis, which some tensors may have once for all; 1 of one that is not there."""
    places = [x.shape[names[each].index(name)] for each, x in inputs.items() if name in names[each]]
    return int(max(places, default=1))


def taken(names: Names, inputs: Arrays, places: Mapping[str, Sequence[int]]) -> Arrays:
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
    return Candidate(case.header.plain(), taken(names(case), case.inputs, {"T": tokens}))


def _words(text: str, lead: tuple[str, ...], rank: int) -> tuple[str, ...]:
    """Axes of a tensor in words: of those that it may have, as many as it has."""
    for words in (each.split() for each in text.split(", or ")):
        if words[0] == "...":
            return (*lead, *words[1:])
        if len(words) == rank:
            return tuple("V" if word == "heads" else word for word in words)
    return (*lead[len(lead) + 1 - rank :], text.split()[-1])
