"""Tensors of tokens, each of one memory of a TNT or shared by all (TNTCASE-3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.oracle.cases.tensor_spec import OF_TOKENS, under
from atlas_ref.oracle.tnt.settings import Memory
from atlas_ref.rules import FAMILY
from atlas_ref.types import Array
from tape import ops

#: Tensors that every memory shares, or that one has for itself.
TOKENS = OF_TOKENS

Tensors = Mapping[str, Array]


def of_memory(inputs: Tensors, name: str) -> dict[str, Array]:
    """The tensors of a memory without its name: its own, and those that all share (TNTCASE-3)."""
    shared = {each: inputs[f"in/{each}"] for each in TOKENS if f"in/{each}" in inputs}
    return {**shared, **under(inputs, f"in/{name}/")}


def has_momentum(m: Memory, own: Mapping[str, Any], rule: str) -> bool:
    """Whether a memory carries a momentum: a gate brings it, or base previous (TNT-5)."""
    return FAMILY[rule].has_momentum and ("momentum" in own or m.base == "previous")


def join_rows(rows: list[Array]) -> Array:
    """Rows of tokens one behind the other."""
    return rows[0] if len(rows) == 1 else ops.concatenate(rows, axis=-2)


def _axis(name: str) -> int:
    """Axis of the tokens of a tensor, from the end."""
    return -2 if name in ("k", "v", "q", "window_weights") else -1


def cut(name: str, x: Array, first: int, last: int) -> Array:
    """The tokens of a tensor from one to before another."""
    return x[(..., slice(first, last), *[slice(None)] * (-_axis(name) - 1))]


def pick_rows(name: str, x: Array, rows: Any) -> Array:
    """Some tokens of a tensor, one of them more than once perhaps."""
    return ops.index(x, (..., rows, *[slice(None)] * (-_axis(name) - 1)))
