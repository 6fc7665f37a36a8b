"""Files of Atlas-MAG as tables: what tells each argument of its constructor, both ways.

Specified in specs/atlas_mag.md (MAG-6, MAG-7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.layers import feed_forward
from atlas_ref.models import language_model
from atlas_ref.models.atlas_mag import configs, names
from atlas_ref.models.atlas_mag.settings import Settings
from atlas_ref.models.initial import Initial
from atlas_ref.models.public.importer import Importer, Told
from atlas_ref.models.public.tells import (
    UNTOLD,
    Fact,
    Near,
    Tell,
    Tells,
    facts,
    layers,
    read_off,
    shape,
)

Tensors = Mapping[str, Any]

#: Why a tensor is needed.
WHY = "it tells the settings"

#: Settings that have an effect without memories.
OF_ATTENTION = (
    *("vocab_size", "dim", "n_layers", "n_heads", "memory_expansion", "disable_memory"),
    "attn_window_size",
)

#: Arguments that an export has even at their defaults.
ALWAYS = (
    *("vocab_size", "dim", "n_layers", "n_heads", "memory_expansion"),
    *("disable_memory", "poly_degree", "poly_rank"),
    *(name for name in Settings.model_fields if name.startswith("ttl_")),
)

# -- what tensors tell -----------------------------------------------------------------------------


def _heads(d_head: int, known: Mapping[str, Any], name: str) -> int:
    if known["dim"] % d_head:
        raise ValueError(f"{name}: {d_head} of a head, but dim is {known['dim']}")
    return int(known["dim"] // d_head)


def _expansion(inner: int, known: Mapping[str, Any], name: str) -> int:
    """The whole expansion of so many hidden entries of a feed-forward."""
    dim = known["dim"]
    near = inner * 3 // (2 * dim)
    for each in range(max(1, near), near + 3):
        if feed_forward.inner(dim, each) == inner:
            return each
    raise ValueError(f"{name}: {inner} rows, no memory_expansion of dim {dim} has so many")


def _degree(features: int, known: Mapping[str, Any], name: str) -> int:
    return 1 if features == known["dim"] // known["n_heads"] else 2


#: What tells the arguments of every model.
OF_MODEL: Tells = {
    "vocab_size": Tell("tok_emb.weight", 2),
    "dim": Tell("tok_emb.weight", 2, axis=1),
    "n_heads": Tell("blocks.0.qkv.q_norm.weight", 1, setting=_heads),
    "memory_expansion": Tell("blocks.0.ffn.w1.weight", 2, setting=_expansion),
    "n_layers": layers("blocks."),
    "disable_memory": Tell("blocks.0.memory.", setting=lambda there, *_: not there),
}

#: What the memory of the first block and its buffers tell.
OF_MEMORY: Tells = {
    "poly_degree": Tell("blocks.0.memory.poly_norm.weight", 1, setting=_degree),
    "gate_hidden": Tell("blocks.0.gamma_gate.gate.0.weight", 2),
    "omega_context_window": Tell("blocks.0.qk_memory.decay_weights", 1),
    "poly_rank": Tell("blocks.0.memory.poly_compress.weight", 2, absent=0),
    "memory_mlp": Tell(
        "blocks.0.memory.w3.weight", setting=lambda there, *_: "geglu" if there else "gelu"
    ),
}


def tells(tensors: Tensors) -> dict[str, Fact]:
    """All that tensors tell (MAG-7)."""
    found = facts(OF_MODEL, tensors, why=WHY)
    if found["disable_memory"].value:
        return found
    found = facts(OF_MEMORY, tensors, found, why=WHY)
    return found | {
        name: Fact(value) for name, value in _constants(tensors, found["dim"].value).items()
    }


def _constants(tensors: Tensors, dim: int) -> dict[str, float]:
    """P = factor I and n_0 = size dim, the same in every block, as nothing trains them."""
    found = {}
    for name, unit in (("m_persistent", np.eye(dim)), ("norm_persistent", np.ones(()))):
        first = f"blocks.0.qk_memory.{name}"
        lengths = shape(tensors, first, unit.ndim, WHY)
        if lengths != unit.shape:
            raise ValueError(f"{first}: shape {lengths}, expected {unit.shape}")
        number = found[name] = float(tensors[first].flat[0])
        for key, each in tensors.items():
            if not key.endswith(f".qk_memory.{name}"):
                continue
            want = (number * unit).astype(each.dtype)
            if each.shape != want.shape or not np.array_equal(each, want):
                said = f"{float(np.ravel(each)[0]):g}, but block 0 has {number:g}"
                if unit.ndim:
                    said = (
                        f"no multiple of the unit matrix by {number:g}, as the public code has it"
                    )
                raise ValueError(f"{key}: {said}")
    size = found["norm_persistent"] / dim
    return {"persistent_factor": found["m_persistent"], "persistent_size": size}


def _refuse(settings: Settings | None, given: Tensors, found: Tensors, tensors: Tensors) -> None:
    if (
        settings is not None
        and settings.has_memory
        and settings.compressed
        and not found["poly_rank"]
    ):
        raise ValueError(f"poly_rank: {settings.poly_rank}, but the tensors have none")


# -- what our settings tell ------------------------------------------------------------------------

_MEMORY, _RULE = "blocks.0.memory", "blocks.0.memory.levels.levels.0.config"


def _if_any(value: Any, described: Any) -> Any:
    return UNTOLD if value is None else value


#: Where our settings keep each argument; of a memory that shares attention, those of a rate each.
NEAREST: dict[str, Near] = {
    "vocab_size": Near("vocabulary"),
    "dim": Near("embed_norm.d"),
    "n_layers": Near("blocks", lambda blocks, _: len(blocks)),
    "n_heads": Near("blocks.0.attention.heads"),
    "attn_window_size": Near("blocks.0.attention.window"),
    "disable_memory": Near(_MEMORY, lambda memory, _: memory is None),
    "memory_expansion": Near(
        f"{_RULE}.memory blocks.0.feed_forward.d_inner",
        lambda own, described: (
            int(own["expansion"])
            if isinstance(own, Mapping)
            else max(1, round(own * 1.5 / described["embed_norm"]["d"]))
        ),
    ),
    "poly_degree": Near(f"{_RULE}.memory.degree"),
    "poly_rank": Near(f"{_RULE}.memory.compress", lambda rank, _: rank or 0),
    "memory_mlp": Near(f"{_RULE}.memory.gated", lambda gated, _: "geglu" if gated else "gelu"),
    "ttl_enabled": Near(f"{_RULE}.phase", lambda phase, _: phase != "off"),
    "ttl_adaptive_eta": Near(f"{_RULE}.adaptive"),
    "ttl_ns_iters": Near(f"{_RULE}.convention.newton_schulz.steps"),
    "ttl_alpha": Near(f"{_MEMORY}.rates.retain", _if_any),
    "ttl_theta": Near(f"{_MEMORY}.rates.momentum", _if_any),
    "ttl_eta": Near(f"{_MEMORY}.rates.step_size", _if_any),
    "omega_context_window": Near(f"{_RULE}.window"),
    "training": Near(f"{_RULE}.training"),
    "gate_hidden": Near(f"{_MEMORY}.gate_hidden", lambda hidden, _: hidden or 64),
    "omega_decay_base": Near(f"{_MEMORY}.projection.decay"),
    "persistent_factor": Near(f"{_MEMORY}.projection.identity_factor"),
    "persistent_size": Near(f"{_MEMORY}.projection.identity_size"),
}


def nearest(described: Any) -> dict[str, Any]:
    """The arguments that come nearest, read from the first block (MAG-7)."""
    if described["blocks"][0]["kind"] != "mag":
        raise ValueError("atlas-mag has no such model: blocks.0 is no MAG block")
    return read_off(NEAREST, described)


# -- tensors ---------------------------------------------------------------------------------------


def _like(told: Told, config: language_model.Config) -> language_model.Config:
    rotary = config.blocks[0].attention.rotary
    frequencies = "exact" if rotary is not None and rotary.frequencies == "exact" else "float32"
    return configs.model(told.settings, frequencies=frequencies)


def _initial(settings: Settings, tensors: Tensors) -> Initial:
    """The momenta of memories, unless all are the zeros that a memory starts from, bit by bit."""
    if settings.disable_memory:
        return ()
    momenta = [
        configs.momenta(settings, tensors, f"blocks.{i}.memory.") for i in range(settings.n_layers)
    ]
    arrays = [np.asarray(backend.host(each)) for own in momenta for each in own.values()]
    if not any(each.tobytes().strip(b"\0") for each in arrays):
        return ()
    return tuple({"momentum": each} for each in momenta)


def _buffers(told: Told, config: Any, initial: Initial, dtype: Any) -> dict[str, Any]:
    """Constants of projections, and memories that the model starts from."""
    s = told.settings
    found: dict[str, Any] = {}
    for i in range(s.n_layers if s.has_memory else 0):
        powers = s.omega_decay_base ** np.arange(s.omega_context_window)  # there in float32
        place = f"blocks.{i}.qk_memory."
        found[f"{place}decay_weights"] = powers.astype(np.float32).astype(dtype)
        found[f"{place}m_persistent"] = (s.persistent_factor * np.eye(s.dim)).astype(dtype)
        found[f"{place}norm_persistent"] = np.asarray(s.persistent_size * s.dim).astype(dtype)
    for i, memories in enumerate(initial):
        for name, ours in names.MEMORY_NAMES.items():
            for kind, own in (memories or {}).items():
                key = name if kind == "weights" else names.momentum_of(name)
                if ours in own:
                    found[f"blocks.{i}.memory.{key}"] = own[ours][0, 0]
    return found


#: Files of atlas-mag, read and written.
IMPORTER = Importer(
    program="atlas-mag",
    arguments=Settings,
    tells=tells,
    nearest=nearest,
    table=lambda told: names.state_dict(told.settings),
    sizes=names.sizes,
    config=lambda told, tensors: configs.model(told.settings, frequencies="float32"),
    like=_like,
    effective=lambda told: Settings.model_fields if told.settings.has_memory else OF_ATTENTION,
    always=lambda told: ALWAYS,
    never=("persistent_factor", "persistent_size"),
    ignored=("layer_pattern",),
    # a rank of 0, or of as many as there are features, has no effect
    agrees={"poly_rank": lambda value, told, found: not told and isinstance(value, int)},
    stated=("poly_rank",),
    refuse=_refuse,
    free=("form", "biases"),
    buffers=_buffers,
    initial=_initial,
)
