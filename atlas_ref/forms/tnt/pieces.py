"""Tokens and states of a run cut, picked and folded along time.

Specified in specs/tnt.md (TNT-13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.rules.sequence import Tokens
from atlas_ref.types import Array, Frozen
from tape import ops


def mapped(value: Any, change: Callable[[Array], Array]) -> Any:
    """Every array of a state, or of a dict of them, changed; numbers and None stay."""
    if isinstance(value, Frozen):
        return value.replaced(
            **{name: mapped(each, change) for name, each in value.__dict__.items()}
        )
    if isinstance(value, dict):
        return {name: mapped(each, change) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(each, change) for each in value)
    return change(value) if hasattr(value, "shape") else value


def _of_time(tokens: Tokens, change: Callable[[Array], Array]) -> Tokens:
    """Every tensor of the tokens changed; resets and pulses are TNT's."""
    changed = {
        name: change(value)
        for name, value in tokens.__dict__.items()
        if value is not None and name not in ("active", "reset")
    }
    return tokens.replaced(**changed, active=None, reset=None)


def cut(tokens: Tokens, first: int, last: int) -> Tokens:
    """Tokens first to last."""
    axis = len(tokens.k.shape) - 2
    if first == 0 and last == tokens.k.shape[-2]:
        return tokens.replaced(active=None, reset=None)
    return _of_time(tokens, lambda x: x[(*_all(axis), slice(first, last))])


def picked(tokens: Tokens, rows: Any) -> Tokens:
    """Tokens by their number, one of them perhaps twice."""
    axis = len(tokens.k.shape) - 2
    return _of_time(tokens, lambda x: x[(*_all(axis), rows)])


def folded(tokens: Tokens, count: int) -> Tokens:
    """So many equal stretches as a new axis before time: (..., n S, d) to (..., n, S, d)."""
    *leading, T, _ = tokens.k.shape
    axis = len(leading)
    shape = (*leading, count, T // count)
    return _of_time(tokens, lambda x: ops.reshape(x, (*shape, *x.shape[axis + 1 :])))


def unfolded(y: Array) -> Array:
    """Reads (..., n, S, d) in the order of time, (..., n S, d)."""
    *leading, n, S, d = y.shape
    return ops.reshape(y, (*leading, n * S, d))


def last_of(state: Any, axis: int) -> Any:
    """The state of the last stretch, of one with an axis of stretches."""
    return mapped(state, lambda x: x[(*_all(axis), -1)])


def settled(state: Any) -> Any:
    """A state whose arrays are read-only and keep no whole sequence alive (TNT-11)."""
    return mapped(state, _settled)


def _settled(x: Any) -> Any:
    x = x.copy() if getattr(x, "base", None) is not None else x
    if isinstance(x, np.ndarray):
        x.flags.writeable = False
    return x


def joined(reads: list[Array]) -> Array:
    """Reads (..., T, d) of stretches in order."""
    return reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def _all(axes: int) -> tuple[slice, ...]:
    return (slice(None),) * axes
