"""Smaller cases of a rule: fewer tokens, settings, tensors, heads and channels (SWEEP-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from atlas_ref.oracle.drawing import (
    UNNAMED,
    Candidate,
    Move,
    Names,
    fewer,
    is_row,
    size,
    smaller,
    take,
    without,
)
from atlas_ref.oracle.program.program import Program

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

Places = Mapping[str, Sequence[int]]

#: Axes that are no widths.
OTHERS = ("T", "R", "Q", "V", "H", UNNAMED)

Fit = Callable[[Any, dict[str, Any], Mapping[str, Any]], Candidate | None]


def as_it_is(case: Case, header: dict[str, Any], inputs: Mapping[str, Any]) -> Candidate | None:
    """A candidate as it is."""
    return Candidate(header, dict(inputs))


class Smaller(NamedTuple):
    """What a rule says of its smaller cases, of which moves are made.

    Attributes:
        axes: (case) -> input -> names of its axes: T tokens, R rows of their steps, B0, B1 of a
            batch, Q, V, H heads, widths.
        optional: (case) -> inputs that it may lack, those that need each other together; PART/ is
            all with this part in front.
        settings: candidates with plainer settings.
        fit: (case, header, inputs) -> inputs made to fit settings; None where they cannot.
        follow: (case, places of axes) -> those of all axes that are cut with them.
        widths: the order in which they are cut; none for that of the case.
        prefixes: whether a width keeps its first places alone.
    """

    axes: Callable[[Any], Names]
    optional: Callable[[Any], Iterable[Sequence[str]]]
    settings: tuple[Callable[[Any], Iterator[Candidate | None]], ...]
    fit: Fit = as_it_is
    follow: Callable[[Any, Places], Places] = lambda case, places: places
    widths: tuple[str, ...] = ("d_out", "d_in")
    prefixes: bool = False

    def cut(self, case: Case, places: Places, **changed: Any) -> Candidate | None:
        """The case with some places of named axes alone, and these parameters."""
        inputs = take(self.axes(case), case.inputs, self.follow(case, places))
        given = {**case.header.plain().get("parameters", {}), **changed}
        return self.fit(case, fields(case, parameters=given), inputs)

    def without(self, case: Case, names: Sequence[str]) -> Candidate | None:
        """The case without these inputs; None where it has none of them."""
        parts = tuple(each for each in names if each.endswith("/"))
        gone = [name for name in case.inputs if name in names or name.startswith(parts)]
        return self.fit(case, case.header.plain(), without(case.inputs, *gone)) if gone else None


def fields(case: Case, **changed: Any) -> dict[str, Any]:
    """The keys of a header with others, without those that are then empty."""
    empty = [name for name, value in changed.items() if value in ({}, None)]
    return without(case.header.plain() | changed, *empty)


def conventions(given: Any, plain: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The plainest convention, and one axis less; a preset by its name has none."""
    if given != plain:
        yield dict(plain)
    for axis in given if isinstance(given, dict) else ():
        if given[axis] != plain.get(axis):
            yield without(given, axis)


def of(rule: Smaller) -> tuple[Move, ...]:
    """Smaller candidates of a case, in the order of SWEEP-7."""
    parts = (_optional, _rows, _widths, _tokens)
    first, *others = (partial(each, rule) for each in (_tokens, *parts))
    return (first, *rule.settings, *others)


def _tokens(of: Smaller, case: Case) -> Iterator[Candidate | None]:
    """The first token, halves, then all but one token."""
    for keep in fewer(size(of.axes(case), case.inputs, "T")):
        yield of.cut(case, {"T": keep})


def _optional(of: Smaller, case: Case) -> Iterator[Candidate | None]:
    """Without a note, and without some tensors that a case may lack."""
    if "note" in case.header.plain():
        yield Candidate(fields(case, note=None), dict(case.inputs))
    for names in of.optional(case):
        yield of.without(case, names)


def _rows(of: Smaller, case: Case) -> Iterator[Candidate | None]:
    """One row of a batch, one key head with its value heads; no such axis where there is one."""
    found = of.axes(case)
    labels = dict.fromkeys(sum(found.values(), ()))
    lead = [each for each in labels if is_row(each)]
    for label in (*lead, "H" if "H" in labels else "V"):
        for keep in fewer(size(found, case.inputs, label)):
            yield of.cut(case, {label: keep})
    first = lead[:1] or [each for each in ("Q", "V", "H") if each in labels]
    if first and all(size(found, case.inputs, label) == 1 for label in first):
        left = {
            name: x[0] if set(found[name][:1]) & set(first) else x
            for name, x in case.inputs.items()
        }
        yield Candidate(case.header.plain(), left)


def _widths(of: Smaller, case: Case) -> Iterator[Candidate | None]:
    """Fewer channels of each width; of all of them together."""
    found = of.axes(case)
    labels = dict.fromkeys(sum(found.values(), ()))
    own = of.widths or [each for each in labels if each not in OTHERS and not is_row(each)]
    sizes = [size(found, case.inputs, label) for label in own]
    for label, places in zip(own, sizes, strict=True):
        for keep in map(range, smaller(places)) if of.prefixes else fewer(places):
            yield of.cut(case, {label: keep})
    for places in smaller(min(sizes)) if len(own) > 1 else ():
        yield of.cut(case, dict.fromkeys(own, range(places)))


def in_layout(program: Program, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with the matrices of states in the other layout."""
    matrices = [state for state in program.states if state in program.matrices]
    turned = {f"in/{state}{end}" for state in matrices for end in ("0", "_bar")}
    return {name: x.swapaxes(-1, -2) if name in turned else x for name, x in inputs.items()}
