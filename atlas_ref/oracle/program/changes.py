"""Changes of the inputs of a case, which mistakes of a program amount to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atlas_ref.types import Array
from tape import ops

Inputs = dict[str, Array]

Change = Callable[[Inputs], Inputs]

#: A change of one array.
Turn = Callable[[Array], Array]


def without(*names: str) -> Change:
    """All tensors but some."""
    return lambda inputs: {each: x for each, x in inputs.items() if each not in names}


def change_tensor(name: str, change: Callable[[Array], Array]) -> Change:
    """A tensor after a change of its numbers."""
    return lambda inputs: {**inputs, name: change(inputs[name])}


def rename_tensor(source: str, name: str) -> Change:
    """A tensor under another name, its own left out."""
    return lambda inputs: {**without(source)(inputs), name: inputs[source]}


def copy_tensor(source: str, *names: str) -> Change:
    """A tensor in the place of others too."""
    return lambda inputs: {**inputs, **dict.fromkeys(names, inputs[source])}


def exchange_tensors(one: str, other: str) -> Change:
    """Two tensors under each other's name."""
    return lambda inputs: {**inputs, one: inputs[other], other: inputs[one]}


def times(factor: float) -> Turn:
    """An array with a factor."""
    return lambda x: factor * x


def ones(x: Array) -> Array:
    return ops.zeros_like(x) + np.ones((), x.dtype)


def first_channel(x: Array) -> Array:
    return ops.broadcast_to(x[..., :1], x.shape)


def mean_channel(x: Array) -> Array:
    return ops.broadcast_to(ops.sum(x, axis=-1, keepdims=True) / x.shape[-1], x.shape)


def late(x: Array, axis: int) -> Array:
    """Entries one place late, the first twice."""
    behind = (slice(None),) * (-axis - 1)
    first, rest = x[(..., slice(0, 1), *behind)], x[(..., slice(0, -1), *behind)]
    return ops.concatenate([first, rest], axis=axis)


def early(x: Array, axis: int) -> Array:
    """Entries one place early, the last twice."""
    behind = (slice(None),) * (-axis - 1)
    rest, last = x[(..., slice(1, None), *behind)], x[(..., slice(-1, None), *behind)]
    return ops.concatenate([rest, last], axis=axis)


def shift_marks(mask: Array, by: int) -> Array:
    """A mask whose marks come later by a number of tokens; those beyond the ends are lost."""
    later = np.zeros_like(mask)
    count = mask.shape[-1]
    later[..., max(by, 0) : count + min(by, 0)] = mask[..., max(-by, 0) : count - max(by, 0)]
    return later


def zero_silent_tokens(name: str) -> Change:
    """Every token active, and what a silent one would write 0: it decays and writes nothing."""

    def change(inputs: Inputs) -> Inputs:
        x = inputs[name]
        active = np.asarray(inputs["in/active"]).astype(bool)
        rows = (
            active
            if x.shape[-1] == len(active) and x.ndim == _rank(inputs) - 1
            else active[:, None]
        )
        return without("in/active")({**inputs, name: ops.where(rows, x, ops.zeros_like(x))})

    return change


def _rank(inputs: Inputs) -> int:
    """Axes of rows of channels."""
    return int(inputs["in/k" if "in/k" in inputs else "in/x"].ndim)
