"""Smaller cases of a program: fewer tokens, settings, tensors, heads and channels (RECUR-16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.drawing import Arrays, Candidate, Move, fewer, smaller, without
from atlas_ref.oracle.program.derive.axes import DECIDED, axes, groups_of
from atlas_ref.oracle.program.derive.ops import Stated
from atlas_ref.oracle.program.program import Program

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: Axes that are no widths.
OTHERS = ("T", "V", "H", DECIDED)


def moves(stated: Stated) -> tuple[Move, ...]:
    """Smaller candidates of a case, in the order of SWEEP-7.

    Args:
        stated: (case) -> its program and parameters.
    """

    def tokens(case: Case) -> Iterator[Candidate]:
        """The first token, halves, then all but one token."""
        of = _Cut(case, *stated(case))
        for keep in fewer(of.size("T")):
            yield of.cut({"T": keep})

    def settings(case: Case) -> Iterator[Candidate]:
        """Without a note, one value head a key head, parameters at their defaults."""
        of = _Cut(case, *stated(case))
        if "note" in of.header:
            yield Candidate(without(of.header, "note"), dict(case.inputs))
        name, count = groups_of(of.program, of.settings)
        for n in smaller(count):
            kept = [i for i in range(of.size("V")) if i % count < n]
            yield of.cut({"V": kept}, **{name: n})
        for each in of.program.settings:
            if each.name in of.header["parameters"] and not each.heads:
                yield of.without(each.name)

    def optional(case: Case) -> Iterator[Candidate]:
        """Without some tensors that a case may lack."""
        of = _Cut(case, *stated(case))
        states = of.program.states
        firsts = [f"in/{name}0" for name in states]
        bars = [f"in/{name}_bar" for name in states]
        singles = [[each] for each in (*bars, *firsts, "in/active", "in/reset")]
        for names in ([*firsts, *bars], bars, firsts, *singles, ["in/y_bar", *bars]):
            left = without(case.inputs, *names)
            if len(left) < len(case.inputs):
                yield Candidate(of.header, left)

    def heads(case: Case) -> Iterator[Candidate]:
        """One row of a batch, one key head with its value heads."""
        of = _Cut(case, *stated(case))
        _, count = groups_of(of.program, of.settings)
        lead = [each for each in of.labels() if each.startswith("B")]
        for label in lead:
            for keep in fewer(of.size(label)):
                yield of.cut({label: keep})
        for keep in fewer(of.size("V") // count):
            yield of.cut({"H": keep, "V": [i * count + j for i in keep for j in range(count)]})

    def widths(case: Case) -> Iterator[Candidate]:
        """Fewer channels of keys, of values, of slots; of keys and values together."""
        of = _Cut(case, *stated(case))
        own = [each for each in of.labels() if each not in OTHERS and not each.startswith("B")]
        for label in own:
            for keep in fewer(of.size(label)):
                yield of.cut({label: keep})
        if len(own) > 1:
            for size in smaller(min(of.size(label) for label in own)):
                yield of.cut(dict.fromkeys(own, range(size)))

    return (tokens, settings, optional, heads, widths, tokens)


class _Cut:
    """A case with the names of its axes."""

    def __init__(self, case: Case, program: Program, settings: Any) -> None:
        self.case, self.program, self.settings = case, program, settings
        self.header: dict[str, Any] = case.header.plain()
        self.axes = axes(program, settings, case.inputs)

    def labels(self) -> list[str]:
        """Every axis once."""
        return list(dict.fromkeys(label for each in self.axes.values() for label in each))

    def size(self, label: str) -> int:
        """Places of an axis; 1 of one that is not there."""
        inputs: Arrays = self.case.inputs
        sizes = (
            x.shape[self.axes[n].index(label)] for n, x in inputs.items() if label in self.axes[n]
        )
        return int(next(sizes, 1))

    def cut(self, places: dict[str, Sequence[int]], **changed: Any) -> Candidate:
        """The case with some places of named axes alone, and these parameters."""
        found = {}
        for name, x in self.case.inputs.items():
            for axis, label in enumerate(self.axes[name]):
                if label in places:
                    x = np.take(x, list(places[label]), axis=axis)
            found[name] = x
        given = {**self.header["parameters"], **changed}
        return Candidate({**self.header, "parameters": given}, found)

    def without(self, name: str) -> Candidate:
        """The case with a parameter at its default, its matrices in the layout of then."""
        given = without(self.header["parameters"], name)
        turned = {
            f"in/{state}{end}"
            for state in self.program.states
            for end in ("0", "_bar")
            if name == "state_layout" and state in self.program.matrices
        }
        found = {
            each: x.swapaxes(-1, -2) if each in turned else x
            for each, x in self.case.inputs.items()
        }
        return Candidate({**self.header, "parameters": given}, found)
