"""Mistakes of chunk forms of rule dplr: cumulated gates, writes of a chunk, its first memory (VEC-24).

Inside a chunk every write is kept with the gates behind it, as products of those, and the memory
is made at its end; `oracle.dplr.chunks` holds the form. A mistake that is the same function for
every number in the place of the case's is no mutant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.cases.inputs import convert
from atlas_ref.oracle.dplr import members, parameters
from atlas_ref.oracle.dplr.chunks.form import DIVISION, MISTAKES, YOUNGER, run
from atlas_ref.oracle.dplr.chunks.tokens import assemble, lay_out
from atlas_ref.oracle.family.mistake import WAY, Results
from atlas_ref.oracle.identify.readings.nodes import redrawn
from atlas_ref.oracle.judge import ensemble
from atlas_ref.oracle.norms import round_to
from atlas_ref.types import Array
from atlas_ref.vectors.inputs import dplr_targets
from atlas_ref.vectors.mutants import own

#: Tokens of a chunk in calls of few tokens, and in longer ones.
SHORT, SIZES = 4, (16, 32, 64, 128)

#: Tokens above which a call is a long one, whose mutants are these alone.
LONG = 16

#: Mistakes that results in bfloat16 do not show, as their tolerance has a sum in it (TOL-3); they
#: are no mutants. float32 rejects them.
FINE = ("cumulated gates in bfloat16", "memory between chunks in bfloat16")


#: The same under gates that are fixed and within 1/32 of 1: one of them too many is 3 % of a result.
FINE_OF_HEADS = ("first memory read too early", "own gate on own write")


#: Tokens of the largest chunks in which younger mistakes are mutants: of the memory that enters a
#: longer one too little is left at its end for results in bfloat16 to show them (VEC-27).
YOUNGEST = 16


def has(case: Case) -> bool:
    """Whether chunk forms of a case are these."""
    if case.header.rule != dplr_targets.RULE:
        return False
    settings = parameters.parse(case.header)
    if settings.of.second:  # a state of two matrices is no sum of writes
        return False
    return not members.by_row(
        settings.of, case.inputs
    )  # a system for each row has no chunks (DPLR-18)


def long(case: Case) -> bool:
    """Whether a case has so many tokens that its mutants are mistakes of chunks alone."""
    return has(case) and case.inputs["in/q"].shape[-2] > LONG


def sizes(case: Case) -> tuple[int, ...]:
    """Tokens of the chunks that a case is cut into; none where it has no chunk form."""
    if not has(case):
        return ()
    tokens = case.inputs["in/q"].shape[-2]
    if not long(case):
        return (SHORT,) if tokens > SHORT else ()
    return tuple(size for size in SIZES if size < tokens)


def named() -> dict[str, str]:
    """Every mutant in words, by its name."""
    return {
        named_in(name, size): f"{words}, of {size} tokens"
        for name, words in MISTAKES.items()
        if name not in FINE
        for size in (SHORT, *SIZES)
    }


def named_in(mistake: str, size: int) -> str:
    return f"{own.ahead(dplr_targets.RULE)}{mistake} in chunks of {size}"


def mutants(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """Names and results of every mutant of a case, in float32 and rounded to `dtype`."""
    for size in sizes(case):
        for wrong in made_in(case, size):
            yield named_in(wrong, size), kernel(case, dtype, size, wrong)


def made_in(case: Case, size: int) -> list[str]:
    """Mistakes that chunks of a size can show: those that are not the same function (VEC-24)."""
    moved = case.replaced(inputs=redrawn(case.inputs))
    right = exact(moved, size, "")
    of_heads = parameters.parse(case.header).of.gated == "heads"
    left_out = (*FINE, *(FINE_OF_HEADS if of_heads else ()))
    left_out += () if _younger(case) and size <= YOUNGEST else YOUNGER
    made = [
        wrong
        for wrong in MISTAKES
        if wrong not in left_out and own.apart(right, exact(moved, size, wrong))
    ]
    return made + ([DIVISION] if _closed(case) else [])


def _younger(case: Case) -> bool:
    """Whether a head has one gate, that is given, or several heads have long calls.

    No vector had either before (VEC-27, VEC-28).
    """
    gate, shape = (
        case.inputs.get("in/retain", case.inputs.get("in/log_retain")),
        case.inputs["in/v"].shape,
    )
    several = long(case) and shape[-3] > 1
    return gate is not None and (gate.ndim < len(shape) or several)


def _closed(case: Case) -> bool:
    """Whether a gate of a token that writes is 0, by which a quotient of gates is no number."""
    call = assemble(case.inputs, case.header)
    return call.gate is not None and bool((call.gate[..., call.active, :] == 0).any())


def kernel(case: Case, dtype: str, size: int, wrong: str = "") -> Results:
    """Results of the chunk form in float32, perhaps with a mistake, and its gradients."""
    return _rounded(_evaluated(case, _plain(size, wrong)), dtype)


def controls(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """The chunk form of the mutants without a mistake, which is legal (VEC-17)."""
    for size in sizes(case):
        yield f"the chunk form of the mutants, chunk {size}", kernel(case, dtype, size)


def exact(case: Case, size: int, wrong: str) -> Mapping[str, Any]:
    return ensemble.exact(case, grad=own.graded(case), plain=_plain(size, wrong))


def _evaluated(case: Case, plain: Any) -> Mapping[str, Any]:
    inputs = convert(case, "float32")
    return ensemble.evaluate(case, inputs, WAY, grad=own.graded(case), plain=plain)


def _rounded(results: Mapping[str, Any], dtype: str) -> Results:
    return {name: round_to(np.asarray(x), dtype) for name, x in results.items()}


def _plain(size: int, wrong: str) -> Any:
    def plain(inputs: Mapping[str, Array], case: Any, rounding: Any) -> dict[str, Array]:
        call = assemble(inputs, case.header)
        y, M = run(call, size, wrong)
        return {"out/y": y, "out/M": lay_out(M, case.header)}

    return plain
