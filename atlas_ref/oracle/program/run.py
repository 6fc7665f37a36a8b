"""One run of a program: its loop on the inputs of a case, under readings, with a hook (PROG-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from atlas_ref.oracle.program.context import Context, Label, unlabelled
from atlas_ref.oracle.program.hook import Hook, Take, computed
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.types import Array


def run(
    program: Program,
    settings: Any,
    inputs: Mapping[str, Any],
    rounding: Rounding,
    readings: Sequence[Reading] = (),
    *,
    take: Take = computed,
    label: Label = unlabelled,
) -> dict[str, Array]:
    """Results out/y and out/STATE of a program, in the layout of the case (PROG-1, PROG-2).

    Args:
        settings: parameters of the case.
        readings: what the program does otherwise.
        take: the hook of a trace, called at every op.
        label: told where the values of the loop come from.
    """
    for reading in readings:
        settings = settings.replaced(**reading.settings) if reading.settings else settings
        inputs = inputs if reading.inputs is None else reading.inputs(dict(inputs))

    def compute(x: dict[str, Any]) -> dict[str, Array]:
        context = context_of(program, settings, x, rounding)._replace(label=label)
        hook = Hook(context, program.rounding, readings, take)
        found = program.loop(context, hook)
        results = {name: hook.result(name, value) for name, value in found.items()}
        return {f"out/{name}": context.matrix(name, value) for name, value in results.items()}

    for reading in readings:
        compute = compute if reading.around is None else partial(reading.around, compute)
    return compute(dict(inputs))


def context_of(
    program: Program, settings: Any, inputs: Mapping[str, Any], rounding: Rounding
) -> Context:
    """What a loop runs on."""
    return Context(
        tensors=program.tensors,
        shapes=program.shapes(inputs, settings),
        matrices=program.matrices,
        inputs=inputs,
        settings=settings,
        rounding=rounding,
    )
