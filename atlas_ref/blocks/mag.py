"""MAG: attention and memory side by side, mixed by a gate.

    x <- x + mix(attention(x), memory(x)),    x <- x + feed_forward(x)

Specified in specs/blocks.md (BLOCKS-4).
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.blocks import mix
from atlas_ref.blocks.parts import (
    attended,
    check_memory,
    extended,
    fed_forward,
    memory_layer,
    remembered,
    require_same_tokens,
    started,
)
from atlas_ref.layers import attention, checks, feed_forward, memory, rotary, shared_memory
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.projection import cast
from atlas_ref.rules.checks import generator, require_floating
from atlas_ref.types import Array, Frozen


class Config(Frozen):
    """Settings of a MAG block (BLOCKS-4).

    Attributes:
        memory: of projections of its own, or of those of attention; None for a block without
            memory, x <- x + attention(x).
        attention, feed_forward, mix: of the parts.
        calls: continued, a call goes on with the document of the one before; documents, each call
            starts one.
    """

    memory: memory.Config | shared_memory.Config | None
    attention: attention.Config
    feed_forward: feed_forward.Config
    mix: mix.Config
    calls: Literal["continued", "documents"] = "continued"

    @model_validator(mode="after")
    def _same_tokens(self) -> Self:
        require_same_tokens(
            self.d_model,
            memory=self.memory,
            feed_forward=self.feed_forward,
            mix=self.mix,
        )
        if isinstance(self.memory, shared_memory.Config):
            own = self.attention
            if own.heads * own.d_head != own.d_model:
                raise ValueError(
                    f"memory: shares {own.heads} heads of {own.d_head}, which are not d_model "
                    f"{own.d_model}"
                )
            if own.attention_window != "causal":
                raise ValueError("memory: attention_window last_keys_of_call shares nothing")
            if own.prefixed:
                raise ValueError("memory: does not see tokens of persistent_kind prepended")
            if own.rotary is None and self.memory.projection_frame == "rotated":
                raise ValueError("memory: projection_frame rotated, but attention has no positions")
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
    """Parameters of the parts; memory and mix None in a block without memory (BLOCKS-8)."""

    attention: attention.Params
    feed_forward: feed_forward.Params
    memory: memory.Params | shared_memory.Params | None
    mix: mix.Params | None


class State(Frozen):
    """States of the parts (BLOCKS-2)."""

    attention: attention.State
    memory: memory.State | shared_memory.State | None


def configured(
    convention: LayerConvention,
    memory_config: memory.Config | shared_memory.Config | None,
    *,
    d_model: int,
    heads: int,
    d_head: int,
    window: int,
    persistent: int = 0,
    d_inner: int,
) -> Config:
    """The block of a convention around a memory layer (LAYERS-3)."""
    return Config(
        memory=memory_config,
        attention=attention.configured(
            convention,
            d_model=d_model,
            heads=heads,
            d_head=d_head,
            window=window,
            persistent=persistent,
        ),
        feed_forward=feed_forward.configured(convention, d_model=d_model, d_inner=d_inner),
        mix=mix.configured(convention, d_model),
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Parameters of the parts at their starts (BLOCKS-8)."""
    require_floating(dtype)
    draw = generator(seed)
    seeds = [int(each) for each in draw.integers(2**62, size=3)]
    own = config.memory
    return Params(
        attention=attention.init(config.attention, seeds[0], dtype=dtype),
        feed_forward=feed_forward.init(config.feed_forward, seeds[1], dtype=dtype),
        memory=None if own is None else memory_layer(own).init(own, seeds[2], dtype=dtype),
        mix=None if own is None else cast(mix.init(config.mix, draw), dtype),
    )


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64, initial: Any = None) -> State:
    """The state before the first token (BLOCKS-2).

    Args:
        initial: memories of a shared memory, as its `start` takes them.
    """
    return State(**started(config, batch, dtype, initial))


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """The block over tokens (BLOCKS-4).

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
    check_memory(
        config,
        params_memory=params.memory,
        state_memory=state.memory,
        params_mix=params.mix,
    )
    if params.mix is not None:
        mix.check_params(config.mix, params.mix, x)
    if config.calls == "documents":
        reset = _first_starts(reset, x.shape[-2])
    if isinstance(config.memory, shared_memory.Config) and params.mix is not None:
        state, a, m = _branches(config, params, state, x, reset)
        x = x + mix.mixed(config.mix, params.mix, x, a, m)
        return state, x + fed_forward(config.feed_forward, params.feed_forward, x)
    begun = state.attention.begun
    after, a = attended(config.attention, params.attention, state.attention, x, reset=reset)
    state = state.replaced(attention=after)
    if params.mix is None:
        x = x + a
    else:
        state, m = _remembered(config, params, state, x, reset, begun)
        x = x + mix.mixed(config.mix, params.mix, x, a, m)
    return state, x + fed_forward(config.feed_forward, params.feed_forward, x)


def _first_starts(reset: Any, tokens: int) -> np.ndarray[Any, Any]:
    """Starts of documents, of which the first token of the call is one (BLOCKS-10)."""
    starts = checks.check_reset(reset, tokens)
    first = np.zeros(tokens, bool) if starts is None else np.array(starts)
    first[0] = True
    return first


def branches(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array, Array]:
    """What a block with a shared memory mixes: attention a and memory m (SHARED-2).

    Args:
        x (B, T, d_model), reset (T,): as for `apply`.

    Returns:
        state after both, a, m (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings, or a block without such a memory.
    """
    if not isinstance(config.memory, shared_memory.Config):
        raise ValueError("memory: does not share attention")
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    if config.calls == "documents":
        reset = _first_starts(reset, x.shape[-2])
    return _branches(config, params, state, x, reset)


def _branches(
    config: Config, params: Params, state: State, x: Array, reset: Any
) -> tuple[State, Array, Array]:
    """Attention a and a memory m of its projections, and the state after both (SHARED-2)."""
    own, before = config.attention, state.attention
    with checks.within("attention"):
        starts = attention.checked(own, params.attention, before, x, reset)
    n, qkv = attention.projected(own, params.attention, x)
    shared = shared_of(config, before, n, qkv, starts)
    its: Any = config.memory  # shared, as the caller has seen
    weights: Any = params.memory
    held: Any = state.memory
    with checks.within("memory"):
        memories, m = shared_memory.apply(its, weights, held, shared, reset=starts)
    y, after = attention.attended(own, params.attention, before, qkv, starts)
    a = attention.merged(own, params.attention, y)
    return state.replaced(attention=after, memory=memories), a, m


def shared_of(
    config: Config, before: attention.State, n: Array, qkv: Array, starts: Any
) -> shared_memory.Shared:
    """What the memory of a block sees of its attention (SHARED-2).

    Args:
        before: the state of attention before the tokens.
        n, qkv: of `attention.projected`.
    """
    of, qk = config.attention.rotary, qkv[:, :2]
    shared: Any = config.memory
    if of is not None and shared.projection_frame == "rotated":
        at, _ = rotary.positions(of, before.rotary, qkv.shape[-2], starts)
        qk = rotary.rotated(of, qk, *rotary.tables(of, at, qkv))
    return shared_memory.Shared(n=n, q=qk[:, 0], k=qk[:, 1], v=qkv[:, 2])


def _remembered(
    config: Config, params: Params, state: State, x: Array, reset: Any, begun: bool
) -> tuple[State, Array]:
    """The memory over the tokens, and over the persistent ones before them (BLOCKS-9)."""
    rows = params.attention.persistent
    if not config.attention.prefixed or rows is None:
        return remembered(config, params, state, x, reset)
    starts = checks.check_reset(reset, x.shape[-2])
    whole = extended(config.attention, rows, x, starts, begun)
    state, m = remembered(config, params, state, whole.x, whole.reset)
    return state, whole.own(m)
