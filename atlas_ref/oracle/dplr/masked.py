"""Masks by row, and what a masked token reads, around rules that have one mask for all rows.

Specified in specs/dplr_cases.md (DPLRCASE-27, DPLRCASE-28). A token that is masked in some rows is one
that writes nothing there: its gate is 1, its key and its rates are 0. A read as if it had been written is that
of a call of the one token, whose state is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr import members
from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.types import Array
from tape import ops

Inputs = dict[str, Array]

#: Name of the mask of a case.
ACTIVE = "in/active"

#: Results that a call leaves to the next one (DPLR-7).
LEFT = {"out/M": "in/M0", "out/S": "in/S0", "out/z": "in/z0", "out/A": "in/A0"}

#: What a token that writes nothing has in place of its number: gates of 1, and else nothing.
NEUTRAL = {
    "in/retain": 1.0,
    **dict.fromkeys(("in/log_retain", "in/log_retain_precond", "in/log_momentum"), 0.0),
    **dict.fromkeys(("in/k", "in/beta", "in/beta_precond", "in/a", "in/eta"), 0.0),
    **dict.fromkeys(("in/erase_write", "in/v"), 0.0),
}


def run(
    own: Parameters, x: Inputs, axes: dict[str, str], call: Callable[[Inputs], Inputs]
) -> Inputs:
    """Results of a call, its masked tokens read as the case says (DPLRCASE-28).

    Args:
        axes: those of each input that has tokens or steps, as words.
        call: computes the results of inputs, as if `masked_read` were memory.
    """
    if ACTIVE not in x or own.masked_read == "memory":
        return call(x)
    writes = np.asarray(x[ACTIVE]).astype(bool)
    if own.masked_read == "zero":
        results = call(x)
        return results | {"out/y": ops.where(_of_values(writes), results["out/y"], 0.0)}
    return _write_results(own, x, axes, call)


def quiet(own: Parameters, x: Inputs) -> Inputs:
    """The inputs with tokens that write nothing in the rows that a mask by row names (DPLRCASE-27).

    Args:
        x: keys under their norm.
    """
    if ACTIVE not in x or len(x[ACTIVE].shape) == 1:
        return x
    writes = np.asarray(x[ACTIVE]).astype(bool)
    left = {name: value for name, value in x.items() if name != ACTIVE}
    if own.of.gated == "heads":
        left["in/retain"] = members.of_heads(x["in/v"], x["in/q"].shape[-2])
    rank = len(x["in/v"].shape)
    for name in NEUTRAL.keys() & left.keys():
        value = left[name]
        channels = len(value.shape) == rank
        mask = writes if value.shape[-1 - channels] == writes.shape[-1] else _of_steps(own, writes)
        mask = mask[..., None, :, None] if channels else mask[..., None, :]
        left[name] = ops.where(mask, value, NEUTRAL[name])
    return left


def _of_steps(own: Parameters, writes: Array) -> Array:
    """A mask of tokens as one of their steps."""
    return np.repeat(writes, own.steps, axis=-1)


def _of_values(writes: Array) -> Array:
    """A mask of tokens beside what each value head reads."""
    return writes[:, None] if writes.ndim == 1 else writes[..., None, :, None]


def _write_results(
    own: Parameters, x: Inputs, axes: dict[str, str], call: Callable[[Inputs], Inputs]
) -> Inputs:
    """Results whose masked tokens read what they would have written (DPLRCASE-28).

    The call is cut before and behind every such token, and where a sequence starts.
    """
    writes = np.asarray(x[ACTIVE]).astype(bool)
    T = writes.shape[-1]
    whole = [bool(writes[..., t].all()) for t in range(T)]
    starts = np.asarray(x["in/reset"]).astype(bool) if "in/reset" in x else np.zeros(T, bool)
    begins = [bool(starts[..., t].any()) for t in range(T)]
    cuts = [t for t in range(1, T) if begins[t] or not (whole[t] and whole[t - 1])]
    first = {name: x[name] for name in LEFT.values() if name in x}
    state, reads, results = first, list[Array](), dict[str, Array]()
    for begin, end in zip([0, *cuts], [*cuts, T], strict=True):
        if begins[begin]:
            state = _states_at_start(starts[..., begin], first, state)
        bare = {n: z for n, z in x.items() if n not in ("in/reset", *LEFT.values())}
        part = {n: _tokens(own, z, axes.get(n, ""), begin, end) for n, z in bare.items()} | state
        results = call(part)
        y = results["out/y"]
        if not whole[begin]:
            seen = call({name: z for name, z in part.items() if name != ACTIVE})["out/y"]
            y = ops.where(_of_values(writes[..., begin:end]), y, seen)
        reads.append(y)
        state = {LEFT[name]: z for name, z in results.items() if name in LEFT}
    return {**results, "out/y": ops.concatenate(reads, axis=-2)}


def _states_at_start(begins: Array, first: Inputs, state: Inputs) -> Inputs:
    """The states of a call that begins: the first ones, in rows alone where a sequence starts."""
    if begins.all():
        return first

    def of_rows(x: Array, name: str) -> Array:
        behind = (None,) * (len(x.shape) - begins.ndim)
        return ops.where(begins[(..., *behind)], first.get(name, 0.0), x)

    return {name: of_rows(x, name) for name, x in state.items()}


def _tokens(own: Parameters, x: Any, axes: str, begin: int, end: int) -> Any:
    """Rows of some tokens of an input; one without tokens as it is."""
    words = axes.split()
    n = own.steps if "R" in words else 1
    if not {"T", "R"} & {*words}:
        return x
    behind = (slice(None),) if words[-1] == "d" else ()
    return ops.index(x, (..., slice(begin * n, end * n), *behind))
