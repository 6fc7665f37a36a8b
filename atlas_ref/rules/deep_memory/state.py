"""What a deep memory carries from call to call, and how a document begins.

Specified in specs/deep_memory.md (DEEP-5, DEEP-6, DEEP-16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from atlas_ref import backend
from atlas_ref.rules.checks import check_start
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops

Tensors = Mapping[str, Array]


class State(Frozen):
    """Everything that a split between two tokens must carry (DEEP-5).

    Attributes:
        keys (..., n, d_in), values (..., n, d_out): the last tokens of the document, oldest first:
            at most c - 1 and those of the unfinished chunk.
        token_gates (..., n): the weights that they brought, where tokens bring one.
        thresholds (..., n): their thresholds of bias huber, where tokens bring one (DEEP-36).
        position: tokens of the document so far.
        weights, momentum, reference: fast weights W, momentum S (of several orders with those
            before its own axes) and the weights of the last refresh, by name, each with the leading
            axes of the tokens in front; empty for those of the beginning: W_0, zeros, and no
            refresh yet.
        initial: W_0 where it was given at the start; empty for the tensors of the memory, which
            each call brings.
    """

    keys: Annotated[Array, Dims("... n d_in")]
    values: Annotated[Array, Dims("... n d_out")]
    token_gates: Annotated[Array, Dims("... n", optional=True)] = None
    thresholds: Annotated[Array, Dims("... n", low=0.0, optional=True)] = None
    position: Annotated[int, Field(ge=0)] = 0
    weights: dict[str, Any] = {}
    momentum: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    initial: dict[str, Any] = {}

    @field_validator("weights", "momentum", "reference", "initial")
    @classmethod
    def _arrays(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, array in value.items():
            check_array(name, array, Dims("..."))
        return value


def start(
    config: Config,
    leading: tuple[int, ...] = (),
    *,
    dtype: Any = np.float64,
    weights: Tensors | None = None,
    momentum: Tensors | None = None,
) -> State:
    """The state before the first token: W_0, S_0 and no token (DEEP-5).

    Args:
        leading: axes of the tokens in front, such as (batch, heads).
        weights, momentum: fast tensors by name, with the leading axes or 1 in place of shared rows;
            W_0 is that of the memory's tensors and S_0 zero unless given.

    Raises:
        ValueError: a tensor that is missing, unknown or misshapen, by name.
    """
    check_start(Config, config, leading, dtype)
    for kind, given in (("weights", weights), ("momentum", momentum)):
        if given:
            check_fast(config, kind, given, leading)
    zeros = backend.current().zeros
    return State(
        keys=zeros((*leading, 0, config.d_in), dtype),
        values=zeros((*leading, 0, config.d_out), dtype),
        weights=dict(weights or {}),
        momentum=dict(momentum or {}),
        initial=dict(weights or {}),
    )


def check_fast(config: Config, kind: str, given: Tensors, leading: tuple[int, ...]) -> None:
    """Refuse weights or momentum that are not those of the fast tensors (DEEP-3).

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    shapes = config.momentum_shapes if kind.endswith("momentum") else config.fast_shapes
    if set(given) != set(shapes):
        raise ValueError(
            f"{kind}: {', '.join(sorted(given)) or 'nothing'}, expected {', '.join(shapes)}"
        )
    shared = (1, *leading[1:]) if config.coupling == "batch_shared" and leading else leading
    for name, shape in shapes.items():
        found = given[name].shape
        if found not in ((*leading, *shape), (*shared, *shape)) or (
            shared != leading and found == (*leading, *shape)
        ):
            raise ValueError(f"{kind}.{name}: shape {found}, expected {(*shared, *shape)}")


def restart(config: Config, state: State) -> State:
    """The state at the start of a document whose W and S start anew: W_0, 0, no token (DEEP-6)."""
    return emptied(state).replaced(weights=state.initial, momentum={}, reference={})


def emptied(state: State) -> State:
    """The state with no token in its window and at the first place of a chunk."""
    brought = {
        name: None if value is None else value[..., :0]
        for name, value in (("token_gates", state.token_gates), ("thresholds", state.thresholds))
    }
    return state.replaced(
        keys=state.keys[..., :0, :], values=state.values[..., :0, :], position=0, **brought
    )


def document(config: Config, origin: State, state: State) -> State:
    """The state where a document starts after another (DEEP-16).

    Args:
        origin: the state from which documents start.
        state: after the document before.
    """
    fresh = restart(config, origin)
    if config.memory_reset == "never":
        fresh = fresh.replaced(weights=state.weights)
    if config.momentum_reset == "never":
        fresh = fresh.replaced(momentum=state.momentum)
    return fresh


def call(config: Config, state: State) -> State:
    """The state at the start of a call, which is a batch (DEEP-16)."""
    if config.memory_reset == "batch":
        state = emptied(state).replaced(weights=state.initial, reference={})
    if config.momentum_reset == "batch":
        state = state.replaced(momentum={})
    return state


def renew(config: Config, state: State) -> State:
    """The state whose reference call_start is taken anew at the next token."""
    return state.replaced(reference={})


def of_leading(array: Array, rank: int) -> Array:
    """A gate (...,) as a factor of tensors with `rank` axes."""
    return ops.reshape(array, (*array.shape, *(1,) * rank))
