"""Modules of Atlas-MAG without memory: norm, positions, convolution, feed-forward, attention block.

Their constructor arguments as settings of ours, their state_dicts as parameters. Specified in
specs/layer_cases.md (LAYER-17).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.blocks import BLOCKS, mix
from atlas_ref.layers import attention, convolution, feed_forward, norm, rotary
from atlas_ref.models.atlas_mag.names import ATTENTION_BLOCK, halves
from atlas_ref.models.atlas_rnn import Constants, Module
from atlas_ref.models.public.names import Name, Table
from atlas_ref.types import Count, Frozen

#: Name of the frequencies of rotary positions, which nothing trains.
FREQUENCIES = "in/buffer/inv_freq"

Even = Annotated[int, Field(ge=2, multiple_of=2)]


class RmsNorm(Frozen):
    """Arguments of RMSNorm (LAYER-17).

    Attributes:
        dim: length of a row.
        eps: added to the mean of squares.
        float32_inside: whether the quotient was taken in float32.
    """

    dim: Count
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6
    float32_inside: bool = False


class Rotary(Frozen):
    """Arguments of RotaryEmbedding, and of its call (LAYER-17).

    Attributes:
        dim: length of a query or key.
        base: of frequencies; in/buffer/inv_freq holds them.
        layout: which entries of a row make a pair.
        seq_offset: position of the first token.
    """

    dim: Even
    base: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10000.0
    layout: Literal["halves"] = "halves"
    seq_offset: Annotated[int, Field(ge=0, le=2**31)] = 0


class CausalConv(Frozen):
    """Arguments of CausalConv1d (LAYER-17).

    Attributes:
        dim: number of channels.
        kernel_size: number of taps.
    """

    dim: Count
    kernel_size: Annotated[int, Field(ge=1, le=2**20)] = 4


class SwiGlu(Frozen):
    """Arguments of SwiGLU (LAYER-17).

    Attributes:
        dim, hidden_dim: lengths of a token and of a half.
        fused: whether one matrix, w12, holds w1 and w2.
    """

    dim: Count
    hidden_dim: Count
    fused: bool = False


class AttentionBlock(Frozen):
    """Arguments of AttentionBlock (LAYER-17).

    Attributes:
        dim, n_heads: sizes; a head has dim / n_heads entries, an even number.
        attn_window_size: keys that a query sees, itself one of them.
        ffn_expansion: the feed-forward has dim ffn_expansion 2 / 3 hidden entries.
        attention_mask: whether a case has tokens that no query sees.
    """

    dim: Count
    n_heads: Count
    attn_window_size: Count
    ffn_expansion: Annotated[float, Field(gt=0, allow_inf_nan=False, le=2**20)] = 4
    attention_mask: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.dim % (2 * self.n_heads):
            raise ValueError(
                f"dim: {self.dim} is no multiple of twice n_heads = {self.n_heads}, so that heads "
                "are odd or of no length"
            )
        if self.inner < 1:
            raise ValueError(f"ffn_expansion: {self.ffn_expansion:g} leaves no hidden entry")
        return self

    @property
    def inner(self) -> int:
        return feed_forward.inner(self.dim, self.ffn_expansion)


def _norm(settings: RmsNorm, eps: float, constants: Constants) -> norm.Config:
    return norm.Config(**norm.PRESETS["atlas-mag"] | {"eps": settings.eps}, d=settings.dim)


def _rotary(settings: Rotary, eps: float, constants: Constants) -> rotary.Config:
    frequencies: Any = "float32"
    if FREQUENCIES in constants:
        frequencies = tuple(map(float, np.asarray(constants[FREQUENCIES], np.float64)))
    own = {"frequencies": frequencies, "pairs": settings.layout, "position": "carried"}
    return rotary.Config(**rotary.PRESETS["atlas-mag"] | own, d=settings.dim, base=settings.base)


def _convolution(settings: CausalConv, eps: float, constants: Constants) -> convolution.Config:
    return convolution.Config(
        **convolution.PRESETS["atlas-mag"], d_model=settings.dim, kernel=settings.kernel_size
    )


def _feed_forward(settings: SwiGlu, eps: float, constants: Constants) -> feed_forward.Config:
    return feed_forward.Config(
        d_model=settings.dim,
        d_inner=settings.hidden_dim,
        norm=norm.Config(kind="none", d=settings.dim),
        **feed_forward.PRESETS["atlas-mag"],
    )


def _block(settings: AttentionBlock, eps: float, constants: Constants) -> Any:
    """A block of attention and feed-forward: MAG without a memory."""
    D, d = settings.dim, settings.dim // settings.n_heads
    of_tokens = norm.Config(**norm.PRESETS["atlas-mag"], d=D)
    unused = norm.Config(kind="none", d=D)
    return BLOCKS["mag"].Config(
        memory=None,
        attention=attention.Config(
            d_model=D,
            heads=settings.n_heads,
            d_head=d,
            window=settings.attn_window_size,
            norm=of_tokens,
            head_norm=norm.Config(**norm.PRESETS["atlas-mag"], d=d),
            rotary=rotary.Config(**rotary.PRESETS["atlas-mag"] | {"frequencies": "exact"}, d=d),
            **attention.PRESETS["atlas-mag"],
        ),
        feed_forward=feed_forward.Config(
            d_model=D,
            d_inner=settings.inner,
            norm=of_tokens,
            **feed_forward.PRESETS["atlas-mag"],
        ),
        mix=mix.Config(kind="attention_times_gate", gate_norm=unused, branch_norm=unused),
    )


def _names_of_feed_forward(settings: SwiGlu | None) -> Table:
    fused = {"w12.weight": Name("2*inner dim", ".W_in"), "w3.weight": Name("dim inner", ".W_out")}
    if settings is None:
        return halves("", "") | fused
    return fused if settings.fused else halves("", "")


def _names_of_block(settings: AttentionBlock | None) -> Table:
    return ATTENTION_BLOCK


#: Name in this project -> module.
PARTS: dict[str, Module] = {
    "atlas_mag_rms_norm": Module(
        norm,
        RmsNorm,
        sizes=lambda settings: {"dim": settings.dim},
        names=lambda settings: {"weight": Name("dim", ".weight")},
        config=_norm,
    ),
    "atlas_mag_rotary": Module(
        rotary,
        Rotary,
        sizes=lambda settings: {"dim": settings.dim, "dim/2": settings.dim // 2},
        names=lambda settings: {},
        config=_rotary,
    ),
    "atlas_mag_causal_conv": Module(
        convolution,
        CausalConv,
        sizes=lambda settings: {"dim": settings.dim, "kernel_size": settings.kernel_size},
        names=lambda settings: {
            "conv.weight": Name("dim 1 kernel_size", ".weight"),
            "conv.bias": Name("dim", ".bias"),
        },
        config=_convolution,
    ),
    "atlas_mag_swiglu": Module(
        feed_forward,
        SwiGlu,
        sizes=lambda settings: {
            "dim": settings.dim,
            "inner": settings.hidden_dim,
            "2*inner": 2 * settings.hidden_dim,
        },
        names=_names_of_feed_forward,
        config=_feed_forward,
    ),
    "atlas_mag_attention_block": Module(
        BLOCKS["mag"],
        AttentionBlock,
        sizes=lambda settings: {
            "dim": settings.dim,
            "heads": settings.n_heads,
            "dim_head": settings.dim // settings.n_heads,
            "inner": settings.inner,
        },
        names=_names_of_block,
        config=_block,
    ),
}
