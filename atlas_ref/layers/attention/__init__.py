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
from atlas_ref.layers import checks, norm, rotary
from atlas_ref.layers.attention import prefix, reads
from atlas_ref.layers.attention.boundary import check_params as check_params
from atlas_ref.layers.attention.boundary import check_state
from atlas_ref.layers.attention.projections import heads_normed as heads_normed
from atlas_ref.layers.attention.projections import merged as merged
from atlas_ref.layers.attention.projections import of_context
from atlas_ref.layers.attention.projections import projected as projected
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.feed_forward import check_norm
from atlas_ref.layers.norm import Config as Norm
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.layers.projection import cast
from atlas_ref.rules.checks import check_count, generator, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Settings of attention in a window (ATTENTION-1 to ATTENTION-7).

    Attributes:
        d_model, heads, d_head: sizes; heads times d_head need not be d_model.
        window: W.
        persistent: P, rows or tokens that belong to no token.
        norm: of the tokens before the projections.
        head_norm: of queries and keys of each head, before their positions; None for none.
        rotary: positions of queries and keys; None for none.
        attention_window: causal, a band; last_keys_of_call, the last W keys for all queries.
        window_counts_self: whether the token itself is one of the W.
        persistent_kind: key_value, rows of each head that are key and value at once; prepended,
            tokens that stand before each document (ATTENTION-16).
        persistent_visible: always; right_aligned, under the causal mask of the last keys; window,
            of prepended tokens, as any token.
    """

    d_model: Count
    heads: Count
    d_head: Count
    window: Count
    persistent: Annotated[int, Field(ge=0)] = 0
    norm: Norm
    head_norm: Norm | None = None
    rotary: rotary.Config | None
    attention_window: Literal["causal", "last_keys_of_call"] = "causal"
    window_counts_self: bool = True
    persistent_kind: Literal["key_value", "prepended"] = "key_value"
    persistent_visible: Literal["always", "right_aligned", "window"] = "always"

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
        self._agree_on_tokens_before()
        return self

    def _agree_on_tokens_before(self) -> None:
        prepended = self.persistent_kind == "prepended"
        if self.persistent_visible == "window" and not prepended:
            raise ValueError("persistent_visible: window needs persistent_kind prepended")
        if prepended and self.attention_window != "causal":
            raise ValueError("persistent_kind: prepended needs attention_window causal")
        if prepended and self.rotary is not None and self.rotary.position != "carried":
            raise ValueError(
                f"persistent_kind: prepended needs rotary position carried, found "
                f"{self.rotary.position}"
            )

    @property
    def prefixed(self) -> bool:
        """Whether tokens stand before each document (ATTENTION-16)."""
        return self.persistent_kind == "prepended" and self.persistent > 0

    @property
    def pinned(self) -> bool:
        """Whether every query of a document sees them (ATTENTION-16)."""
        return self.prefixed and self.persistent_visible == "always"

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
        persistent (H, P, d_head), under persistent_kind prepended (P, d_model): None where there is
            none.
    """

    norm: NormParams
    W_qkv: Annotated[Array, Dims("3 H d_head d_model")]
    W_out: Annotated[Array, Dims("d_model H d_head")]
    persistent: Annotated[Array | None, Dims("... P row", optional=True)] = None
    q_norm: NormParams | None = None
    k_norm: NormParams | None = None


class State(Frozen):
    """The last keys and values of a document, oldest first, and the next position (ATTENTION-8).

    Attributes:
        keys, values (B, H, n, d_head): n at most W; keys are rotated.
        rotary: the position of the next token.
        begun: whether the persistent tokens of the document stand before it (ATTENTION-16).
        prefix_keys, prefix_values (B, H, P, d_head): theirs, where every query sees them.
    """

    keys: Annotated[Array, Dims("B H n d_head")]
    values: Annotated[Array, Dims("B H n d_head")]
    rotary: rotary.State
    begun: bool = False
    prefix_keys: Annotated[Array | None, Dims("B H P d_head", optional=True)] = None
    prefix_values: Annotated[Array | None, Dims("B H P d_head", optional=True)] = None


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
        persistent_kind=c.persistent_kind,
        persistent_visible=c.persistent_visible,
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Projections from uniform(-r, r), r = 1/sqrt(terms of a sum); persistent rows from a standard
    normal (ATTENTION-13).
    """
    require_floating(dtype)
    draw, D, H, d = generator(seed), config.d_model, config.heads, config.d_head
    W_qkv = draw.uniform(-1.0, 1.0, (3, H, d, D)) / np.sqrt(D)
    W_out = draw.uniform(-1.0, 1.0, (D, H, d)) / np.sqrt(H * d)
    of_rows = (config.persistent, D) if config.prefixed else (H, config.persistent, d)
    rows = draw.standard_normal(of_rows) if config.persistent else None
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
    check_count("batch", batch)
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
    starts = checked(config, params, state, x, reset)
    extra = None if context is None else of_context(config, params, context, x)
    if config.prefixed:
        return _in_documents(config, params, state, x, starts)
    _, qkv = projected(config, params, x)
    y, state = attended(config, params, state, qkv, starts, extra)
    return state, merged(config, params, y)


def checked(config: Config, params: Params, state: State, x: Array, reset: Any) -> Any:
    """Starts of documents (T,) or None; refuse arguments that contradict the settings (NORM-2).

    Raises:
        ValueError: what was found and what is needed.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    starts = checks.check_reset(reset, x.shape[-2])
    check_params(config, params, x)
    check_state(config, state, x)
    if starts is not None and config.attention_window != "causal":
        raise ValueError("reset: attention_window last_keys_of_call knows no documents")
    return starts


def _in_documents(
    config: Config, params: Params, state: State, x: Array, starts: Any
) -> tuple[State, Array]:
    """A call whose documents begin with the persistent tokens (ATTENTION-16)."""
    results = []
    for piece in prefix.pieces(starts, x.shape[-2], begun=state.begun):
        if piece.begins:
            state = opened(config, params, prefix.tokens(params.persistent, x))
        _, qkv = projected(config, params, x[:, piece.first : piece.last])
        y, state = attended(config, params, state, qkv, None)
        results.append(merged(config, params, y))
    return state, results[0] if len(results) == 1 else ops.concatenate(results, axis=-2)


def opened(config: Config, params: Params, rows: Array) -> State:
    """The state of a document after the tokens that stand before it (ATTENTION-16).

    Args:
        rows (B, P, d_model): those tokens, at positions 0 to P - 1.
    """
    keys, values = prefix_rows(config, params, rows)
    after = rotary.State(position=0 if config.rotary is None else config.persistent)
    none = keys[..., :0, :]
    if config.pinned:
        return State.trusted(
            keys=none, values=none, rotary=after, begun=True, prefix_keys=keys, prefix_values=values
        )
    return State.trusted(
        keys=_kept(config, none, keys, None),
        values=_kept(config, none, values, None),
        rotary=after,
        begun=True,
        prefix_keys=None,
        prefix_values=None,
    )


def prefix_rows(config: Config, params: Params, rows: Array) -> tuple[Array, Array]:
    """Keys, turned, and values (B, H, P, d_head) of tokens before a document (ATTENTION-16)."""
    _, qkv = projected(config, params, rows)
    if config.rotary is None:
        return qkv[:, 1], qkv[:, 2]
    cos, sin = rotary.tables(config.rotary, np.arange(rows.shape[-2]), rows)
    return rotary.rotated(config.rotary, qkv[:, 1], cos, sin), qkv[:, 2]


def attended(
    config: Config, params: Params, state: State, qkv: Array, starts: Any, extra: Any = None
) -> tuple[Array, State]:
    """Reads of all heads, and the state after them (ATTENTION-2 to ATTENTION-10).

    Args:
        qkv (B, 3, H, T, d_head): queries, keys and values, as `projected` returns them.
        extra: keys and values (B, H, N, d_head) of rows before the persistent ones.

    Returns:
        reads (B, H, T, d_head), state.
    """
    H, T, d = qkv.shape[-3:]
    scale = 1.0 / math.sqrt(d)
    if config.rotary is None:
        cos = sin = ops.zeros_like(qkv, shape=(T, 0))
        position = state.rotary
    else:
        at, position = rotary.positions(config.rotary, state.rotary, T, starts)
        cos, sin = rotary.tables(config.rotary, at, qkv)
    none = ops.zeros_like(qkv, shape=(H, 0, d))
    rows = none if params.persistent is None or config.prefixed else params.persistent
    if config.pinned:
        first = _first_rows(state.keys.shape[-2], starts, T)
        y, keys = prefix.pinned_reads(config, cos, sin, first, qkv, state)
    elif config.attention_window == "causal":
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
    after = state.replaced(
        keys=_kept(config, state.keys, keys, starts),
        values=_kept(config, state.values, qkv[:, 2], starts),
        rotary=position,
    )
    return y, after


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
