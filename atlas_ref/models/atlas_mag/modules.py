"""Modules of Atlas-MAG around its memory: gate, projections, memory, loss and learning, block, model.

Their arguments as settings of ours, their state_dicts as parameters. Specified in
specs/layer_cases.md (LAYER-19 to LAYER-22).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.blocks import mag
from atlas_ref.layers import attention, norm, query_key, shared_memory
from atlas_ref.models import language_model
from atlas_ref.models.atlas_mag import configs, names
from atlas_ref.models.atlas_mag.arguments import (
    Block,
    GammaGate,
    Memory,
    Model,
    OmegaLoss,
    QkProjection,
    QkvProjection,
    Steps,
    TtlSteps,
)
from atlas_ref.models.atlas_mag.settings import Settings
from atlas_ref.models.atlas_rnn import Constants, Module
from atlas_ref.models.public.names import Name, Table, repeated, under
from atlas_ref.models.shapes import params_of
from atlas_ref.parts import memory_functions
from atlas_ref.parts.gates import HiddenGateParams

#: Constants of the projection, in a case of it and in one of a block.
BUFFER, PROJECTION = "in/buffer/", "in/buffer/qk_memory."


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
    if isinstance(settings, Steps):
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
