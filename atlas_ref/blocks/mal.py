"""MAL: memory, then attention.

    x <- x + memory(x),    x <- x + ff_pre(x),    x <- x + attention(x),    x <- x + ff_post(x)

Specified in specs/blocks.md (BLOCKS-5).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.blocks.parts import (
    attended,
    check_memory,
    extended,
    fed_forward,
    joined,
    remembered,
    require_same_tokens,
    started,
)
from atlas_ref.layers import attention, checks, feed_forward, memory
from atlas_ref.layers.attention.boundary import check_params as check_attention
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.rules.checks import generator, require_floating
from atlas_ref.types import Array, Frozen


class Config(Frozen):
    """Settings of a MAL block (BLOCKS-5).

    Attributes:
        memory: None for a block without memory.
        ff_pre: feed-forward between memory and attention; None for none.
        attention, ff_post: of the parts.
    """

    memory: memory.Config | None
    ff_pre: feed_forward.Config | None
    attention: attention.Config
    ff_post: feed_forward.Config

    @model_validator(mode="after")
    def _same_tokens(self) -> Self:
        require_same_tokens(
            self.d_model, memory=self.memory, ff_pre=self.ff_pre, ff_post=self.ff_post
        )
        return self

    @property
    def d_model(self) -> int:
        return self.attention.d_model

    @property
    def causal(self) -> bool:
        """Whether no token changes a result before it (BLOCKS-2)."""
        causal = self.memory is None or self.memory.causal
        return causal and self.attention.attention_window == "causal"


class Params(Frozen):
    """Parameters of the parts; None where the block has no such part (BLOCKS-8)."""

    attention: attention.Params
    ff_post: feed_forward.Params
    memory: memory.Params | None
    ff_pre: feed_forward.Params | None = None


class State(Frozen):
    """States of the parts (BLOCKS-2)."""

    attention: attention.State
    memory: memory.State | None


def configured(
    convention: LayerConvention,
    memory_config: memory.Config | None,
    *,
    d_model: int,
    heads: int,
    d_head: int,
    window: int,
    persistent: int = 0,
    d_inner: int,
) -> Config:
    """The block of a convention around a memory layer (LAYERS-3)."""
    ff = feed_forward.configured(convention, d_model=d_model, d_inner=d_inner)
    return Config(
        memory=memory_config,
        ff_pre=ff if convention.mal_order == "memory_ff_attention_ff" else None,
        attention=attention.configured(
            convention,
            d_model=d_model,
            heads=heads,
            d_head=d_head,
            window=window,
            persistent=persistent,
        ),
        ff_post=ff,
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Parameters of the parts at their starts (BLOCKS-8)."""
    require_floating(dtype)
    seeds = [int(each) for each in generator(seed).integers(2**62, size=4)]
    own, pre = config.memory, config.ff_pre
    return Params(
        attention=attention.init(config.attention, seeds[0], dtype=dtype),
        ff_post=feed_forward.init(config.ff_post, seeds[1], dtype=dtype),
        memory=None if own is None else memory.init(own, seeds[2], dtype=dtype),
        ff_pre=None if pre is None else feed_forward.init(pre, seeds[3], dtype=dtype),
    )


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token (BLOCKS-2)."""
    return State(**started(config, batch, dtype))


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """The block over tokens (BLOCKS-5).

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
    ff = config.ff_pre is not None
    but = f"the block has {'one' if ff else 'none'}"
    checks.check_presence("params.ff_pre", params.ff_pre, ff, but)
    if config.attention.prefixed:
        state, x = _with_tokens_before(config, params, state, x, reset)
    else:
        state, x = _before_attention(config, params, state, x, reset)
        after, a = attended(config.attention, params.attention, state.attention, x, reset=reset)
        state, x = state.replaced(attention=after), x + a
    return state, x + fed_forward(config.ff_post, params.ff_post, x, "ff_post")


def _before_attention(
    config: Config, params: Params, state: State, x: Array, reset: Any
) -> tuple[State, Array]:
    """Memory and the first feed-forward, where there are such, with their residuals (BLOCKS-5)."""
    if config.memory is not None:
        state, m = remembered(config, params, state, x, reset)
        x = x + m
    if config.ff_pre is not None and params.ff_pre is not None:
        x = x + fed_forward(config.ff_pre, params.ff_pre, x, "ff_pre")
    return state, x


def _with_tokens_before(
    config: Config, params: Params, state: State, x: Array, reset: Any
) -> tuple[State, Array]:
    """All before the last feed-forward, of tokens with the persistent ones (BLOCKS-9)."""
    c, own, before = config.attention, params.attention, state.attention
    with checks.within("attention"):
        check_attention(c, own, x)
    starts = checks.check_reset(reset, x.shape[-2])
    whole = extended(c, own.persistent, x, starts, before.begun)
    state, z = _before_attention(config, params, state, whole.x, whole.reset)
    results = []
    for piece, (first, last) in zip(whole.pieces, whole.bounds, strict=True):
        if piece.begins:
            before = attention.opened(c, own, z[:, first - c.persistent : first])
        before, a = attended(c, own, before, z[:, first:last])
        results.append(z[:, first:last] + a)
    state = state.replaced(attention=before)
    return state, joined(results)
