"""Mistakes of a backward pass by hand: what a gradient lacks, and rows of it (DPLRCASE-25).

A gradient that goes through a linear map on its way out is that of a tensor which is, in value, as
it was, and in slope behind the map's transpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.masked import LEFT
from atlas_ref.oracle.dplr.readings import calls, wraps
from atlas_ref.oracle.dplr.readings.habits import habits_of_values
from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops

#: Inputs that have no gradient.
WITHOUT = ("in/active", "in/reset")

#: Factors of one gradient.
FACTORS = {"doubled": 2.0, "halved": 0.5, "of the other sign": -1.0}


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """What is wrong with gradients alone, those of parts of the rule first (IDENT-18)."""
    if context.settings.of.erase == "error":
        yield wraps.constant_reading(
            "rate of erase", "the gradient of in/beta lacked what the erase took away"
        )
        yield wraps.constant_reading(
            "rate of write", "the gradient of in/beta lacked what was written"
        )
    words = "no gradient went to the key along which a pair is written"
    key = "key of momentum" if context.settings.of.second == "S" else "key of write"
    yield Reading("key of write held", words, grad=True, ops=wraps.SLOPES[key])
    names = [n for n in context.inputs if n not in WITHOUT and not n.endswith("_bar")]
    for name in (
        names
        if context.settings.gate_formula is None and context.settings.beta_formula is None
        else ()
    ):
        yield from _of_tensor(context, name)
    yield from _of_rows(context, names)
    yield from _of_chunks(context)
    yield from _of_other_forward(context)


def _slope(words: str, name: str, change: changes.Turn) -> Reading:
    return Reading(
        words, words, grad=True, inputs=changes.change_tensor(name, partial(with_slope, change))
    )


def with_slope(change: changes.Turn, x: Array) -> Array:
    """A tensor as it is, whose gradient goes through the transpose of a linear change."""
    other = change(x)
    return ops.stop_gradient(x) + (other - ops.stop_gradient(other))


def _of_tensor(context: DplrContext, name: str) -> Iterator[Reading]:
    """One gradient that is 0, or has a factor or a layout that is wrong."""
    bare = name.removeprefix("in/")
    yield _slope(f"no gradient went to {name}", name, ops.stop_gradient)
    d_in, d_out = context.inputs["in/k"].shape[-1], context.inputs["in/v"].shape[-1]
    roots = {"multiplied by 1/sqrt(d_in)": d_in**-0.5, "multiplied by sqrt(d_in)": math.sqrt(d_in)}
    roots |= {"multiplied by 1/sqrt(d_out)": d_out**-0.5}
    for words, factor in {**FACTORS, **roots}.items():
        yield _slope(f"grad/{bare} was {words}", name, changes.times(factor))
    if name in ("in/M0", "in/S0") and context.square:
        words = f"grad/{bare} was transposed"
        yield _slope(words, name, lambda x: ops.swapaxes(x, -1, -2))
    if name == "in/beta":
        words = "grad/beta was that of the logit of a sigmoid"
        factor = context.inputs[name] * (1 - context.inputs[name])
        yield _slope(words, name, lambda x: np.asarray(factor, x.dtype) * x)
    if name == "in/retain":
        words = "grad/retain was that of its log"
        factor = context.inputs[name]
        yield _slope(words, name, lambda x: np.asarray(factor, x.dtype) * x)


#: What gradients of rows are, and the change whose slope that is: places of an axis, and a shift.
ROWS = ("zero", "those of the first", "one token late", "one token early", "of the head before")


def _of_rows(context: DplrContext, names: list[str]) -> Iterator[Reading]:
    """Gradients of all tensors of tokens that are wrong in rows of the batch or heads past the first."""
    lead = len(context.inputs["in/v"].shape) - 2
    for axis, word in ((0, "rows of the batch"), (lead - 1, "heads")):
        if lead < 1 or (axis == 0 and lead < 2) or context.inputs["in/v"].shape[axis] < 2:
            continue
        for kind in ROWS:
            if kind == "of the head before" and axis == lead - 1:
                continue
            for states in (False, True) if kind in ROWS[:2] else (False,):
                some = [n for n in names if _has_rows(context, n, lead, states=states)]
                beside = " and states" if states else ""
                words = f"gradients{beside} of {word} past the first were {kind}"
                change = partial(past_first, axis=axis, kind=kind, lead=lead)
                yield Reading(words, words, grad=True, inputs=partial(_each, some, change))


def _has_rows(context: DplrContext, name: str, lead: int, *, states: bool) -> bool:
    of_state = name in LEFT.values()
    return len(context.inputs[name].shape) > lead and (states or not of_state)


def _each(
    names: list[str], change: Callable[..., Array], inputs: dict[str, Array]
) -> dict[str, Array]:
    return {**inputs, **{n: with_slope(partial(change, name=n), inputs[n]) for n in names}}


def past_first(x: Array, *, name: str, axis: int, kind: str, lead: int) -> Array:
    """The change of a tensor whose slope is gradients that are wrong past the first of an axis."""
    ahead = (slice(None),) * axis
    first, rest = x[(*ahead, slice(0, 1))], x[(*ahead, slice(1, None))]
    if kind in ("zero", "those of the first"):
        rest = ops.stop_gradient(rest)
    if kind == "those of the first":  # the sum's slope is one of every row
        first = ops.sum(x, axis=axis, keepdims=True)
    elif kind != "zero" and name not in LEFT.values():
        along = lead if kind.startswith("one token") else lead - 1
        by = -1 if kind.endswith("late") or kind.startswith("of the head") else 1
        count = x.shape[along]
        places = (np.arange(count) - by) % count
        rest = ops.index(rest, (*(slice(None),) * along, places))
    return ops.concatenate([first, rest], axis=axis)


def _of_chunks(context: DplrContext) -> Iterator[Reading]:
    """Gradients that stop at the start of a chunk."""
    for size in (4, 8, *calls.SIZES):
        if size < context.tokens:
            words = f"gradients of states stopped every {size} tokens"
            yield Reading(words, words, grad=True, around=calls.stop(size))


def _of_other_forward(context: DplrContext) -> Iterator[Reading]:
    """The backward pass of a program that makes a mistake in it, whose values are right."""
    for each in (*habits_of_values(context), *calls.of_chunk_forms(context)):
        words = f"the backward pass were of a program in which {each.words}"
        name = f"backward: {each.name}"
        yield each._replace(name=name, words=words, grad=True, backward=True)
