"""Atlas-MAG's blocks and model: settings, parameters and states of ours from those of its code.

Specified in specs/language_model.md (MODEL-15) and specs/atlas_mag.md (MAG-2 to MAG-5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas_ref.blocks import mag, mix
from atlas_ref.layers import attention, feed_forward, norm, rotary, shared_memory
from atlas_ref.models import language_model
from atlas_ref.models.atlas_mag import names
from atlas_ref.models.atlas_mag.settings import Settings
from atlas_ref.models.public import names as public
from atlas_ref.models.shapes import params_of
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.types import Array
from tape import ops

Tensors = Mapping[str, Array]


# -- settings --------------------------------------------------------------------------------------


def model(
    settings: Settings, preset: str = "atlas-mag", *, frequencies: Any = "exact", **changes: Any
) -> language_model.Config:
    """The language model (MAG-2).

    Args:
        preset: of `shared_memory.PRESETS`: atlas-mag, as public code computes; causal.
        frequencies: of positions; exact, or float32 as the public code has them.
        changes: other values of the axes of the preset, by name.
    """
    s = settings
    return language_model.Config(
        vocabulary=s.vocab_size,
        blocks=(block(s, preset, frequencies=frequencies, **changes),) * s.n_layers,
        embed_norm=norm.Config(kind="none", d=s.dim),
        norm=rms(s.dim),
        tied=True,
        embedding_bias=True,
    )


def block(
    settings: Settings, preset: str = "atlas-mag", *, frequencies: Any = "exact", **changes: Any
) -> mag.Config:
    """A block (MAG-2); `preset` and `changes` as for `model`."""
    own = attention_only_block(settings, frequencies=frequencies)
    if settings.disable_memory:
        return own
    calls = "documents" if preset == "atlas-mag" else "continued"
    calls = changes.pop("calls", calls)
    of_mix = changes.pop("mag", own.mix.kind)
    return mag.Config(
        **own.__dict__
        | {
            "memory": memory(settings, preset, **changes),
            "calls": calls,
            "mix": own.mix if of_mix == own.mix.kind else own.mix.replaced(kind=of_mix),
        }
    )


def memory(settings: Settings, preset: str = "atlas-mag", **changes: Any) -> shared_memory.Config:
    """The memory of a block (MAG-3); `preset` and `changes` as for `model`."""
    s = settings
    own: dict[str, Any] = {
        "adaptive": s.ttl_adaptive_eta,
        "newton_schulz": {"steps": s.ttl_ns_iters},
    }
    if not s.ttl_enabled:
        own["phase"] = "off"
    config = shared_memory.configured(
        preset,
        d_model=s.dim,
        memory=memory_function(s),
        window=s.omega_context_window,
        decay=s.omega_decay_base,
        rates=shared_memory.Rates(retain=s.ttl_alpha, momentum=s.ttl_theta, step_size=s.ttl_eta),
        gate_hidden=s.gate_hidden,
        training=s.training,
        **own | changes,
    )
    if config.projection is None or config.projection.persistent == "learned":
        return config
    constants = {"identity_factor": s.persistent_factor, "identity_size": s.persistent_size}
    return config.replaced(projection=config.projection.replaced(**constants))


def memory_function(settings: Settings) -> MemoryFunction:
    """The function of a memory (MAG-3)."""
    s = settings
    return MemoryFunction(
        kind="polynomial",
        degree=s.poly_degree,
        key_width=s.d_head,
        expansion=float(s.memory_expansion),
        compress=s.rank,
        gated=s.gated,
    )


def attention_only(settings: Settings, *, frequencies: Any = "exact") -> language_model.Config:
    """The model with memories disabled, whatever the settings say of them (MODEL-15).

    Args:
        frequencies: of positions; exact, or float32 as the public code has them.
    """
    return model(settings.replaced(disable_memory=True), frequencies=frequencies)


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
            norm=rms(s.dim),
            head_norm=rms(s.d_head),
            rotary=rotary.Config(
                d=s.d_head,
                **rotary.PRESETS["atlas-mag"] | {"frequencies": frequencies, "position": "carried"},
            ),
            **attention.PRESETS["atlas-mag"],
        ),
        feed_forward=feed_forward.Config(
            d_model=s.dim,
            d_inner=feed_forward.inner(s.dim, s.memory_expansion),
            norm=rms(s.dim),
            **feed_forward.PRESETS["atlas-mag"],
        ),
        mix=mix.Config(
            kind="attention_times_gate",
            gate_norm=norm.Config(kind="none", d=s.dim),
            branch_norm=norm.Config(kind="none", d=s.dim),
        ),
    )


def rms(d: int) -> norm.Config:
    """The norm of its code, with eps 1e-6."""
    return norm.Config(d=d, **norm.PRESETS["atlas-mag"])


# -- parameters ------------------------------------------------------------------------------------


def parameters(settings: Settings, tensors: Tensors) -> language_model.Params:
    """Parameters of the model from a state_dict (MODEL-15, MAG-6).

    Args:
        tensors: by public names, arrays or variables; those of memories are not read where they
            are disabled.

    Raises:
        KeyError: a tensor is missing.
    """
    template = params_of(model(settings))
    own: language_model.Params = public.parameters(template, names.model(settings), tensors)
    return own


def block_parameters(settings: Settings, tensors: Tensors, place: str = "") -> mag.Params:
    """Parameters of a block; `place` is what its names begin with (MODEL-15, MAG-6)."""
    table = public.under(names.block(settings), place)
    own: mag.Params = public.parameters(params_of(block(settings)), table, tensors)
    return own


def state_dict(settings: Settings, params: language_model.Params) -> dict[str, Array]:
    """The public parameters of a model: the inverse of `parameters` (MODEL-15, MAG-6)."""
    return public.tensors_of(params, names.model(settings), names.sizes(settings))


# -- states ----------------------------------------------------------------------------------------


def momenta(settings: Settings, tensors: Tensors, place: str = "") -> dict[str, Array]:
    """Momentum of the memory of a block, by our names, with axes of rows and heads in front
    (MAG-4).

    Args:
        place: what the public names begin with, blocks.0.memory. in a state_dict.
    """
    return {
        ours: ops.reshape(own, (1, 1, *own.shape))
        for name, ours in names.MEMORY_NAMES.items()
        if (own := tensors.get(place + names.momentum_of(name))) is not None
    }


def of_state(state: shared_memory.State) -> tuple[dict[str, Array], dict[str, Array]]:
    """Tensors and momenta of the memory of a block after a call, by public names (MAG-4)."""
    own = state.levels.states[0]
    tensors, momentum = {}, {}
    for name, ours in names.MEMORY_NAMES.items():
        if ours in own.weights:
            tensors[name] = own.weights[ours][0, 0]
        if ours in own.momentum:
            momentum[names.momentum_of(name)] = own.momentum[ours][0, 0]
    return tensors, momentum
