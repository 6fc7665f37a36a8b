"""Readings of a case from the settings and mistakes of its program (PROG-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program import mistakes, run
from atlas_ref.oracle.program.context import Context
from atlas_ref.oracle.program.derive.ops import Stated, wide
from atlas_ref.oracle.program.program import Program, Setting, refuse_nothing
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.subjects.subject import Searched

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case


def context_of_case(stated: Stated, case: Case, chosen: Sequence[Reading] = ()) -> Any:
    """The context of a case beside some readings; what a formula makes of raw numbers is in float64."""
    program, settings = stated(case)
    inputs = case.inputs
    if any(name in inputs for name in program.raw):
        inputs = {name: wide(x) for name, x in inputs.items()}
    return run.context_under(program, settings, inputs, run.exact(PLAIN), chosen)


def search(stated: Stated, word: str, overflow: Callable[..., str] = lambda *given: "") -> Searched:
    """The other readings of a subject, each a setting or a mistake (PROG-5).

    Args:
        stated: (case) -> its program and parameters.
        word: what stands before the name of a mistake beside those of other subjects.
        overflow: (case, results, ours, dtype) -> what overflows just where results are not finite.
    """

    def settings(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
        (program, _), context = stated(case), context_of_case(stated, case, chosen)
        rows = [each for row in program.settings for each in others(row, context)]
        return [*rows, *program.others(context)]

    def departures(case: Case, chosen: Sequence[Reading] = ()) -> list[Reading]:
        (program, _), context = stated(case), context_of_case(stated, case, chosen)
        graded = any(name.endswith("_bar") for name in context.inputs)
        return [
            each
            for each in mistakes.of_program(program, context)
            if each.matters(context) and (graded or not each.grad) and _runs(program, context, each)
        ]

    def presets(case: Case) -> Mapping[str, list[Reading]]:
        return stated(case)[0].presets(context_of_case(stated, case))

    def further(case: Case) -> list[Reading]:
        return list(stated(case)[0].further(context_of_case(stated, case)))

    def keeps(case: Case, each: Reading) -> bool:
        """Whether a reading has the ops of the case, in their shapes."""
        (program, _), context = stated(case), context_of_case(stated, case)
        square = all(
            context.shapes[name][-1] == context.shapes[name][-2]
            for name in program.states
            if name in program.matrices
        )
        return each.around is None and (square or "parameters.state_layout" not in each.change)

    return Searched(
        settings=settings,
        departures=departures,
        presets=presets,
        run=run.of_cases(stated),
        keeps=keeps,
        named={},
        word=word,
        narrow=lambda each: each.narrow,
        further=further,
        overflow=overflow,
    )


def _runs(program: Program, context: Context, each: Reading) -> bool:
    """Whether the inputs that a reading makes are some that the program takes."""
    if program.check is refuse_nothing:
        return True
    settings = each.settings_of(context.settings)
    inputs = context.inputs if each.inputs is None else each.inputs(dict(context.inputs))
    try:
        program.check(inputs, settings)
    except ValueError:
        return False
    return True


def others(setting: Setting, context: Context) -> Iterator[Reading]:
    """Every other value of a setting, each function once."""
    if not setting.matters(context):
        return
    own = setting.own(context.settings)
    found = [setting.function(context, own)]
    for value in setting.candidates(context):
        if (key := setting.function(context, value)) not in found:
            found.append(key)
            yield of_setting(setting, value, own)


def of_setting(setting: Setting, value: Any, own: Any) -> Reading:
    """The reading of a setting with another value, in the words of a case."""
    name, said, before = setting.key, setting.said(value), setting.said(own)
    whole = setting.put is None
    return Reading(
        name=f"{name}={said:g}" if isinstance(said, float) else f"{name}={said}",
        settings={setting.name: value} if whole else {},
        put=None if whole else partial(setting.change, value=value),
        change={name: said},
        before={name: before},
    )
