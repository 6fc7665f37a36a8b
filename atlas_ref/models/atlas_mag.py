"""Atlas-MAG: settings of its model, names and shapes of its tensors, and its model without memories.

Shapes and their number follow from the settings alone: nothing is drawn. Specified in
specs/language_model.md (MODEL-14, MODEL-15).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.blocks import mag, mix
from atlas_ref.layers import attention, feed_forward, norm, rotary
from atlas_ref.layers.norm import Params as NormParams
from atlas_ref.models import language_model
from atlas_ref.types import Array, Frozen
from tape import ops

Size = Annotated[int, Field(ge=1)]


class Settings(Frozen):
    """Arguments of AtlasMAGSkeleton, by their names and with their defaults (MODEL-14).

    Attributes:
        vocab_size, dim, n_layers, n_heads: sizes.
        memory_expansion: of the hidden layers of memories and, times 2/3, of feed-forwards.
        disable_memory: whether blocks have attention and feed-forward alone.
        poly_degree: of the features of a memory's input.
        poly_rank: of their compression; 0, or as many as there are features, for none.
        attn_window_size: keys of a window of attention, itself counted.
        memory_mlp: gelu, two matrices, the code of d01dcaf; geglu, three, that of 5846997.
        gate_hidden: hidden length of the gate of keys, a constant there.
    """

    vocab_size: Size = 32000
    dim: Size = 768
    n_layers: Size = 6
    n_heads: Size = 12
    memory_expansion: Size = 4
    disable_memory: bool = False
    poly_degree: Literal[1, 2] = 2
    poly_rank: Annotated[int, Field(ge=0)] = 0
    attn_window_size: Size = 512
    memory_mlp: Literal["gelu", "geglu"] = "gelu"
    gate_hidden: Size = 64

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.dim % (2 * self.n_heads):
            raise ValueError(
                f"n_heads: {self.n_heads} heads of dim {self.dim}, expected heads of an even length"
            )
        return self

    @property
    def d_head(self) -> int:
        return self.dim // self.n_heads

    @property
    def features(self) -> int:
        """Numbers that a memory makes of the d_head of its input: each, and each product of two."""
        products = self.d_head * (self.d_head + 1) // 2 if self.poly_degree == 2 else 0
        return self.d_head + products

    @property
    def rank(self) -> int | None:
        """Numbers to which features are compressed; None for none."""
        return self.poly_rank if 0 < self.poly_rank < self.features else None


#: Models that the text of the public code counts (MODEL-14).
CONFIGURATIONS: dict[str, Settings] = {
    "small": Settings(dim=512, n_layers=6, n_heads=8, memory_mlp="geglu"),
    "base": Settings(dim=768, n_layers=12, n_heads=12, memory_mlp="geglu"),
}


# -- names and shapes ------------------------------------------------------------------------------


def shapes(settings: Settings) -> dict[str, tuple[int, ...]]:
    """Every parameter of the public state_dict, by its name (MODEL-14).

    The head is the embedding and stands here once; constants and momenta are no parameters.
    """
    s = settings
    table: dict[str, tuple[int, ...]] = {
        "tok_emb.weight": (s.vocab_size, s.dim),
        "w_init": (s.dim,),
        "norm_f.weight": (s.dim,),
    }
    own = _of_block(s) | ({} if s.disable_memory else _of_memory(s))
    for layer in range(s.n_layers):
        table |= {f"blocks.{layer}.{name}": shape for name, shape in own.items()}
    return table


def count(settings: Settings) -> int:
    """Number of trained parameters (MODEL-14)."""
    return sum(map(math.prod, shapes(settings).values()))


def _of_block(s: Settings) -> dict[str, tuple[int, ...]]:
    D, n = s.dim, feed_forward.inner(s.dim, s.memory_expansion)
    return {
        "norm1.weight": (D,),
        "norm2.weight": (D,),
        **{f"qkv.w_{each}.weight": (D, D) for each in "qkv"},
        **{f"qkv.{each}_norm.weight": (s.d_head,) for each in "qk"},
        "w_o.weight": (D, D),
        "ffn.w1.weight": (n, D),
        "ffn.w2.weight": (n, D),
        "ffn.w3.weight": (D, n),
    }


def _of_memory(s: Settings) -> dict[str, tuple[int, ...]]:
    D, k, F, h = s.dim, s.d_head, s.features, s.d_head * s.memory_expansion
    inputs = F if s.rank is None else s.rank
    own: dict[str, tuple[int, ...]] = {
        "proj_down.weight": (k, D),
        "poly_norm.weight": (F,),
        "poly_norm.bias": (F,),
        "w2.weight": (h, inputs),
        "w1.weight": (k, h),
        "proj_up.weight": (D, k),
        "output_norm.weight": (D,),
        "output_norm.bias": (D,),
        "output_scale": (),
    }
    if s.rank is not None:
        own["poly_compress.weight"] = (s.rank, F)
    if s.memory_mlp == "geglu":
        own["w3.weight"] = (h, inputs)
    return {
        "gamma_gate.gate.0.weight": (s.gate_hidden, D),
        "gamma_gate.gate.2.weight": (1, s.gate_hidden),
        **{f"memory.{name}": shape for name, shape in own.items()},
    }


# -- the model without memories --------------------------------------------------------------------


def attention_only(settings: Settings, *, frequencies: Any = "exact") -> language_model.Config:
    """The model with memories disabled, whatever the settings say of them (MODEL-15).

    Args:
        frequencies: of positions; exact, or float32 as the public code has them.
    """
    s = settings
    return language_model.Config(
        vocabulary=s.vocab_size,
        blocks=(attention_only_block(s, frequencies=frequencies),) * s.n_layers,
        embed_norm=norm.Config(kind="none", d=s.dim),
        norm=_rms(s.dim),
        tied=True,
        embedding_bias=True,
    )


def attention_only_block(settings: Settings, *, frequencies: Any = "exact") -> mag.Config:
    """A block with its memory disabled, x + attention(x) and x + ff(x) (MODEL-15)."""
    s = settings
    return mag.Config(
        memory=None,
        attention=attention.Config(
            d_model=s.dim,
            heads=s.n_heads,
            d_head=s.d_head,
            window=s.attn_window_size,
            norm=_rms(s.dim),
            head_norm=_rms(s.d_head),
            rotary=rotary.Config(
                d=s.d_head,
                **rotary.PRESETS["atlas-mag"] | {"frequencies": frequencies, "position": "carried"},
            ),
            **attention.PRESETS["atlas-mag"],
        ),
        feed_forward=feed_forward.Config(
            d_model=s.dim,
            d_inner=feed_forward.inner(s.dim, s.memory_expansion),
            norm=_rms(s.dim),
            **feed_forward.PRESETS["atlas-mag"],
        ),
        mix=mix.Config(
            kind="attention_times_gate",
            gate_norm=norm.Config(kind="none", d=s.dim),
            branch_norm=norm.Config(kind="none", d=s.dim),
        ),
    )


def _rms(d: int) -> norm.Config:
    return norm.Config(d=d, **norm.PRESETS["atlas-mag"])


def parameters(settings: Settings, tensors: Mapping[str, Array]) -> language_model.Params:
    """Parameters of the model without memories from a state_dict (MODEL-15).

    Args:
        tensors: by public names; those of memories are not read.

    Raises:
        KeyError: a tensor is missing.
    """
    return language_model.Params(
        embedding=tensors["tok_emb.weight"],
        embedding_bias=tensors["w_init"],
        blocks=tuple(
            block_parameters(settings, tensors, f"blocks.{layer}.")
            for layer in range(settings.n_layers)
        ),
        embed_norm=NormParams(),
        norm=NormParams(weight=tensors["norm_f.weight"]),
    )


def block_parameters(
    settings: Settings, tensors: Mapping[str, Array], place: str = ""
) -> mag.Params:
    """Parameters of a block without memory; `place` is what its names begin with (MODEL-15)."""
    s = settings

    def named(name: str) -> Array:
        return tensors[f"{place}{name}.weight"]

    heads = (s.n_heads, s.d_head)
    W_qkv = ops.stack([named(f"qkv.w_{each}") for each in "qkv"])
    return mag.Params(
        attention=attention.Params(
            norm=NormParams(weight=named("norm1")),
            W_qkv=ops.reshape(W_qkv, (3, *heads, s.dim)),
            W_out=ops.reshape(named("w_o"), (s.dim, *heads)),
            q_norm=NormParams(weight=named("qkv.q_norm")),
            k_norm=NormParams(weight=named("qkv.k_norm")),
        ),
        feed_forward=feed_forward.Params(
            norm=NormParams(weight=named("norm2")),
            W_in=ops.concatenate([named("ffn.w1"), named("ffn.w2")]),
            W_out=named("ffn.w3"),
        ),
        memory=None,
        mix=None,
    )


def state_dict(settings: Settings, params: language_model.Params) -> dict[str, Array]:
    """The public tensors of a model without memories: the inverse of `parameters` (MODEL-15)."""
    s = settings
    named = {
        "tok_emb.weight": params.embedding,
        "w_init": params.embedding_bias,
        "norm_f.weight": params.norm.weight,
    }
    for layer, block in enumerate(params.blocks):
        place, own, ff = f"blocks.{layer}.", block.attention, block.feed_forward
        n = ff.W_out.shape[-1]
        each = {
            "norm1": own.norm.weight,
            "norm2": ff.norm.weight,
            **{
                f"qkv.w_{x}": ops.reshape(own.W_qkv[i], (s.dim, s.dim)) for i, x in enumerate("qkv")
            },
            "qkv.q_norm": own.q_norm.weight,
            "qkv.k_norm": own.k_norm.weight,
            "w_o": ops.reshape(own.W_out, (s.dim, s.dim)),
            "ffn.w1": ff.W_in[:n],
            "ffn.w2": ff.W_in[n:],
            "ffn.w3": ff.W_out,
        }
        named |= {f"{place}{name}.weight": tensor for name, tensor in each.items()}
    return named
