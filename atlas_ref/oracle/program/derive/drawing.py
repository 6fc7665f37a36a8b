"""What a sweep draws of the programs of a rule, and how a case of one becomes smaller (RECUR-16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_ref.oracle.drawing import (
    LONG,
    SIZES,
    Arrays,
    Candidate,
    Drawing,
    Space,
    one,
    size,
    smaller,
    without,
)
from atlas_ref.oracle.program.context import TRANSPOSED
from atlas_ref.oracle.program.derive import moves, tensors
from atlas_ref.oracle.program.derive.axes import axes, groups_of
from atlas_ref.oracle.program.derive.ops import Stated
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.regimes import LINEAR, LINEAR_NAMED

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case

#: States and events of a case, in the order of drawing; the first value is the plainest.
EVENTS: Space = {
    "state": ("absent", "first", "first"),
    "state_bar": (False, True),
    "pulse": (1, 1, 1, 2, 3),
    "reset": (0, 0, 0, 4, 5),
    "dtype": ("float64", "float32", "bfloat16", "float16"),
}

#: Names of the space that no request has.
OF_TENSORS = ("state", "state_bar")


def drawing(stated: Stated, programs: Mapping[str, Program], key: str) -> Drawing:
    """The draw of a rule whose cases name a program under a parameter (RECUR-16).

    Args:
        stated: (case) -> its program and parameters.
        programs: name -> program.
        key: the parameter.
    """
    drawn_ones = {name: each for name, each in programs.items() if not each.later}
    settings = _settings(drawn_ones)
    later = {each: x for each, x in _settings(programs).items() if each not in settings}

    def request(fields: dict[str, Any], choices: Space, long: bool) -> dict[str, Any]:
        drawn = dict(fields)
        name = drawn.pop(key)
        of = programs.get(name)
        given = {each: drawn.pop(each) for each in (*settings, *later) if each in drawn}
        if of is not None and of.later:
            given = _draw_settings(of, fields["seed"]) | {
                k: given[k] for k in choices if k in given
            }
        own = set() if of is None else {each.name for each in of.settings}
        kept = {
            each: value
            for each, value in given.items()
            if value is not None
            and (each in choices or (each in own and value != (settings | later)[each][0]))
        }
        return drawn | {"parameters": {key: name, **kept}}

    return Drawing(
        space={**SIZES, key: tuple(drawn_ones), **settings, **EVENTS},
        request=request,
        tensors=lambda inputs, fields, header, generator: _dress(
            *stated(_Of(header)), inputs, fields, generator
        ),
        of_tensors=OF_TENSORS,
        closed=OF_TENSORS,
        later=tuple(later),
        regimes=LINEAR,
        long={"tokens": LONG},
        named=LINEAR_NAMED,
        moves=moves.of(_smaller(stated)),
    )


def _settings(programs: Mapping[str, Program]) -> dict[str, Sequence[Any]]:
    """Settings of programs with the values that are drawn."""
    return {
        each.name: each.drawn
        for program in programs.values()
        for each in program.settings
        if each.drawn
    }


def _draw_settings(program: Program, seed: int) -> dict[str, Any]:
    """Settings of a program that came after a published draw, by numbers of their own."""
    draw = np.random.Generator(np.random.Philox(key=(seed << 64) | 1))
    return {name: one(draw, values) for name, values in _settings({"": program}).items()}


class _Of:
    """A header in the place of a case."""

    def __init__(self, header: Any) -> None:
        self.header = header


def _dress(
    program: Program,
    settings: Any,
    inputs: Arrays,
    fields: Mapping[str, Any],
    generator: np.random.Generator,
) -> None:
    """First states and cotangents of the last, as they were drawn."""
    found = tensors.states(program, settings, inputs, generator)
    for name in program.states:
        for place, wanted in (
            (f"in/{name}0", fields["state"] != "absent"),
            (f"in/{name}_bar", bool(fields["state_bar"])),
        ):
            inputs.pop(place, None)
            if wanted and place in found:
                inputs[place] = found[place]


# -- smaller cases ----------------------------------------------------------------------------------


def _smaller(stated: Stated) -> moves.Smaller:
    """What a program says of its smaller cases, by its tensors and settings (RECUR-16)."""

    def settings(case: Case) -> Iterator[Candidate | None]:
        """One value head a key head, parameters at their defaults."""
        program, own = stated(case)
        name, count = groups_of(program, own)
        places = range(size(of.axes(case), case.inputs, "V"))
        for n in smaller(count):
            yield of.cut(case, {"V": [i for i in places if i % count < n]}, **{name: n})
        given = case.header.plain()["parameters"]
        for each in program.settings:
            if each.name in given and not each.heads:
                found = moves.fields(case, parameters=without(given, each.name))
                turned = each.name == "state_layout" and given[each.name] == TRANSPOSED
                yield Candidate(
                    found, moves.in_layout(program, case.inputs) if turned else case.inputs
                )

    def follow(case: Case, places: moves.Places) -> moves.Places:
        _, count = groups_of(*stated(case))
        heads = places.get("H")
        own = {} if heads is None else {"V": [i * count + j for i in heads for j in range(count)]}
        return {**places, **own}

    def optional(case: Case) -> list[list[str]]:
        states = stated(case)[0].states
        firsts, bars = ([f"in/{name}{end}" for name in states] for end in ("0", "_bar"))
        singles = [[each] for each in (*bars, *firsts, "in/active", "in/reset")]
        return [[*firsts, *bars], bars, firsts, *singles, ["in/y_bar", *bars]]

    of = moves.Smaller(
        axes=lambda case: axes(*stated(case), case.inputs),
        optional=optional,
        settings=(settings,),
        follow=follow,
        widths=(),
    )
    return of
