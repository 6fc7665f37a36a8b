"""Settings of Atlas-MAG: arguments of its constructors, and constants of its code.

Specified in specs/atlas_mag.md (MAG-1).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.types import Count, Frozen

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(Frozen):
    """Arguments of AtlasMAGSkeleton, by their names and with their defaults (MODEL-14, MAG-1).

    Attributes:
        vocab_size, dim, n_layers, n_heads: sizes.
        memory_expansion: of the hidden layers of memories and, times 2/3, of feed-forwards.
        disable_memory: whether blocks have attention and feed-forward alone.
        poly_degree: of the features of a memory's input.
        poly_rank: of their compression; 0, or as many as there are features, for none.
        ttl_enabled: whether memories learn, which they do in training alone.
        ttl_theta, ttl_alpha, ttl_eta: momentum, share of the memory that is kept, step size.
        ttl_ns_iters: steps of Newton-Schulz.
        ttl_adaptive_eta: whether a step is divided by 1 + |g|.
        attn_window_size: keys of a window of attention, itself counted.
        memory_mlp: gelu, two matrices, the code of d01dcaf; geglu, three, that of 5846997.
        gate_hidden: hidden length of the gate of keys, a constant there.
        omega_context_window, omega_decay_base: of the projection and the loss, constants there.
        persistent_factor, persistent_size: P = factor I and n_0 = size dim, in its buffers.
        training: whether calls are those of training.
    """

    vocab_size: Count = 32000
    dim: Count = 768
    n_layers: Count = 6
    n_heads: Count = 12
    memory_expansion: Count = 4
    disable_memory: bool = False
    poly_degree: Literal[1, 2] = 2
    poly_rank: Annotated[int, Field(ge=0)] = 0
    ttl_enabled: bool = True
    ttl_theta: Share = 0.9
    ttl_alpha: Share = 0.999
    ttl_eta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    ttl_ns_iters: Annotated[int, Field(ge=1, le=1000)] = 5
    ttl_adaptive_eta: bool = False
    attn_window_size: Count = 512
    memory_mlp: Literal["gelu", "geglu"] = "gelu"
    gate_hidden: Count = 64
    omega_context_window: Count = 256
    omega_decay_base: Annotated[float, Field(gt=0, le=1)] = 0.95
    persistent_factor: Positive = 0.1
    persistent_size: Positive = 0.01
    training: bool = False

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

    @property
    def has_memory(self) -> bool:
        return not self.disable_memory

    @property
    def compressed(self) -> bool:
        return self.rank is not None

    @property
    def gated(self) -> bool:
        return self.memory_mlp == "geglu"

    @property
    def learns(self) -> bool:
        """Whether a call writes into its memories."""
        return self.has_memory and self.ttl_enabled and self.training


#: Models that the text of the public code counts (MODEL-14).
CONFIGURATIONS: dict[str, Settings] = {
    "small": Settings(dim=512, n_layers=6, n_heads=8, memory_mlp="geglu"),
    "base": Settings(dim=768, n_layers=12, n_heads=12, memory_mlp="geglu"),
}
