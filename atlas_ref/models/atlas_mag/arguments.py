"""Arguments of Atlas-MAG's modules around its memory, and of the calls of cases.

Specified in specs/layer_cases.md (LAYER-19 to LAYER-22).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, create_model, model_validator

from atlas_ref.layers import shared_memory
from atlas_ref.models.atlas_mag.settings import Positive, Settings, Share
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.types import Count, Frozen

#: Layers of a model, and steps of learning, that tables of names are made of before a tensor is read.
Layers = Annotated[int, Field(ge=1, le=1000)]
Rank = Annotated[int, Field(ge=0)]


class GammaGate(Frozen):
    """Arguments of GammaGate (LAYER-19).

    Attributes:
        dim, hidden_dim: lengths of a token and of the hidden layer.
    """

    dim: Count
    hidden_dim: Count = 64


class QkvProjection(Frozen):
    """Arguments of QKVProjection (LAYER-19).

    Attributes:
        dim, n_heads: sizes.
        qk_norm: whether queries and keys of heads are normed.
    """

    dim: Count
    n_heads: Count
    qk_norm: bool = True

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _require_heads(self.dim, self.n_heads)
        return self


class QkProjection(Frozen):
    """Arguments of CausalQKMemoryProjection, and of its persistent memory (LAYER-19).

    Attributes:
        dim, n_heads: sizes.
        context_window, decay_base: keys of a query, and their factor for each that is newer.
        persistent_keys: rows of the persistent memory; 0 for a multiple of the unit matrix.
        gates: whether keys bring a gate.
        chunk_size: of one of its two forms; 0 for the other alone, any other of no effect.
    """

    dim: Count
    n_heads: Count
    context_window: Annotated[int, Field(ge=1, le=2**20)] = 256
    decay_base: Annotated[float, Field(gt=0, le=1)] = 0.95
    persistent_keys: Rank = 0
    gates: bool = True
    chunk_size: Rank = 64

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _require_heads(self.dim, self.n_heads)
        return self


def _require_heads(dim: int, heads: int) -> None:
    if dim % heads:
        raise ValueError(f"dim: {dim} is no multiple of n_heads = {heads}")


class Memory(Frozen):
    """Arguments of AtlasMemoryPoly, and of its call (LAYER-20).

    Attributes:
        dim, key_dim: lengths of a token, and of the keys that are multiplied.
        expansion: of the hidden layer.
        poly_degree, poly_rank: of the features, and of their compression; 0 for none.
        mlp: gelu, two matrices, or geglu, three.
        gelu, layer_norm_eps: of the public code.
        return_contribution: whether the argument is left out of the result.
    """

    dim: Count
    key_dim: Annotated[int, Field(ge=1, le=2**12)]
    expansion: Count = 4
    poly_degree: Literal[1, 2] = 2
    poly_rank: Rank = 0
    mlp: Literal["gelu", "geglu"] = "gelu"
    gelu: Literal["erf"] = "erf"
    layer_norm_eps: Positive = 1e-5
    return_contribution: bool = True

    @property
    def function(self) -> MemoryFunction:
        return MemoryFunction(
            kind="polynomial",
            degree=self.poly_degree,
            key_width=self.key_dim,
            expansion=float(self.expansion),
            compress=self.poly_rank or None,
            gated=self.mlp == "geglu",
            norm_eps=self.layer_norm_eps,
            with_input=not self.return_contribution,
        )

    @property
    def compressed(self) -> bool:
        return self.function.compressed

    @property
    def gated(self) -> bool:
        return self.mlp == "geglu"


class Learning(Memory):
    """Arguments that the loss and a step share (LAYER-20).

    Attributes:
        context_window: tokens of the loss, the last ones.
    """

    context_window: Count = 256


#: gamma: whether tokens bring their weights; decay_base: else of a weight for each later token.
OmegaLoss = create_model(
    "OmegaLoss",
    __base__=Learning,
    __doc__="Arguments of compute_omega_loss, and of its memory (LAYER-20).",
    decay_base=(Annotated[float, Field(gt=0, le=1)], 0.95),
    gamma=(bool, True),
)


class Steps(Learning):
    """Arguments of ttl_step by names of the code that are words, and of its calls (LAYER-20).

    Attributes:
        steps: calls on the same pairs.
        ns_iterations: steps of Newton-Schulz.
        adaptive_eta: whether eta is divided by 1 + |g|.
        max_grad_norm: bound of the gradients together; None for none.
        vectors: what the code does to tensors of fewer than two axes, in words.
    """

    steps: Layers = 1
    ns_iterations: Annotated[int, Field(ge=1, le=1000)] = 5
    adaptive_eta: bool = False
    max_grad_norm: Positive | None = None
    vectors: str = ""

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if self.adaptive_eta and self.max_grad_norm is not None:
            raise ValueError(
                "max_grad_norm: null with adaptive_eta, the code has no step with both"
            )
        return self


#: theta, alpha, eta: momentum, share that is kept, step size.
TtlSteps = create_model(
    "TtlSteps",
    __base__=Steps,
    __doc__="Arguments of ttl_step, called several times, and of its memory (LAYER-20).",
    theta=(Share, 0.9),
    alpha=(Share, 0.999),
    eta=(Annotated[float, Field(ge=0, allow_inf_nan=False)], 0.01),
)


def rates_of(settings: Any) -> shared_memory.Rates:
    """The rates of steps (LAYER-20)."""
    s = settings
    return shared_memory.Rates(retain=s.alpha, momentum=s.theta, step_size=s.eta)


class Block(Settings):
    """Arguments of MAGBlock, constants of its code, and whether it is in training (LAYER-21)."""

    vocab_size: Literal[1] = 1
    n_layers: Literal[1] = 1
    dim: Count
    n_heads: Count
    training: bool = True


class Model(Settings):
    """Arguments of AtlasMAGSkeleton, constants of its code, and how it was called (LAYER-22).

    Attributes:
        calls: calls on ids of their own, which share memories.
    """

    n_layers: Layers = 6
    training: bool = True
    calls: Annotated[int, Field(ge=1, le=1000)] = 1

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of each call begin with."""
        return ("",) if self.calls == 1 else tuple(f"call{i}/" for i in range(self.calls))
