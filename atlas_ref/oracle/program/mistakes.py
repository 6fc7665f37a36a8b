"""Mistakes that a program may have whatever it computes: masks, states, gates, tokens (PROG-4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.context import Context
from atlas_ref.oracle.program.hook import by, same, without_gradient
from atlas_ref.oracle.program.program import Program
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops

#: The log of a gate, and the op that it becomes.
LOG, GATE = "in/log_retain", "gate"

#: Inputs with a row for each token that a kernel may take from another one, in words.
ROWS = {"in/q": "queries", "in/k": "keys", "in/v": "values", "in/x": "inputs"}

#: Inputs that a program may take for each other, where they have one shape.
ALIKE = (("in/k", "in/v"), ("in/k", "in/q"))


def of_program(program: Program, context: Context) -> Iterator[Reading]:
    """Mistakes of a program: those that it has itself, then those of every program."""
    if callable(program.mistakes):
        yield from program.mistakes(context)
        return
    yield from program.mistakes
    if LOG in program.tensors:
        yield from _of_gate(program)
    yield from _of_states(program)
    yield from _of_events(program)
    yield from _of_rows(program)
    yield from _of_gradients(program)


# -- where they can be made --------------------------------------------------------------------------


def has(*names: str) -> Callable[[Context], bool]:
    """Whether a case has all of these inputs, by their names without `in/`."""
    return lambda context: context.has(*names)


def several(context: Context) -> bool:
    """Whether there are tokens beside the first one."""
    return context.tokens > 1


def square(state: str) -> Callable[[Context], bool]:
    """Whether the matrix of a state is square, and no number."""
    return lambda context: context.shapes[state][-1] == context.shapes[state][-2] > 1


def both(*conditions: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether all of these hold."""
    return lambda context: all(each(context) for each in conditions)


# -- what stands in the place of ops -----------------------------------------------------------------


def of_before(op: Any, after: Array, before: Array) -> Array:
    """The state before its last write, in the place of a read or a result."""
    return before


def scale_query(q: Array) -> Array:
    """A query times 1/sqrt(d_in) once more."""
    return q / np.sqrt(q.shape[-1]).astype(q.dtype)


def is_scaled(context: Context) -> bool:
    """Whether queries have a factor, and more than one channel."""
    return bool(context.settings.query_scale != 1 and context.inputs["in/q"].shape[-1] > 1)


def scale_twice(op: str, place: int) -> Reading:
    """The mistake of a query that is scaled twice, in the op that takes it as an argument."""

    def wrap(call: Any, *arguments: Any) -> Array:
        return call(*arguments[:place], scale_query(arguments[place]), *arguments[place + 1 :])

    words = "the scale of a query was applied twice"
    return Reading("scale twice", words, is_scaled, ops={op: wrap})


# -- of the gate -------------------------------------------------------------------------------------


def _of_gate(program: Program) -> Iterator[Reading]:
    """A gate that is absent, twice, of another token, channel or head, or of another base."""
    words = program.tensors[LOG].axes.split()
    axis, channels = words.index("T") - len(words), words[-1] != "T"
    yield Reading(
        "gate forgotten",
        f"{LOG} was absent",
        ops={GATE: by(changes.ones)},
    )
    yield Reading("gate twice", "a token decayed twice", ops=_before_exp(lambda g: 2.0 * g))
    for name, change in (("late", changes.late), ("early", changes.early)):
        yield Reading(
            f"gate {name}",
            f"gates were one token {name}",
            several,
            inputs=changes.change_tensor(LOG, partial(change, axis=axis)),
        )
    yield Reading("log as gate", "the log was taken as the gate", ops={GATE: by(same)})
    yield Reading(
        "log of base 2",
        "the log of the gate was to base 2",
        ops=_before_exp(lambda g: g * math.log(2.0)),
    )
    yield Reading(
        "exp of base 2",
        "the gate was exp of its log to base 2",
        ops=_before_exp(lambda g: g / math.log(2.0)),
    )
    if channels:
        yield Reading(
            "gate of channel 0",
            "all channels had the gate of the first",
            inputs=changes.change_tensor(LOG, changes.first_channel),
        )
        yield Reading(
            "mean gate",
            "all channels had the mean of their logs",
            inputs=changes.change_tensor(LOG, changes.mean_channel),
        )
    yield Reading(
        "gate of head 0",
        "all heads had the gate of the first",
        lambda context: (
            context.inputs[LOG].ndim > -axis and context.inputs[LOG].shape[axis - 1] > 1
        ),
        inputs=changes.change_tensor(LOG, lambda x: _of_first(x, axis - 1)),
    )


def _before_exp(change: Callable[[Array], Array]) -> dict[str, Any]:
    return {GATE: lambda op, g: op(change(g))}


def _of_first(x: Array, axis: int) -> Array:
    """The first entry of an axis in the place of all."""
    behind = (slice(None),) * (-axis - 1)
    return ops.broadcast_to(x[(..., slice(0, 1), *behind)], x.shape)


# -- of states ---------------------------------------------------------------------------------------


def _of_states(program: Program) -> Iterator[Reading]:
    """A first or last state that is passed over, early or transposed."""
    for state in program.states:
        first = f"in/{state}0"
        yield Reading(
            f"{state}0 ignored",
            f"{first} was absent",
            has(f"{state}0"),
            inputs=changes.without(first),
        )
        yield Reading(
            f"{state} early",
            f"out/{state} was the one before its last write",
            ops={f"out/{state}": of_before},
        )
        if state in program.matrices:
            yield Reading(
                f"{state}0 transposed",
                f"{first} was transposed",
                both(has(f"{state}0"), square(state)),
                inputs=changes.change_tensor(first, _transpose),
            )
            yield Reading(
                f"{state} transposed",
                f"out/{state} was transposed",
                _either_shape(state),
                ops={f"out/{state}": lambda op, after, before: _transpose(after)},
            )


def _either_shape(state: str) -> Callable[[Context], bool]:
    """Whether a transposed result can be weighed by its cotangent."""
    return lambda context: square(state)(context) or not context.has(f"{state}_bar")


def _transpose(x: Array) -> Array:
    return x.swapaxes(-1, -2)


# -- of masks ----------------------------------------------------------------------------------------


def _of_events(program: Program) -> Iterator[Reading]:
    """Resets and silent tokens that are passed over, or come at another token."""
    yield Reading(
        "active ignored", "in/active was absent", has("active"), inputs=changes.without("in/active")
    )
    yield Reading(
        "reset ignored", "in/reset was absent", has("reset"), inputs=changes.without("in/reset")
    )
    for name, places in (("late", 1), ("early", -1)):
        yield Reading(
            f"reset {name}",
            f"resets came one token {name}",
            has("reset"),
            inputs=changes.change_tensor("in/reset", partial(changes.shift_marks, by=places)),
        )
    yield Reading(
        "reset to zero",
        "a reset returned to zero in place of the first state",
        lambda context: context.has("reset") and _has_first_state(program, context),
        ops={f"start/{state}": _zero for state in program.states},
    )
    for state in program.states if len(program.states) > 1 else ():
        yield Reading(
            f"{state} kept at resets",
            f"a reset left {state} as it was",
            has("reset"),
            ops={f"start/{state}": lambda op, first, before: before},
        )


def _has_first_state(program: Program, context: Context) -> bool:
    return any(context.has(f"{state}0") for state in program.states)


def _zero(op: Any, first: Array, before: Array) -> Array:
    return ops.zeros_like(first)


# -- of rows -----------------------------------------------------------------------------------------


def _of_rows(program: Program) -> Iterator[Reading]:
    """Rows of another token, or of another input."""
    for name, word in ROWS.items():
        if name in program.tensors:
            yield Reading(
                f"{name} late",
                f"{word} were one row late",
                several,
                inputs=changes.change_tensor(name, lambda x: changes.late(x, -2)),
            )
    for one, other in ALIKE:
        if one in program.tensors and other in program.tensors:
            yield Reading(
                f"{one} and {other} exchanged",
                f"{one} and {other} were exchanged",
                _alike(one, other),
                inputs=changes.exchange_tensors(one, other),
            )


def _alike(one: str, other: str) -> Callable[[Context], bool]:
    return lambda context: context.inputs[one].shape == context.inputs[other].shape


# -- of gradients ------------------------------------------------------------------------------------


def _of_gradients(program: Program) -> Iterator[Reading]:
    """Ways of a gradient that are blocked, or open where they are not."""
    if LOG in program.tensors:
        yield _block_gradient("gate", "no gradient went through the gate", {GATE: without_gradient})
    for state in program.states:
        yield _block_gradient(
            f"{state} at its write", f"no gradient went through {state}", {state: without_gradient}
        )
        yield _block_gradient(
            f"out/{state}",
            f"in/{state}_bar was absent",
            {f"out/{state}": lambda op, after, before: ops.stop_gradient(after)},
            has(f"{state}_bar"),
        )
    yield _block_gradient(
        "first state at resets",
        "a reset let no gradient through to the first state",
        {
            f"start/{state}": lambda op, first, before: ops.stop_gradient(first)
            for state in program.states
        },
        lambda context: context.has("reset") and _has_first_state(program, context),
    )
    yield Reading(
        "gradient over resets",
        "gradients went over resets to the tokens before",
        has("reset"),
        ops={f"start/{state}": _over for state in program.states},
        grad=True,
    )


def _block_gradient(
    name: str,
    words: str,
    wraps: dict[str, Any],
    matters: Callable[[Context], bool] = lambda context: True,
) -> Reading:
    return Reading(f"no gradient of {name}", words, matters, ops=wraps, grad=True)


def _over(op: Any, first: Array, before: Array) -> Array:
    return first + (before - ops.stop_gradient(before))
