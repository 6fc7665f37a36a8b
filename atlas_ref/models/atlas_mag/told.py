"""Settings of Atlas-MAG's models from the tensors of a state_dict, and from our settings.

Specified in specs/atlas_mag.md (MAG-7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from atlas_ref.blocks import mag
from atlas_ref.layers import feed_forward, shared_memory
from atlas_ref.messages import first_problem, meant, shown
from atlas_ref.models import checkpoint, language_model
from atlas_ref.models.atlas_mag.configs import model
from atlas_ref.models.atlas_mag.settings import Settings
from atlas_ref.models.public.difference import difference

Tensors = Mapping[str, Any]

#: Arguments of the public constructor that it ignores.
IGNORED = ("layer_pattern",)

#: Settings that have an effect without memories.
OF_ATTENTION: tuple[str, ...] = (
    "vocab_size",
    "dim",
    "n_layers",
    "n_heads",
    "memory_expansion",
    "disable_memory",
)
OF_ATTENTION += ("attn_window_size",)


class Told(NamedTuple):
    """Settings of a public model, and what told each of those that have an effect.

    Attributes:
        by: name -> shapes, given or default.
    """

    settings: Settings
    by: dict[str, str]


# -- from tensors ----------------------------------------------------------------------------------


def told(tensors: Tensors, given: Mapping[str, Any]) -> Told:
    """Settings from tensors, then from the arguments, then the public defaults (MAG-7).

    Raises:
        ValueError: an unknown argument, or one that contradicts the tensors.
    """
    fields = Settings.model_fields
    for name in given:
        if name not in fields and name not in IGNORED:
            raise ValueError(f"{name}: unknown setting{meant(name, fields)}")
    given = {name: value for name, value in given.items() if name in fields}
    of_tensors = _of_shapes(tensors)
    if not of_tensors["disable_memory"]:
        of_tensors |= _of_memory(
            tensors, of_tensors["dim"], of_tensors["dim"] // of_tensors["n_heads"]
        )
    for name, value in given.items():
        found = of_tensors.get(name, value)
        if name == "poly_rank" and not found and isinstance(value, int):
            continue  # of no effect where it is not below the number of features
        if type(value) is not type(found) or value != found:
            raise ValueError(f"{name}: {shown(value)}, but the tensors have {found!r}")
    try:
        settings = Settings(**{**of_tensors, **given})
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if settings.has_memory and settings.compressed and not of_tensors["poly_rank"]:
        raise ValueError(f"poly_rank: {settings.poly_rank}, but the tensors have none")
    names = fields if settings.has_memory else OF_ATTENTION
    by = {
        name: "shapes" if name in of_tensors else "given" if name in given else "default"
        for name in names
    }
    return Told(settings, by)


def _of_shapes(tensors: Tensors) -> dict[str, Any]:
    """What names and shapes around memories tell; contradictions are found by name afterwards."""
    vocab, dim = _shape(tensors, "tok_emb.weight", 2)
    (d_head,) = _shape(tensors, "blocks.0.qkv.q_norm.weight", 1)
    inner, _ = _shape(tensors, "blocks.0.ffn.w1.weight", 2)
    if dim % d_head:
        raise ValueError(f"blocks.0.qkv.q_norm.weight: {d_head} of a head, but dim is {dim}")
    layers = {found[1] for name in tensors if (found := re.match(r"blocks\.(\d+)\.", name))}
    return {
        "vocab_size": vocab,
        "dim": dim,
        "n_layers": len(layers),
        "n_heads": dim // d_head,
        "memory_expansion": _expansion(dim, inner),
        "disable_memory": not any(name.startswith("blocks.0.memory.") for name in tensors),
    }


def _expansion(dim: int, inner: int) -> int:
    """The whole expansion of so many hidden entries of a feed-forward."""
    near = inner * 3 // (2 * dim)
    for each in range(max(1, near), near + 3):
        if feed_forward.inner(dim, each) == inner:
            return each
    raise ValueError(
        f"blocks.0.ffn.w1.weight: {inner} rows, no memory_expansion of dim {dim} has so many"
    )


def _of_memory(tensors: Tensors, dim: int, d_head: int) -> dict[str, Any]:
    """What the memory of the first block and its buffers tell."""
    place = "blocks.0.memory."
    (features,) = _shape(tensors, f"{place}poly_norm.weight", 1)
    compress = f"{place}poly_compress.weight"
    hidden, _ = _shape(tensors, "blocks.0.gamma_gate.gate.0.weight", 2)
    (context,) = _shape(tensors, "blocks.0.qk_memory.decay_weights", 1)
    return {
        "poly_degree": 1 if features == d_head else 2,
        "poly_rank": _shape(tensors, compress, 2)[0] if compress in tensors else 0,
        "memory_mlp": "geglu" if f"{place}w3.weight" in tensors else "gelu",
        "gate_hidden": hidden,
        "omega_context_window": context,
        **_constants(tensors, dim),
    }


def _constants(tensors: Tensors, dim: int) -> dict[str, float]:
    """P = factor I and n_0 = size dim, the same in every block, as nothing trains them."""
    found = {}
    for name in ("m_persistent", "norm_persistent"):
        own = {key: each for key, each in tensors.items() if key.endswith(f".qk_memory.{name}")}
        first = f"blocks.0.qk_memory.{name}"
        shape = _shape(tensors, first, 2 if name == "m_persistent" else 0)
        if name == "m_persistent" and shape != (dim, dim):
            raise ValueError(f"{first}: shape {shape}, expected {(dim, dim)}")
        number = float(tensors[first].flat[0])
        want = number * np.eye(dim) if name == "m_persistent" else np.asarray(number)
        for key, each in own.items():
            if each.shape != want.shape or not np.array_equal(each, want.astype(each.dtype)):
                raise ValueError(
                    f"{key}: "
                    + (
                        f"no multiple of the unit matrix by {number:g}, as the public code has it"
                        if name == "m_persistent"
                        else f"{float(np.ravel(each)[0]):g}, but block 0 has {number:g}"
                    )
                )
        found[name] = number
    return {
        "persistent_factor": found["m_persistent"],
        "persistent_size": found["norm_persistent"] / dim,
    }


def _shape(tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    if name not in tensors:
        raise ValueError(f"{name}: missing; it tells the settings")
    shape = tuple(int(size) for size in tensors[name].shape)
    if len(shape) != axes or 0 in shape:
        raise ValueError(f"{name}: shape {shape}, expected {axes} axes, none of them empty")
    return shape


# -- from our settings -----------------------------------------------------------------------------


def expressed(config: language_model.Config, hint: Settings | None = None) -> Settings:
    """The public settings of a model of ours (MAG-7).

    Args:
        hint: settings that it came from, which hold if they still say the same.

    Raises:
        ValueError: names the first setting that the public code does not have.
    """
    problem = "blocks.0 is no MAG block"
    own = isinstance(config.blocks[0], mag.Config)
    for settings in (hint, _derived(config)) if own else ():
        if settings is not None:
            problem = _unlike(config, settings)
            if not problem:
                return settings
    raise ValueError(f"atlas-mag has no such model: {problem}")


def _unlike(config: language_model.Config, settings: Settings) -> str:
    """The first point on which a model is not the one of public settings, or nothing."""
    rotary = config.blocks[0].attention.rotary
    frequencies = "exact" if rotary is not None and rotary.frequencies == "exact" else "float32"
    try:
        want = model(settings, frequencies=frequencies)
    except ValidationError as error:
        return first_problem(error)
    own, of = checkpoint.described(config), checkpoint.described(want)
    return difference(own, of, "atlas-mag", free=("form", "biases"))


def _derived(config: language_model.Config) -> Settings | None:
    """The settings that come nearest, read from the first block."""
    block = config.blocks[0]
    own, at = block.memory, block.attention
    fields: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "dim": config.d_model,
        "n_layers": len(config.blocks),
        "n_heads": at.heads,
        "attn_window_size": at.window,
        "disable_memory": own is None,
        "memory_expansion": max(1, round(block.feed_forward.d_inner * 1.5 / config.d_model)),
    }
    if isinstance(own, shared_memory.Config):
        rule, rates, projection = own.level.config, own.rates, own.projection
        function = rule.memory
        fields |= {
            "memory_expansion": int(function.expansion),
            "poly_degree": function.degree,
            "poly_rank": function.compress or 0,
            "memory_mlp": "geglu" if function.gated else "gelu",
            "ttl_enabled": rule.phase != "off",
            "ttl_adaptive_eta": rule.adaptive,
            "omega_context_window": rule.window,
            "training": rule.training,
            "gate_hidden": own.gate_hidden or 64,
        }
        if rule.convention.has_newton_schulz:
            fields["ttl_ns_iters"] = rule.convention.newton_schulz_settings.steps
        if rates is not None:
            named = {
                "ttl_alpha": rates.retain,
                "ttl_theta": rates.momentum,
                "ttl_eta": rates.step_size,
            }
            fields |= {name: value for name, value in named.items() if value is not None}
        if projection is not None:
            fields |= {
                "omega_decay_base": projection.decay,
                "persistent_factor": projection.identity_factor,
                "persistent_size": projection.identity_size,
            }
    try:
        return Settings(**fields)
    except ValidationError:
        return None
