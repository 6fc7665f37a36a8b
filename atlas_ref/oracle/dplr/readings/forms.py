"""Mistakes of chunk forms as readings of a case: the mutants of VEC-24 (DPLRCASE-25)."""

from __future__ import annotations

from collections.abc import Iterator

from atlas_ref.oracle.dplr import members
from atlas_ref.oracle.dplr.chunks import form, tokens
from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.readings.calls import SIZES
from atlas_ref.oracle.program.changes import Inputs
from atlas_ref.oracle.program.reading import Around, Compute, Reading

#: Tokens of a chunk in calls that are shorter than any of `SIZES`.
SHORT = (4, 8)

#: Mistakes that results in float64 do not show, and one of the backward pass.
OTHERS = (form.DIVISION, "cumulated gates in bfloat16", "dM dropped")


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """Every mistake of a chunk form, by the tokens of a chunk."""
    if context.settings.of.second or members.by_row(context.settings.of, context.inputs):
        return
    for size in sizes(context):
        undecayed = form.UNDECAYED if context.gate else {}
        for wrong, words in {**form.MISTAKES, **undecayed}.items():
            if wrong not in OTHERS:
                said = f"in chunks of {size} {words}"
                whole = wrong == "tail dropped"
                yield Reading(said, said, around=_around(size, wrong), whole=whole)


def sizes(context: DplrContext) -> list[int]:
    """Tokens of chunks that are tried: the next one above all tokens is one chunk of padding."""
    below = [size for size in (*SHORT, *SIZES) if size < context.tokens]
    above = [size for size in SIZES if size >= context.tokens]
    return [*(below if context.tokens <= SIZES[0] else below[len(SHORT) :]), *above[:1]]


def _around(size: int, wrong: str) -> Around:
    def around(compute: Compute, context: DplrContext, inputs: Inputs) -> Inputs:
        call = tokens.of_settings(context.settings, inputs)
        y, M = form.run(call, size, wrong)
        return {"out/y": y, "out/M": tokens.turned(M, context.settings)}

    return around
