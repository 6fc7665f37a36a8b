"""Settings and states of atlas-rnn's modules as ours.

Their tensors are those of the table in `atlas_rnn_names`. Specified in specs/language_model.md
(MODEL-9, MODEL-10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref import conventions
from atlas_ref.blocks import lmm, mac, mag, mal
from atlas_ref.layers import attention, convention, feed_forward, memory
from atlas_ref.layers.convention import LayerConvention, Positive
from atlas_ref.models import language_model
from atlas_ref.parts.feature_maps import HIGHEST_DEGREE, IDENTITY, Elementwise, FeatureMap, Sketch
from atlas_ref.parts.window import Ones
from atlas_ref.rules import omega
from atlas_ref.rules.matrices import window_gradients, with_gradients
from atlas_ref.types import Array, Count, Frozen
from tape import ops


class Settings(Frozen):
    """Arguments of the public constructors, by their names, with their defaults (MODEL-9).

    Attributes:
        dim, dim_head, heads: sizes; dim_head None is dim.
        qkv_conv_kernel: None or 1 for no convolution.
        conv: centred, as shipped; causal, the same code with another padding.
        scan_chunk_len: tokens after which the memory is clamped within a call.
        vocab, depth, block_type: of a model.
        norm_eps: of RMSNorm, which the public code takes from the dtype.
    """

    dim: Count
    dim_head: Count | None = None
    heads: Count = 1
    omega_window: Count = 1
    use_omega_gate: bool = False
    use_momentum: bool = True
    poly_degree: Annotated[int, Field(ge=0)] = 1
    poly_mode: Literal["off", "elementwise", "tensor"] = "off"
    qkv_conv_kernel: Count | None = 4
    conv: Literal["centred", "causal"] = "centred"
    qk_norm: bool = True
    scan_chunk_len: Count | None = None
    window_size: Count = 64
    num_persist_mem_tokens: Annotated[int, Field(ge=0)] = 0
    num_longterm_mem_tokens: Count = 4
    segment_len: Count = 16
    ff_mult: Annotated[float, Field(gt=0, allow_inf_nan=False, le=2**20)] = 4
    rotary_base: Positive = 10000
    vocab: Count | None = None
    depth: Count | None = None
    block_type: Literal["mag", "mal", "mac", "lmm"] = "mag"
    norm_eps: Positive | Literal["machine"] = "machine"

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            data = dict(data)
            for name in ("ff_mult", "rotary_base"):
                if isinstance(data.get(name), int) and not isinstance(data.get(name), bool):
                    data[name] = float(data[name])
        return data

    @model_validator(mode="after")
    def _wide_enough(self) -> Self:
        if feed_forward.inner(self.dim, self.ff_mult) < 1:
            raise ValueError(f"ff_mult: {self.ff_mult} leaves no hidden unit at dim {self.dim}")
        if self.poly_mode == "elementwise" and self.poly_degree > HIGHEST_DEGREE:
            raise ValueError(
                f"poly_degree: must be at most {HIGHEST_DEGREE}, found {self.poly_degree}"
            )
        return self

    @property
    def d_head(self) -> int:
        return self.dim if self.dim_head is None else self.dim_head

    @property
    def d_inner(self) -> int:
        return feed_forward.inner(self.dim, self.ff_mult)

    @property
    def feature_map(self) -> FeatureMap:
        """The map in force: of degree 1 or less none, whatever the mode."""
        if self.poly_degree <= 1 or self.poly_mode == "off":
            return IDENTITY
        return Sketch() if self.poly_mode == "tensor" else Elementwise(degree=self.poly_degree)

    @property
    def has_convolution(self) -> bool:
        return self.qkv_conv_kernel is not None and self.qkv_conv_kernel > 1

    @property
    def has_sketch(self) -> bool:
        return self.feature_map.kind == "sketch"

    @property
    def has_unread_sketch(self) -> bool:
        """Whether a projection is in the state_dict, and the degree keeps it from being read."""
        return self.poly_mode == "tensor" and not self.has_sketch

    @property
    def readings(self) -> LayerConvention:
        changes: dict[str, Any] = {
            "conv_padding": self.conv,
            "rotary_base": self.rotary_base,
            "norm_eps": self.norm_eps,
        }
        if not self.qk_norm:
            changes["head_norm"] = "none"
        return convention.resolve({"preset": "atlas-rnn", **changes})


# -- settings --------------------------------------------------------------------------------------


def memory_config(
    s: Settings, readings: LayerConvention | None = None, rule_convention: Any = "atlas-rnn"
) -> memory.Config:
    """The memory layer (`RNNMemory`) of settings (MODEL-9).

    Args:
        readings, rule_convention: other readings of the same sizes; those of the public code.
    """
    c = s.readings if readings is None else readings
    rule = omega.Config(
        d_in=s.d_head,
        d_out=s.d_head,
        d_model=s.dim,
        heads=s.heads,
        window=s.omega_window,
        feature_map=s.feature_map,
        window_weights=Ones(),
        convention=conventions.resolve(rule_convention, rule="omega"),
    )
    return memory.configured(
        c,
        rule,
        kernel=s.qkv_conv_kernel,
        momentum=s.use_momentum,
        window_gate=s.use_omega_gate,
        scan_chunk=None if c.state_clamp == "none" else s.scan_chunk_len,
    )


def attention_config(s: Settings, frequencies: Any = None) -> attention.Config:
    """The attention (`SlidingWindowAttention`) of settings (MODEL-9).

    Args:
        frequencies (d_head / 2,): of rotary positions, as recorded; None computes them in float32.
    """
    config = attention.configured(
        s.readings,
        d_model=s.dim,
        heads=s.heads,
        d_head=s.d_head,
        window=s.window_size,
        persistent=s.num_persist_mem_tokens,
    )
    return _with_frequencies(config, frequencies)


def _with_frequencies(config: attention.Config, frequencies: Any) -> attention.Config:
    if frequencies is None or config.rotary is None:
        return config
    numbers = tuple(float(each) for each in np.asarray(frequencies, np.float64))
    rotary = type(config.rotary)(**{**config.rotary.__dict__, "frequencies": numbers})
    return config.replaced(rotary=rotary)


def feed_forward_config(s: Settings) -> feed_forward.Config:
    """The feed-forward (`FeedForward`) of settings (MODEL-9)."""
    return feed_forward.configured(s.readings, d_model=s.dim, d_inner=s.d_inner)


def block_config(
    s: Settings,
    frequencies: Any = None,
    *,
    readings: LayerConvention | None = None,
    rule_convention: Any = "atlas-rnn",
) -> Any:
    """The block of settings, by its block_type (MODEL-9).

    Args:
        frequencies: as for `attention_config`. readings, rule_convention: as for `memory_config`.
    """
    c = s.readings if readings is None else readings
    sizes: dict[str, Any] = {
        "d_model": s.dim,
        "heads": s.heads,
        "d_head": s.d_head,
        "persistent": s.num_persist_mem_tokens,
        "d_inner": s.d_inner,
    }
    own = memory_config(s, c, rule_convention)
    if s.block_type == "lmm":
        return lmm.configured(c, own, d_model=s.dim, d_inner=s.d_inner)
    if s.block_type == "mac":
        rows = s.num_longterm_mem_tokens
        block: Any = mac.configured(c, own, segment=s.segment_len, longterm=rows, **sizes)
    else:
        module = mag if s.block_type == "mag" else mal
        block = module.configured(c, own, window=s.window_size, **sizes)
    return _block_with_frequencies(block, frequencies)


def _memory_alone(s: Settings) -> lmm.Config:
    return lmm.configured(s.readings, memory_config(s), d_model=s.dim, d_inner=None)


def _block_with_frequencies(block: Any, frequencies: Any) -> Any:
    if frequencies is None:
        return block
    return block.replaced(attention=_with_frequencies(block.attention, frequencies))


def model_config(
    s: Settings, frequencies: Iterable[Any] = (), *, memory_only: bool = False
) -> language_model.Config:
    """The language model of settings (MODEL-9).

    Args:
        frequencies: of each block, in order; empty computes them.
        memory_only: blocks of a memory alone, as the public training script of memories has them.

    Raises:
        ValueError: no vocab or no depth.
    """
    for name in ("vocab", "depth"):
        if getattr(s, name) is None:
            raise ValueError(f"{name}: missing, a model needs it")
    own = list(frequencies) or [None] * (s.depth or 1)
    block = _memory_alone(s) if memory_only else block_config(s)
    blocks = [_block_with_frequencies(block, each) for each in own]
    return language_model.configured(s.readings, blocks, vocabulary=s.vocab or 1)


# -- states ----------------------------------------------------------------------------------------


def to_state(config: memory.Config, state: memory.State, tensors: Mapping[str, Array]) -> Any:
    """The state of a memory layer from public tensors (MODEL-10, OMEGA-29).

    S is M here, Z is S, and the buffer holds gradients of the window as matrices.

    Args:
        state: of `memory.start`.
    """
    context: Any = state.levels
    own = context.states[0]
    shape = own.M.shape
    own = own.replaced(M=ops.reshape(tensors["S"], shape))
    if "Z" in tensors:
        own = own.replaced(S=ops.reshape(tensors["Z"], shape))
    if "omega_buffer" in tensors:
        buffer = tensors["omega_buffer"]
        rows = ops.reshape(buffer, (*shape[:2], *buffer.shape[1:]))
        own = with_gradients(config.levels.levels[0].config, own, rows)
    return state.replaced(levels=context.replaced(states=(own,)))


def from_state(config: memory.Config, state: memory.State) -> dict[str, Array]:
    """Public tensors of the state of a memory layer (MODEL-10, OMEGA-30)."""
    context: Any = state.levels
    own = context.states[0]
    B, H, *matrix = own.M.shape
    tensors = {"S": ops.reshape(own.M, (B * H, *matrix))}
    if config.momentum:
        tensors["Z"] = ops.reshape(own.S, (B * H, *matrix))
    rule = config.levels.levels[0].config
    if rule.window > 1:
        rows = window_gradients(rule, own)
        tensors["omega_buffer"] = ops.reshape(rows, (B * H, *rows.shape[2:]))
    return tensors
