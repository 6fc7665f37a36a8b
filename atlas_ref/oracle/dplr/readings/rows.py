"""Tensors of another head or batch row, as data: an offset or a stride that is wrong (DPLRCASE-25)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops

#: Tensors with heads, in the order in which their offsets are tried.
TENSORS = (
    "M0", "S0", "log_retain", "retain", "beta", "k", "v", "q", "erase_key", "eta", "log_momentum",
    "erase_read", "erase_write", "alpha", "kk", "a", "erase_gate", "write_gate", "z0", "A0",
    "log_retain_precond", "beta_precond",
)  # fmt: skip

#: Tensors without tokens.
STATES = ("M0", "S0", "z0", "A0")

#: Tokens from which on an offset is wrong: a kernel's first block has that of zero.
STARTS = (0, 8, 16, 32, 64)


def _first(n: int) -> list[int]:
    return [0] * n


def _before(n: int) -> list[int]:
    return [(i - 1) % n for i in range(n)]


def _behind(n: int) -> list[int]:
    return [(i + 1) % n for i in range(n)]


def _reverse(n: int) -> list[int]:
    return list(range(n))[::-1]


#: Which row every row has in place of its own, and words for that.
ORDERS = {
    "the first {} for all": _first,
    "the {} before": _before,
    "the {} behind": _behind,
    "the {} counted from the last": _reverse,
}


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """Every tensor of another head, or of another row of the batch."""
    for name in (f"in/{each}" for each in TENSORS if f"in/{each}" in context.inputs):
        lead = _leading(context, name)
        for axis, word in ((lead - 1, "head"), (lead - 2, "row of the batch")):
            if axis < 0 or context.inputs[name].shape[axis] < 2:
                continue
            yield from _of_axis(context, name, axis, word)


def _leading(context: DplrContext, name: str) -> int:
    """Leading axes of a tensor, in front of tokens or of a state: those of values."""
    return len(context.inputs["in/v"].shape) - 2


def _of_axis(context: DplrContext, name: str, axis: int, word: str) -> Iterator[Reading]:
    count, seen = context.inputs[name].shape[axis], set[tuple[int, ...]]()
    timed = name.removeprefix("in/") not in STATES
    for words, order in ORDERS.items():
        places = order(count)
        if tuple(places) in seen:
            continue
        seen.add(tuple(places))
        for start in (each for each in STARTS if not each or (timed and each < context.tokens)):
            rows = (
                start * (context.inputs[name].shape[_leading(context, name)] // context.tokens)
                if timed
                else 0
            )
            since = f" from token {start} on" if start else ""
            said = f"{name}{since} was that of {words.format(word)}"
            change = partial(
                move, axis=axis, places=places, start=rows, along=_leading(context, name)
            )
            yield Reading(said, said, inputs=changes.change_tensor(name, change))


def move(x: Array, *, axis: int, places: list[int], start: int, along: int) -> Array:
    """A tensor with other rows of an axis, from a place of the axis of tokens on."""
    other = ops.index(x, (*(slice(None),) * axis, np.asarray(places)))
    if not start:
        return other
    ahead = (slice(None),) * along
    parts = [x[(*ahead, slice(0, start))], other[(*ahead, slice(start, None))]]
    return ops.concatenate(parts, axis=along)
