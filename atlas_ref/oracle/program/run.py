"""One run of a program: its loop on the inputs of a case, under readings, with a hook (PROG-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.context import Context, Label, no_label
from atlas_ref.oracle.program.hook import Take, hook_of, same, take_as_is
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Compute, Reading
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array
from tape import ops

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case


def run(
    program: Program,
    settings: Any,
    inputs: Mapping[str, Any],
    rounding: Rounding,
    readings: Sequence[Reading] = (),
    *,
    take: Take = take_as_is,
    label: Label = no_label,
) -> dict[str, Array]:
    """Results out/y and out/STATE of a program, in the layout of the case (PROG-1, PROG-2).

    Args:
        settings: parameters of the case.
        readings: what the program does otherwise.
        take: the hook of a trace, called at every op.
        label: told where the values of the loop come from.
    """
    alike = partial(run, program, settings, inputs, rounding, take=take, label=label)
    if any(each.backward for each in readings):
        values = alike([each for each in readings if not each.backward])
        slopes = alike([each._replace(backward=False) for each in readings])
        return {name: _with_slope(x, slopes[name]) for name, x in values.items()}
    context = context_under(program, settings, inputs, rounding, readings)
    if label is not no_label:
        context = context._replace(label=label)

    def compute(x: Mapping[str, Any]) -> dict[str, Array]:
        own = context
        if x is not context.inputs:
            own = context._replace(inputs=x, shapes=program.shapes(x, context.settings))
        hook = hook_of(own, program.rounding, readings, take)
        found = program.loop(own, hook)
        results = {name: hook.result(name, value) for name, value in found.items()}
        return {f"out/{name}": own.matrix(name, value) for name, value in results.items()}

    around = [reading.around for reading in readings if reading.around is not None]
    if not around:
        return compute(context.inputs)
    whole: Compute = compute
    for each in around:
        whole = partial(each, whole, context)
    return whole(dict(context.inputs))


def of_cases(stated: Callable[[Any], tuple[Program, Any]]) -> Callable[..., dict[str, Array]]:
    """The run of cases, as `Subject.plain` and a search have it: (inputs, case, rounding, readings).

    Args:
        stated: (case) -> its program and parameters.
    """

    def results(
        inputs: Mapping[str, Array], case: Case, rounding: Rounding, chosen: Sequence[Reading] = ()
    ) -> dict[str, Array]:
        return run(*stated(case), inputs, rounding, chosen)

    return results


def _with_slope(x: Array, other: Array) -> Array:
    """A value with the derivative of another one."""
    return ops.stop_gradient(x) + (other - ops.stop_gradient(other))


def context_under(
    program: Program,
    settings: Any,
    inputs: Mapping[str, Any],
    rounding: Rounding,
    readings: Sequence[Reading] = (),
) -> Context:
    """What a loop runs on under readings: their settings, and inputs behind formulas that make some."""
    for each in readings:
        settings = each.settings_of(settings)
        inputs = inputs if each.raw is None else each.raw(dict(inputs))
    context = context_of(program, settings, inputs, rounding)
    if program.formulas is not None and any(name in inputs for name in program.raw):
        context = program.formulas(hook_of(context, {}, readings))
    changed = context.inputs
    for each in readings:
        changed = changed if each.inputs is None else each.inputs(dict(changed))
    if changed is context.inputs:
        return context
    return context._replace(inputs=changed, shapes=program.shapes(changed, settings))


def context_of(
    program: Program, settings: Any, inputs: Mapping[str, Any], rounding: Rounding
) -> Context:
    """What a loop runs on, before a formula makes some of its inputs."""
    return program.context(
        tensors=program.tensors,
        shapes=program.shapes(inputs, settings),
        matrices=program.matrices,
        inputs=inputs,
        settings=settings,
        rounding=rounding,
        steps=program.steps(settings),
        step_ops=program.step_ops,
    )


def exact(arithmetic: Arithmetic) -> Rounding:
    """An arithmetic in which nothing is rounded beside sums and products."""
    return Rounding(arithmetic, same, same, None)
