"""MAC: attention over what the memory recalls, and memory of what attention found.

segments, with M_0 the memory before the segment of token t:

    h_t = M_0(x_t),    y_t = attention over persistent rows, h and x of the segment up to t
    m_t = memory(y_t),    x <- x + mix(y, m),    x <- x + feed_forward(x)

mean_of_call, the reading of public code: rows of the mean of memory(x) over the whole call stand
before the keys of attention. Specified in specs/blocks.md (BLOCKS-7).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.blocks import mix
from atlas_ref.blocks.parts import attended, fed_forward, require_same_tokens
from atlas_ref.blocks.segments import Segment, run_segments
from atlas_ref.layers import attention, checks, feed_forward, memory, norm
from atlas_ref.layers.attention.boundary import check_params as check_attention
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.projection import cast
from atlas_ref.rules.checks import check_count, generator, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Settings of a MAC block (BLOCKS-7).

    Attributes:
        memory, attention, feed_forward: of the parts; the attention's window is the segment.
        context: segments, or mean_of_call.
        mix: of attention and memory, under segments.
        pool_norm: of the mean, under mean_of_call.
        longterm: N, rows of the mean, under mean_of_call.
        state: explicit, memory goes on at each call; committed, only where the tokens so far are a
            multiple of the segment at the end of a call.
    """

    memory: memory.Config
    attention: attention.Config
    feed_forward: feed_forward.Config
    context: Literal["segments", "mean_of_call"]
    mix: mix.Config | None
    pool_norm: norm.Config | None
    longterm: Count | None = None
    state: Literal["explicit", "committed"] = "explicit"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        D = self.d_model
        require_same_tokens(D, memory=self.memory, feed_forward=self.feed_forward, mix=self.mix)
        segments = self.context == "segments"
        for name, needed in (
            ("mix", segments),
            ("pool_norm", not segments),
            ("longterm", not segments),
        ):
            but = f"the context is {self.context}"
            checks.check_presence(name, getattr(self, name), needed, but)
        if segments != (self.attention.attention_window == "causal"):
            raise ValueError(
                f"attention: attention_window {self.attention.attention_window} does not fit "
                f"context {self.context}"
            )
        if self.attention.persistent_visible == "window":
            raise ValueError("attention: persistent_visible window, but each segment sees them all")
        if segments and self.memory.steps_of_calls:
            raise ValueError("memory: levels with steps per call have no step inside a segment")
        if segments and self.state == "committed":
            raise ValueError("state: committed belongs to context mean_of_call")
        return self

    @property
    def d_model(self) -> int:
        return self.attention.d_model

    @property
    def segment(self) -> int:
        return self.attention.window

    @property
    def causal(self) -> bool:
        """Whether no token changes a result before it (BLOCKS-2)."""
        return self.context == "segments" and self.memory.causal


class Params(Frozen):
    """Parameters of the parts, which the outer loop learns (BLOCKS-8).

    Attributes:
        pool_norm, W_pool (d_model, d_model): under mean_of_call.
        mix: under segments.
    """

    memory: memory.Params
    attention: attention.Params
    feed_forward: feed_forward.Params
    mix: mix.Params | None
    pool_norm: norm.Params | None = None
    W_pool: Annotated[Array | None, Dims("rows d_model", optional=True)] = None


class State(Frozen):
    """States of the parts (BLOCKS-2).

    Attributes:
        memory: what the next call writes into.
        attention: last keys of a call, under mean_of_call.
        segment: the segment that is under way, under segments.
        tokens: number of tokens so far.
    """

    memory: memory.State
    attention: attention.State | None
    segment: Segment | None = None
    tokens: Annotated[int, Field(ge=0)] = 0


def configured(
    convention: LayerConvention,
    memory_config: memory.Config,
    *,
    d_model: int,
    heads: int,
    d_head: int,
    segment: int,
    persistent: int = 0,
    longterm: int = 4,
    d_inner: int,
) -> Config:
    """The block of a convention around a memory layer (LAYERS-3).

    Args:
        longterm: rows of the mean, which mac_context mean_of_call alone has.
    """
    c, segments = convention, convention.mac_context == "segments"
    return Config(
        memory=memory_config,
        attention=attention.configured(
            c,
            d_model=d_model,
            heads=heads,
            d_head=d_head,
            window=segment,
            persistent=persistent,
        ),
        feed_forward=feed_forward.configured(c, d_model=d_model, d_inner=d_inner),
        context=c.mac_context,
        mix=mix.configured(c, d_model) if segments else None,
        pool_norm=None if segments else norm.configured("rms", d_model, c.norm_eps),
        longterm=None if segments else longterm,
        state="explicit" if segments else c.mac_state,
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Parameters of the parts at their starts (BLOCKS-8)."""
    require_floating(dtype)
    draw, D = generator(seed), config.d_model
    seeds = [int(each) for each in draw.integers(2**62, size=3)]
    pools = config.context == "mean_of_call"
    params = Params(
        memory=memory.init(config.memory, seeds[0]),
        attention=attention.init(config.attention, seeds[1]),
        feed_forward=feed_forward.init(config.feed_forward, seeds[2]),
        mix=None if config.mix is None else mix.init(config.mix, draw),
        pool_norm=None if config.pool_norm is None else norm.init(config.pool_norm),
        W_pool=draw.uniform(-1.0, 1.0, (D, D)) / np.sqrt(D) if pools else None,
    )
    return cast(params, dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token (BLOCKS-2)."""
    check_count("batch", batch)
    require_floating(dtype)
    memories = memory.start(config.memory, batch, dtype=dtype)
    attended = attention.start(config.attention, batch, dtype=dtype)
    if config.context == "segments":
        segment = Segment(memory=memories, cache=attended)
        return State(memory=memories, attention=None, segment=segment)
    return State(memory=memories, attention=attended)


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """The block over tokens (BLOCKS-7).

    Args:
        x (B, T, d_model): the residual stream.
        reset (T,): True where a document starts; context mean_of_call knows none.

    Returns:
        state, x (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    _check_parts(config, params, state, x)
    if config.context == "segments":
        state, x = run_segments(config, params, state, x, checks.check_reset(reset, x.shape[-2]))
    else:
        state, x = _mean_of_call(config, params, state, x, reset)
    return state, x + fed_forward(config.feed_forward, params.feed_forward, x)


def forgotten(config: Config, state: State, after: State) -> State:
    """The state of a call that is to start as from `state`, after another call (BLOCKS-7).

    Under committed public code keeps memory and count on the module, whatever a call is given.
    """
    if config.state == "explicit":
        return state
    return state.replaced(memory=after.memory, tokens=after.tokens)


def _mean_of_call(
    config: Config, params: Params, state: State, x: Array, reset: Any
) -> tuple[State, Array]:
    """Attention with rows of the mean of the memory's reads over the call (BLOCKS-7)."""
    if checks.check_reset(reset, x.shape[-2]) is not None:
        raise ValueError("reset: context mean_of_call knows no documents")
    with checks.within("memory"):
        after, m = memory.apply(config.memory, params.memory, state.memory, x)
    assert config.pool_norm is not None
    assert params.pool_norm is not None
    assert state.attention is not None
    pooled = norm.normed(config.pool_norm, params.pool_norm, ops.mean(m, axis=-2, keepdims=True))
    row = pooled @ ops.transpose(params.W_pool)  # (B, 1, d_model)
    context = row + ops.zeros_like(x, shape=(x.shape[0], config.longterm or 1, x.shape[-1]))
    own = config.attention
    attending, a = attended(own, params.attention, state.attention, x, context=context)
    tokens = state.tokens + x.shape[-2]
    commits = config.state == "explicit" or tokens % config.segment == 0
    kept = after if commits else state.memory
    return state.replaced(memory=kept, attention=attending, tokens=tokens), x + a


def _check_parts(config: Config, params: Params, state: State, x: Array) -> None:
    """Refuse parameters and a state that lack what the context needs (NORM-2)."""
    segments = config.context == "segments"
    for name, value, needed in (
        ("params.mix", params.mix, segments),
        ("params.pool_norm", params.pool_norm, not segments),
        ("params.W_pool", params.W_pool, not segments),
        ("state.segment", state.segment, segments),
        ("state.attention", state.attention, not segments),
    ):
        checks.check_presence(name, value, needed, f"the context is {config.context}")
    if state.segment is not None:
        with checks.within("attention"):
            check_attention(config.attention, params.attention, x)
        _check_segment(config, state.segment, x)
    if config.mix is not None and params.mix is not None:
        mix.check_params(config.mix, params.mix, x)
    if config.pool_norm is not None and params.pool_norm is not None:
        norm.check_params(config.pool_norm, params.pool_norm, x, "params.pool_norm")
    if params.W_pool is not None:
        shape = (config.d_model, config.d_model)
        checks.check_shape("params.W_pool", params.W_pool, shape, "d_model, d_model")
        checks.check_precision(x, {"params.W_pool": params.W_pool})


def _check_segment(config: Config, segment: Segment, x: Array) -> None:
    """Refuse a segment of another batch, or with other rows than two for each of its tokens."""
    if segment.place > config.segment:
        raise ValueError(f"state.segment.place: {segment.place}, at most {config.segment}")
    expected = (x.shape[0], config.attention.heads, 2 * segment.place, config.attention.d_head)
    for name in ("keys", "values"):
        rows, place = getattr(segment.cache, name), f"state.segment.cache.{name}"
        checks.check_shape(place, rows, expected, "batch, heads, rows of the segment, d_head")
        checks.check_precision(x, {place: rows})
