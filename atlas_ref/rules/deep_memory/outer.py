"""Weights as the outer gradient sees them.

Specified in specs/deep_memory.md (DEEP-18 to DEEP-20).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.parts.straight import straight
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.state import Tensors
from atlas_ref.types import Array
from tape import ops


def readable(config: Config, first: Tensors, weights: Tensors) -> Tensors:
    """Weights that a read takes, by the outer gradient (DEEP-20, DEEP-21).

    Args:
        first: W_0, or the weights at the start of the call that goes on.
        weights: what the reads see.
    """
    if config.outer_gradient == "none":
        return {name: ops.stop_gradient(each) for name, each in weights.items()}
    if config.outer_gradient == "straight_through":
        return {name: _straight(first[name], each) for name, each in weights.items()}
    return weights


def carried(
    config: Config, first: Tensors, weights: Tensors, momentum: Tensors, reference: Tensors
) -> tuple[Tensors, Tensors, Tensors]:
    """Fast tensors behind a call, which later calls and cotangents of the state see (DEEP-20)."""
    if config.outer_gradient in ("full", "first_order"):
        return weights, momentum, reference
    constant = [
        {name: ops.stop_gradient(x) for name, x in each.items()} for each in (momentum, reference)
    ]
    return readable(config, first, weights), constant[0], constant[1]


def _straight(source: Any, value: Any) -> Array:
    if source is value:
        return value
    return straight(ops.broadcast_to(source, value.shape), ops.stop_gradient(value))
