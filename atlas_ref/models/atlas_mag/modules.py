"""Modules of Atlas-MAG around its memory: gate, projections, memory, loss and learning, block, model.

Their arguments as settings of ours, their state_dicts as parameters. Specified in
specs/layer_cases.md (LAYER-19 to LAYER-22).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.blocks import mag
from atlas_ref.layers import attention, norm, query_key, shared_memory
from atlas_ref.models import language_model
from atlas_ref.models.atlas_mag import configs, names
from atlas_ref.models.atlas_mag.settings import Positive, Settings, Share
from atlas_ref.models.atlas_rnn import Constants, Module, Size
from atlas_ref.models.public.names import Name, Table, repeated, under
from atlas_ref.models.shapes import params_of
from atlas_ref.parts import memory_functions
from atlas_ref.parts.gates import HiddenGateParams
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.types import Frozen

#: Layers of a model, and steps of learning, that tables of names are made of before a tensor is read.
Layers = Annotated[int, Field(ge=1, le=1000)]
Rank = Annotated[int, Field(ge=0)]

#: Constants of the projection, in a case of it and in one of a block.
BUFFER, PROJECTION = "in/buffer/", "in/buffer/qk_memory."


class GammaGate(Frozen):
    """Arguments of GammaGate (LAYER-19).

    Attributes:
        dim, hidden_dim: lengths of a token and of the hidden layer.
    """

    dim: Size
    hidden_dim: Size = 64


class QkvProjection(Frozen):
    """Arguments of QKVProjection (LAYER-19).

    Attributes:
        dim, n_heads: sizes.
        qk_norm: whether queries and keys of heads are normed.
    """

    dim: Size
    n_heads: Size
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
        chunk_size: of one of its two forms; of no effect.
    """

    dim: Size
    n_heads: Size
    context_window: Annotated[int, Field(ge=1, le=2**20)] = 256
    decay_base: Annotated[float, Field(gt=0, le=1)] = 0.95
    persistent_keys: Rank = 0
    gates: bool = True
    chunk_size: Size = 64

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

    dim: Size
    key_dim: Annotated[int, Field(ge=1, le=2**12)]
    expansion: Size = 4
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


class OmegaLoss(Memory):
    """Arguments of compute_omega_loss, and of its memory (LAYER-20).

    Attributes:
        context_window: tokens of the loss, the last ones.
        decay_base: of a token's weight for each later one, where it brings none.
        gamma: whether tokens bring their weights.
    """

    context_window: Size = 256
    decay_base: Annotated[float, Field(gt=0, le=1)] = 0.95
    gamma: bool = True


class TtlSteps(Memory):
    """Arguments of ttl_step, called several times on the same pairs, and of its memory (LAYER-20).

    Attributes:
        steps: calls.
        context_window: tokens of the loss, the last ones.
        theta, alpha, eta: momentum, share that is kept, step size.
        ns_iterations: steps of Newton-Schulz.
        adaptive_eta: whether eta is divided by 1 + |g|.
        max_grad_norm: bound of the gradients together; None for none.
        vectors: what the code does to tensors of fewer than two axes, in words.
    """

    steps: Layers = 1
    context_window: Size = 256
    theta: Share = 0.9
    alpha: Share = 0.999
    eta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
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

    @property
    def rates(self) -> shared_memory.Rates:
        return shared_memory.Rates(retain=self.alpha, momentum=self.theta, step_size=self.eta)


class Block(Settings):
    """Arguments of MAGBlock, constants of its code, and whether it is in training (LAYER-21)."""

    vocab_size: Literal[1] = 1
    n_layers: Literal[1] = 1
    dim: Size
    n_heads: Size
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


# -- names and configurations ----------------------------------------------------------------------


def _function(settings: Memory) -> dict[str, Any]:
    """Tensors of a memory, for their shapes alone."""
    shapes = memory_functions.tensors(settings.function, settings.dim, settings.dim)
    return {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}


def _names_of_memory(settings: Memory | None) -> Table:
    return {
        name: each._replace(field=each.field.removeprefix(".phi"), when="")
        for name, each in names.MEMORY.items()
        if settings is None or not each.when or getattr(settings, each.when)
    }


def _sizes_of_memory(settings: Memory) -> dict[str, int]:
    f = settings.function
    return {
        "dim": settings.dim,
        "dim_head": settings.key_dim,
        "features": f.features,
        "rank": int(f.compress or 0),
        "inputs": int(f.compress or 0) if f.compressed else f.features,
        "hidden": f.hidden(settings.dim),
    }


def rule_of(settings: Memory) -> Any:
    """The deep memory of a loss or of steps, as public code has it (LAYER-20)."""
    changes: dict[str, Any] = {}
    if isinstance(settings, TtlSteps):
        clip = "none" if settings.max_grad_norm is None else "hard"
        changes = {"adaptive": settings.adaptive_eta, "clip": clip}
        changes["newton_schulz"] = {"steps": settings.ns_iterations}
    window = getattr(settings, "context_window", 1)
    own = shared_memory.configured(
        "atlas-mag", d_model=settings.dim, memory=settings.function, window=window, **changes
    )
    rule = own.level.config
    bound = getattr(settings, "max_grad_norm", None)
    return rule if bound is None else rule.replaced(clip_norm=bound)


def _memory_module(arguments: type[Memory]) -> Module:
    return Module(
        SimpleNamespace(init=_function),
        arguments,
        _sizes_of_memory,
        _names_of_memory,
        lambda settings, eps, constants: settings,
    )


def _gate(settings: GammaGate) -> HiddenGateParams:
    n, D = settings.hidden_dim, settings.dim
    return HiddenGateParams(W_in=np.zeros((n, D)), W_out=np.zeros((1, n)))


class Heads(NamedTuple):
    """Attention of which the projections to heads alone are used."""

    attention: attention.Config


def _qkv(settings: QkvProjection, eps: float, constants: Constants) -> Heads:
    D, d = settings.dim, settings.dim // settings.n_heads
    config = attention.Config(
        d_model=D,
        heads=settings.n_heads,
        d_head=d,
        window=1,
        norm=norm.Config(kind="none", d=D),
        head_norm=configs.rms(d) if settings.qk_norm else None,
        rotary=None,
        **attention.PRESETS["atlas-mag"],
    )
    return Heads(config)


def _of_qkv(config: Heads) -> attention.Params:
    """Parameters of the projections alone."""
    own: attention.Params = params_of(config.attention).replaced(W_out=None)
    return own


def _projection(settings: QkProjection, eps: float, constants: Constants) -> query_key.Config:
    """The projection of its chunked form; the sequential one has powers of float32."""
    s = settings
    fields: dict[str, Any] = {"persistent": "learned", "rows": s.persistent_keys}
    if not s.persistent_keys:
        fields = {"persistent": "identity", **_identity(constants, BUFFER, s.dim)}
    return query_key.Config(
        d=s.dim,
        window=s.context_window,
        decay=s.decay_base,
        weights="decay_times_gate" if s.gates else "decay",
        **fields,
    )


def _identity(constants: Constants, place: str, dim: int) -> dict[str, float]:
    """P = factor I and n_0 = size d of buffers (QK-3)."""
    P, n_0 = (
        np.asarray(constants[f"{place}{name}_persistent"], np.float64) for name in ("m", "norm")
    )
    return {"identity_factor": float(P.flat[0]), "identity_size": float(n_0) / dim}


def with_constants(settings: Settings, constants: Constants, place: str) -> Settings:
    """Settings with the constants of the projection that a case holds (LAYER-21)."""
    if settings.disable_memory:
        return settings
    own = _identity(constants, place, settings.dim)
    return settings.replaced(
        persistent_factor=own["identity_factor"], persistent_size=own["identity_size"]
    )


def _names_of_block(settings: Block | None) -> Table:
    if settings is None:
        return names.BLOCK
    if settings.has_memory:
        return names.block(settings)
    own, every = names.ATTENTION_BLOCK, names.block(settings.replaced(disable_memory=False))
    return {
        name: own.get(name, each._replace(field="", unread=True)) for name, each in every.items()
    }


def _names_of_model(settings: Model | None) -> Table:
    if settings is not None:
        return names.model(settings)
    return names.MODEL | under(names.BLOCK, "blocks.N.", ".blocks[N]")


def _model(settings: Model, eps: float, constants: Constants) -> language_model.Config:
    place = "in/buffer/blocks.{}.qk_memory."
    blocks = [
        configs.block(with_constants(settings, constants, place.format(i)))
        for i in range(settings.n_layers)
    ]
    return configs.model(settings).replaced(blocks=tuple(blocks))


def buffers(settings: Settings, prefix: str) -> Table:
    """Buffers of a block that a case holds: momenta, and constants but the powers of the decay."""
    own = names.buffers(settings.replaced(disable_memory=False))
    return under({name: x for name, x in own.items() if "decay_weights" not in name}, prefix)


def buffers_of_model(settings: Model) -> Table:
    """Buffers of every block that a case holds."""
    own = buffers(settings, "in/buffer/blocks.{i}.")
    return {} if settings.disable_memory else repeated(own, settings.n_layers)


#: Name in this project -> module.
MODULES: dict[str, Module] = {
    "atlas_mag_gamma_gate": Module(
        SimpleNamespace(init=_gate),
        GammaGate,
        sizes=lambda settings: {"dim": settings.dim, "gate_hidden": settings.hidden_dim},
        names=lambda settings: {
            "gate.0.weight": Name("gate_hidden dim", ".W_in"),
            "gate.2.weight": Name("1 gate_hidden", ".W_out"),
        },
        config=lambda settings, eps, constants: settings,
    ),
    "atlas_mag_qkv": Module(
        SimpleNamespace(init=_of_qkv),
        QkvProjection,
        sizes=lambda settings: {
            "dim": settings.dim,
            "heads": settings.n_heads,
            "dim_head": settings.dim // settings.n_heads,
        },
        names=lambda settings: {
            name: each
            for name, each in names.QKV.items()
            if settings is None or settings.qk_norm or "norm" not in name
        },
        config=_qkv,
    ),
    "atlas_mag_query_key": Module(
        SimpleNamespace(init=lambda config: query_key.Params()),
        QkProjection,
        sizes=lambda settings: {
            "dim": settings.dim,
            "heads": settings.n_heads,
            "dim_head": settings.dim // settings.n_heads,
            "context": settings.context_window,
            "persistent": settings.persistent_keys,
        },
        names=lambda settings: {},
        config=_projection,
    ),
    "atlas_mag_memory": _memory_module(Memory),
    "atlas_mag_omega_loss": _memory_module(OmegaLoss),
    "atlas_mag_ttl": _memory_module(TtlSteps),
    "atlas_mag_block": Module(
        mag,
        Block,
        sizes=names.sizes,
        names=_names_of_block,
        config=lambda settings, eps, constants: configs.block(
            with_constants(settings, constants, PROJECTION)
        ),
    ),
    "atlas_mag_model": Module(
        language_model, Model, sizes=names.sizes, names=_names_of_model, config=_model
    ),
}
