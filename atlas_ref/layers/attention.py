"""Attention in a sliding window, with persistent rows and with the last keys in the state.

    y_t = sum_s softmax_s(q_t . k_s / sqrt(d)) v_s over the persistent rows and s = t - W + 1 .. t

Specified in specs/attention.md.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.engine.attention import block as engine
from atlas_ref.engine.attention.layout import Layout
from atlas_ref.layers import attention_reads as reads
from atlas_ref.layers import checks, norm, rotary
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.norm import Config as Norm
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.layers.projection import cast, linear
from atlas_ref.rules.checks import require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops


class Config(Frozen):
    """Settings of attention in a window (ATTENTION-1 to ATTENTION-7).

    Attributes:
        d_model, heads, d_head: sizes; heads times d_head need not be d_model.
        window: W.
        persistent: P, rows of each head that are key and value at once.
        norm: of the tokens before the projections.
        head_norm: of queries and keys of each head, before their positions; None for none.
        rotary: positions of queries and keys; None for none.
        attention_window: causal, a band; last_keys_of_call, the last W keys for all queries.
        window_counts_self: whether the token itself is one of the W.
        persistent_visible: always; right_aligned, under the causal mask of the last keys.
    """

    d_model: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    d_head: Annotated[int, Field(ge=1)]
    window: Annotated[int, Field(ge=1)]
    persistent: Annotated[int, Field(ge=0)] = 0
    norm: Norm
    head_norm: Norm | None = None
    rotary: rotary.Config | None
    attention_window: Literal["causal", "last_keys_of_call"] = "causal"
    window_counts_self: bool = True
    persistent_visible: Literal["always", "right_aligned"] = "always"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        check_norm(self.norm, self.d_model)
        if self.rotary is not None and self.rotary.d != self.d_head:
            raise ValueError(f"rotary: d {self.rotary.d}, expected d_head = {self.d_head}")
        if self.head_norm is not None and (
            self.head_norm.d != self.d_head or self.head_norm.heads not in (None, self.heads)
        ):
            raise ValueError(
                f"head_norm: d {self.head_norm.d}, heads {self.head_norm.heads}, expected d_head = "
                f"{self.d_head} and heads {self.heads} or none"
            )
        causal = self.attention_window == "causal"
        if causal and self.persistent_visible == "right_aligned":
            raise ValueError(
                "persistent_visible: right_aligned needs attention_window last_keys_of_call"
            )
        if not causal and not self.window_counts_self:
            raise ValueError("window_counts_self: false needs attention_window causal")
        return self

    @property
    def reach(self) -> int:
        """Keys that a query of the causal band sees, itself one of them (ATTENTION-3)."""
        return self.window if self.window_counts_self else self.window + 1


class Params(Frozen):
    """Parameters of attention, which the outer loop learns (ATTENTION-1).

    Attributes:
        norm: of the norm.
        q_norm, k_norm: of the norm of heads; None without one.
        W_qkv (3, H, d_head, d_model): projections to queries, keys, values.
        W_out (d_model, H, d_head): projection of the reads of all heads.
        persistent (H, P, d_head): None where there is none.
    """

    norm: NormParams
    W_qkv: Annotated[Array, Dims("3 H d_head d_model")]
    W_out: Annotated[Array, Dims("d_model H d_head")]
    persistent: Annotated[Array | None, Dims("H P d_head", optional=True)] = None
    q_norm: NormParams | None = None
    k_norm: NormParams | None = None


class State(Frozen):
    """The last keys and values of a document, oldest first, and the next position (ATTENTION-8).

    Attributes:
        keys, values (B, H, n, d_head): n at most W; keys are rotated.
        rotary: the position of the next token.
    """

    keys: Annotated[Array, Dims("B H n d_head")]
    values: Annotated[Array, Dims("B H n d_head")]
    rotary: rotary.State


#: Public code and its reading of the axes, by name: settings of `Config` (ATTENTION-14).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-rnn": {
        "attention_window": "last_keys_of_call",
        "window_counts_self": True,
        "persistent_visible": "right_aligned",
    },
    "atlas-mag": {
        "attention_window": "causal",
        "window_counts_self": True,
        "persistent_visible": "always",
    },
    "atlas-rnn causal": {
        "attention_window": "causal",
        "window_counts_self": True,
        "persistent_visible": "always",
    },
}


def configured(
    convention: LayerConvention,
    *,
    d_model: int,
    heads: int,
    d_head: int,
    window: int,
    persistent: int = 0,
) -> Config:
    """The attention of a convention (LAYERS-3)."""
    c = convention
    return Config(
        d_model=d_model,
        heads=heads,
        d_head=d_head,
        window=window,
        persistent=persistent,
        norm=norm.configured("rms", d_model, c.norm_eps),
        rotary=rotary.Config(
            d=d_head,
            pairs=c.rotary_pairs,
            base=c.rotary_base,
            frequencies=c.rotary_frequencies,
            position=c.rotary_position,
        ),
        attention_window=c.attention_window,
        window_counts_self=c.window_counts_self,
        persistent_visible=c.persistent_visible,
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Projections from uniform(-r, r), r = 1/sqrt(terms of a sum); persistent rows from a standard
    normal (ATTENTION-13).
    """
    require_floating(dtype)
    draw, D, H, d = checks.generator(seed), config.d_model, config.heads, config.d_head
    W_qkv = draw.uniform(-1.0, 1.0, (3, H, d, D)) / np.sqrt(D)
    W_out = draw.uniform(-1.0, 1.0, (D, H, d)) / np.sqrt(H * d)
    rows = draw.standard_normal((H, config.persistent, d)) if config.persistent else None
    of_heads = None if config.head_norm is None else norm.init(config.head_norm)
    params = Params(
        norm=norm.init(config.norm),
        W_qkv=W_qkv,
        W_out=W_out,
        persistent=rows,
        q_norm=of_heads,
        k_norm=of_heads,
    )
    return cast(params, dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64, position: int = 0) -> State:
    """The state before the first token: no key, and its position (ATTENTION-8)."""
    checks.check_batch(batch)
    require_floating(dtype)
    zeros = backend.current().zeros((batch, config.heads, 0, config.d_head), dtype)
    return State(keys=zeros, values=zeros, rotary=rotary.State(position=position))


def apply(
    config: Config,
    params: Params,
    state: State,
    x: Array,
    *,
    reset: Array | None = None,
    context: Array | None = None,
) -> tuple[State, Array]:
    """Norm, project, attend and project back (ATTENTION-1).

    Args:
        x (B, T, d_model): tokens.
        reset (T,): True where a document starts; no query sees a key of another one.
        context (B, N, d_model): rows before the persistent ones, whose keys and values are
            projected without norm and position (ATTENTION-15); under last_keys_of_call alone.

    Returns:
        state with the last keys and values, y (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    starts = checks.check_reset(reset, x.shape[-2])
    check_params(config, params, x)
    _check_state(config, state, x)
    if starts is not None and config.attention_window != "causal":
        raise ValueError("reset: attention_window last_keys_of_call knows no documents")
    extra = None if context is None else _context(config, params, context, x)
    B, T, D = x.shape
    H, d = config.heads, config.d_head
    # time last: what follows is sums over entries and keys, with tokens side by side
    n = ops.swapaxes(norm.normed(config.norm, params.norm, x), -1, -2)
    qkv = ops.reshape(params.W_qkv, (3 * H * d, D)) @ n  # (B, 3 H d, T)
    qkv = ops.swapaxes(ops.reshape(qkv, (B, 3, H, d, T)), -1, -2)
    y, state = attended(config, params, state, qkv, starts, extra)
    merged = ops.reshape(ops.swapaxes(y, -1, -2), (B, H * d, T))
    W_out = ops.reshape(params.W_out, (D, H * d))
    return state, linear(ops.swapaxes(merged, -1, -2), W_out)


def attended(
    config: Config, params: Params, state: State, qkv: Array, starts: Any, extra: Any = None
) -> tuple[Array, State]:
    """Reads of all heads, and the state after them (ATTENTION-2 to ATTENTION-10).

    Args:
        qkv (B, 3, H, T, d_head): projected queries, keys and values.
        extra: keys and values (B, H, N, d_head) of rows before the persistent ones.

    Returns:
        reads (B, H, T, d_head), state.
    """
    H, T, d = qkv.shape[-3:]
    qkv = heads_normed(config, params, qkv)
    scale = 1.0 / math.sqrt(d)
    if config.rotary is None:
        cos = sin = ops.zeros_like(qkv, shape=(T, 0))
        position = state.rotary
    else:
        at, position = rotary.positions(config.rotary, state.rotary, T, starts)
        cos, sin = rotary.tables(config.rotary, at, qkv)
    rows = params.persistent
    rows = ops.zeros_like(qkv, shape=(H, 0, d)) if rows is None else rows
    if config.attention_window == "causal":
        first = _first_rows(state.keys.shape[-2], starts, T)

        def plainly(*arrays: Array) -> tuple[Array, Array]:
            return reads.plain_attention(config, cos, sin, first, *arrays)

        interleaved = None if config.rotary is None else config.rotary.pairs == "interleaved"
        reach = min(config.reach, state.keys.shape[-2] + T)  # no row lies further back
        layout = Layout(reach, interleaved, first)
        block = engine.block(plainly, layout, cos, sin, scale)
        y, keys = block(qkv, state.keys, state.values, rows)
    else:
        fixed = (rows, rows) if extra is None else reads.with_context(rows, extra)
        y, keys = reads.last_keys(config, cos, sin, qkv, state.keys, state.values, *fixed)
    after = State.trusted(
        keys=_kept(config, state.keys, keys, starts),
        values=_kept(config, state.values, qkv[:, 2], starts),
        rotary=position,
    )
    return y, after


def heads_normed(config: Config, params: Params, qkv: Array) -> Array:
    """Queries and keys (B, 3, H, T, d_head) after the norm of heads, where there is one."""
    if config.head_norm is None or params.q_norm is None or params.k_norm is None:
        return qkv
    q, k = (
        norm.normed(config.head_norm, each, qkv[:, i])
        for i, each in enumerate((params.q_norm, params.k_norm))
    )
    return ops.stack([q, k, qkv[:, 2]], axis=1)


def _context(config: Config, params: Params, context: Array, x: Array) -> tuple[Array, Array]:
    """Keys and values (B, H, N, d_head) of rows of context (ATTENTION-15)."""
    if config.attention_window == "causal":
        raise ValueError("context: attention_window causal has no rows before the call")
    B, N, D = x.shape[0], context.shape[-2], x.shape[-1]
    checks.check_shape("context", context, (B, N, D), "batch, rows, d_model")
    check_array("context", context, Dims("..."))
    checks.check_precision(x, {"context": context})
    rows = ops.expand_dims(context, 1)
    return rows @ ops.transpose(params.W_qkv[1]), rows @ ops.transpose(params.W_qkv[2])


def _first_rows(earlier: int, starts: Any, T: int) -> np.ndarray[Any, Any]:
    """For each query the first row of its document, -n for the first before the call (ATTENTION-9)."""
    first = checks.document_starts(starts, T)
    return np.where(first < 0, -earlier, first)


def _kept(config: Config, before: Array, rows: Array, starts: Any) -> Array:
    """The last W rows of the document that goes on, as an array of their own (ATTENTION-8)."""
    T = rows.shape[-2]
    length = T - int(np.flatnonzero(starts)[-1]) if starts is not None else T
    rows = rows[..., T - min(length, config.window) :, :]
    old = 0 if starts is not None else min(before.shape[-2], config.window - rows.shape[-2])
    return ops.concatenate([before[..., before.shape[-2] - old :, :], rows], axis=-2)


def check_params(config: Config, params: Params, x: Array) -> None:
    """Refuse parameters that contradict the settings or the tokens (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    H, d, D, P = config.heads, config.d_head, config.d_model, config.persistent
    norm.check_params(config.norm, params.norm, x, "params.norm")
    for name in ("q_norm", "k_norm"):
        of_heads, needed = getattr(params, name), config.head_norm is not None
        but = "head_norm needs it" if needed else "there is no head_norm"
        checks.check_presence(f"params.{name}", of_heads, needed, but)
        if of_heads is not None and config.head_norm is not None:
            norm.check_params(config.head_norm, of_heads, x, f"params.{name}")
    checks.check_shape("params.W_qkv", params.W_qkv, (3, H, d, D), "3, heads, d_head, d_model")
    checks.check_shape("params.W_out", params.W_out, (D, H, d), "d_model, heads, d_head")
    checks.check_presence("params.persistent", params.persistent, P > 0, f"persistent is {P}")
    if params.persistent is not None:
        checks.check_shape("params.persistent", params.persistent, (H, P, d), "heads, P, d_head")
    names = ("W_qkv", "W_out", "persistent")
    checks.check_precision(x, {f"params.{name}": getattr(params, name) for name in names})


def _check_state(config: Config, state: State, x: Array) -> None:
    """Refuse a state that contradicts the settings or the tokens (NORM-2)."""
    n = state.keys.shape[-2]
    expected = (x.shape[0], config.heads, n, config.d_head)
    for name in ("keys", "values"):
        rows, axes = getattr(state, name), "batch, heads, n, d_head"
        checks.check_shape(f"state.{name}", rows, expected, axes)
    if n > config.window:
        raise ValueError(f"state.keys: {n} rows, expected at most window = {config.window}")
    checks.check_precision(x, {"state.keys": state.keys, "state.values": state.values})
