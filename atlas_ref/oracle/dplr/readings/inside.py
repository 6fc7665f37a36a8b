"""Mistakes inside a token and a formula that none of `habits` is (DPLRCASE-25)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.readings import wraps
from atlas_ref.oracle.program import changes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops

#: Widths of tiles of public kernels.
WIDTHS = (16, 32, 64, 128)

#: Largest number of which float32 has an exponential.
LARGEST = 88.0


def mistakes(context: DplrContext) -> Iterator[Reading]:
    """Keys and values that are exchanged, channels beyond a tile, raw numbers of another head."""
    if context.square and context.settings.groups == 1:
        said = "in/k and in/v were exchanged"
        yield Reading(said, said, inputs=changes.exchange_tensors("in/k", "in/v"))
        if context.settings.of.erase == "error":
            said = "the erase read the memory the other way round, k - M^T v"
            yield Reading(said, said, ops=wraps.VALUES["erase of values"])
    d_in, d_out = context.inputs["in/k"].shape[-1], context.inputs["in/v"].shape[-1]
    for width in WIDTHS:
        if width < d_in:
            said = f"key channels past {width} were left out"
            yield Reading(said, said, inputs=_narrow(("in/k", "in/q"), width))
        if width < d_out:
            said = f"value channels past {width} were left out"
            yield Reading(said, said, inputs=_narrow(("in/v",), width))
    if context.settings.of.floor:
        said = "a norm had an eps of 1e-6 under its root in place of a least length"
        yield Reading(said, said, ops=wraps.VALUES["eps in place of a floor"])
    yield from _of_formula(context)


def _narrow(names: tuple[str, ...], width: int) -> changes.Change:
    def change(inputs: dict[str, Array]) -> dict[str, Array]:
        found = dict(inputs)
        for name in names:
            kept = (np.arange(found[name].shape[-1]) < width).astype(found[name].dtype)
            found[name] = kept * found[name]
        return found

    return change


def _of_formula(context: DplrContext) -> Iterator[Reading]:
    """Biases and rates that are read by another stride, and raw numbers as they are."""
    for name in ("in/gate_bias", "in/gate_log_rate", "in/gate_floor"):
        if name not in context.raw:
            continue
        shape = tuple(context.raw[name].shape)
        heads = context.inputs["in/v"].shape[-3] if len(context.inputs["in/v"].shape) > 2 else 1
        for words, change in _strides(shape, heads).items():
            said = f"{name} was {words}"
            yield Reading(said, said, raw=changes.change_tensor(name, change))
    if context.settings.gate_formula == "softplus":
        said = "softplus was log(1 + e^x) in float32, where e^x overflows"
        yield Reading(said, said, ops=wraps.FORMULAS["softplus without a bound"])
        if "in/gate_log_rate" in context.raw:
            said = "in/gate_log_rate was under exp once more"
            yield Reading(said, said, raw=changes.change_tensor("in/gate_log_rate", ops.exp))
    if context.settings.beta_formula is not None:
        said = "the step size was under a sigmoid once more"
        sigmoid = changes.change_tensor("in/beta", lambda x: 1 / (1 + ops.exp(-x)))
        yield Reading(said, said, inputs=sigmoid)


def _strides(shape: tuple[int, ...], heads: int) -> dict[str, changes.Turn]:
    """Other ways to read numbers of heads and channels from memory, in words."""
    found: dict[str, changes.Turn] = {}
    channels = len(shape) > 1 and shape[-2] == heads
    if channels:
        found["one number a head, the first of its memory in a row"] = _flat
        found["that of the first channel for all"] = changes.first_channel
        found["the mean of its channels"] = changes.mean_channel
    axis = -2 if channels else -1
    if heads > 1 and shape and shape[axis] == heads:
        for words, by in (("that of the first head for all", None), ("that of the head before", 1)):
            found[words] = _turn(axis, by)
    return found


def _flat(x: Array) -> Array:
    heads, width = x.shape[-2:]
    flat = ops.reshape(x, (*x.shape[:-2], heads * width))
    return ops.broadcast_to(ops.expand_dims(flat[..., :heads], -1), x.shape)


def _turn(axis: int, by: int | None) -> changes.Turn:
    def turn(x: Array) -> Array:
        count = x.shape[axis]
        order = np.zeros(count, int) if by is None else (np.arange(count) - by) % count
        behind = (slice(None),) * (-axis - 1)
        return ops.index(x, (..., order, *behind))

    return turn
