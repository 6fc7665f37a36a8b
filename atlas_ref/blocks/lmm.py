"""LMM: memory alone.

    x <- x + memory(x),    x <- x + feed_forward(x)

Specified in specs/blocks.md (BLOCKS-6).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.blocks.parts import check_memory, fed_forward, remembered, require_same_tokens
from atlas_ref.layers import checks, feed_forward, memory
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.rules.checks import check_count, generator, require_floating
from atlas_ref.types import Array, Frozen


class Config(Frozen):
    """Settings of an LMM block (BLOCKS-6).

    Attributes:
        memory: None for a block without memory.
        feed_forward: None for a block of memory alone; one of both is needed.
    """

    memory: memory.Config | None
    feed_forward: feed_forward.Config | None

    @model_validator(mode="after")
    def _same_tokens(self) -> Self:
        if self.memory is None and self.feed_forward is None:
            raise ValueError("memory: a block needs memory or feed_forward")
        require_same_tokens(self.d_model, memory=self.memory, feed_forward=self.feed_forward)
        return self

    @property
    def d_model(self) -> int:
        part = self.memory if self.memory is not None else self.feed_forward
        assert part is not None
        return part.d_model

    @property
    def causal(self) -> bool:
        """Whether no token changes a result before it (BLOCKS-2)."""
        return self.memory is None or self.memory.causal


class Params(Frozen):
    """Parameters of the parts; None where the block has no such part (BLOCKS-8)."""

    memory: memory.Params | None
    feed_forward: feed_forward.Params | None


class State(Frozen):
    """The state of the memory (BLOCKS-2)."""

    memory: memory.State | None


def configured(
    convention: LayerConvention,
    memory_config: memory.Config | None,
    *,
    d_model: int,
    d_inner: int | None,
) -> Config:
    """The block of a convention around a memory layer (LAYERS-3).

    Args:
        d_inner: of the feed-forward; None for none.
    """
    ff = None
    if d_inner is not None:
        ff = feed_forward.configured(convention, d_model=d_model, d_inner=d_inner)
    return Config(memory=memory_config, feed_forward=ff)


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Parameters of the parts at their starts (BLOCKS-8)."""
    require_floating(dtype)
    seeds = [int(each) for each in generator(seed).integers(2**62, size=2)]
    own, ff = config.memory, config.feed_forward
    return Params(
        memory=None if own is None else memory.init(own, seeds[0], dtype=dtype),
        feed_forward=None if ff is None else feed_forward.init(ff, seeds[1], dtype=dtype),
    )


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token (BLOCKS-2)."""
    check_count("batch", batch)
    require_floating(dtype)
    own = config.memory
    return State(memory=None if own is None else memory.start(own, batch, dtype=dtype))


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """The block over tokens (BLOCKS-6).

    Args:
        x (B, T, d_model): the residual stream.
        reset (T,): True where a document starts.

    Returns:
        state, x (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    check_memory(config, params_memory=params.memory, state_memory=state.memory)
    if config.memory is not None:
        state, m = remembered(config, params, state, x, reset)
        x = x + m
    else:
        checks.check_reset(reset, x.shape[-2])
    ff = config.feed_forward is not None
    but = f"the block has {'one' if ff else 'none'}"
    checks.check_presence("params.feed_forward", params.feed_forward, ff, but)
    if config.feed_forward is not None and params.feed_forward is not None:
        x = x + fed_forward(config.feed_forward, params.feed_forward, x)
    return state, x
