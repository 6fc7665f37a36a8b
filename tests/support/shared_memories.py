"""Blocks around a memory that shares attention, in words of the package and of plain loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.blocks import mag
from atlas_ref.models import atlas_mag
from atlas_ref.models.atlas_mag import names
from atlas_ref.models.public.names import tensors_of
from tests.truth.shared_memory_loops import Axes

SETTINGS = atlas_mag.Settings(
    vocab_size=11,
    dim=8,
    n_layers=2,
    n_heads=2,
    memory_expansion=2,
    attn_window_size=4,
    poly_rank=5,
    gate_hidden=3,
    omega_context_window=5,
    omega_decay_base=0.8,
    ttl_eta=0.05,
    ttl_theta=0.7,
    ttl_alpha=0.95,
)

#: Tokens of a call.
TOKENS = 8

#: Values of the axes of a preset that are not causal's, by a name each.
CHANGES: dict[str, dict[str, Any]] = {
    "causal": {},
    "input q": {"memory_input": "q"},
    "input h": {"memory_input": "h"},
    "key projected": {"write_key": "q_projected"},
    "key h": {"write_key": "h"},
    "with residual": {"loss_output": "with_residual"},
    "gate alone": {"window_weights": "gate"},
    "decay alone": {"window_weights": "decay"},
    "unrotated": {"projection_frame": "unrotated"},
    "inclusive": {"keys_seen": "inclusive"},
    "identity": {"persistent": "identity"},
    "chunk 1": {"chunk": 1},
    "call": {"chunk": "call"},
    "mean": {"reduction": "mean"},
    "shared rows": {"coupling": "batch_shared"},
    "all": {"fast": "all", "vectors": "raw"},
    "unit": {"fast": "all", "vectors": "unit"},
    "mlp": {"fast": "mlp"},
    "clip": {"clip": "hard"},
    "adaptive": {"adaptive": True},
    "off": {"phase": "off"},
    "train": {"phase": "train"},
    "read before": {"read": "before"},
    "call end": {"read": "call_end"},
    "flush": {"unfinished": "flush"},
    "momentum": {"rate": "momentum"},
    "no newton schulz": {"newton_schulz": "none"},
    "sum": {"mag": "sum"},
}

#: Axes that the loops take as they are.
OF_LOOPS = ("reduction", "coupling", "fast", "vectors", "clip", "adaptive", "phase")
OF_LOOPS += ("memory_reset", "momentum_reset", "unfinished")


class Built(NamedTuple):
    """A block with its parameters, and the same for the loops."""

    config: mag.Config
    params: mag.Params
    tensors: dict[str, Any]
    axes: Axes


def built(
    settings: atlas_mag.Settings = SETTINGS,
    preset: str = "causal",
    *,
    seed: int = 0,
    **changes: Any,
) -> Built:
    """A block away from its start."""
    own = changes if preset == "atlas-mag" or "chunk" in changes else {"chunk": 3} | changes
    config = atlas_mag.block(settings, preset, **own)
    params = drawn(mag, config, seed)
    tensors = tensors_of(params, names.block(settings), names.sizes(settings))
    if params.mix.W is not None:
        tensors |= {"mix.W": params.mix.W, "mix.b": params.mix.b}
    return Built(config, params, tensors, axes(settings, config, params, own))


def drawn(module: Any, config: Any, seed: int) -> Any:
    """Parameters of a module away from their start, so that each shows."""
    from tape.nested import flatten

    leaves, _, build = flatten(module.init(config, seed), "params")
    draw = np.random.default_rng(seed)
    return build([leaf + 0.4 * draw.standard_normal(leaf.shape) for leaf in leaves])


def axes(
    s: atlas_mag.Settings, config: mag.Config, params: mag.Params, changes: dict[str, Any]
) -> Axes:
    """The readings of a block in words of the loops."""
    own, projection = config.memory, config.memory.projection
    rule = own.level.config
    deep: dict[str, Any] = {name: getattr(rule, name) for name in OF_LOOPS}
    deep["memory"] = {
        "kind": "polynomial",
        "degree": s.poly_degree,
        "gated": s.gated,
        "compress": s.compressed,
        "activation": "gelu_erf",
    }
    deep |= {"chunk": TOKENS if rule.chunk == "call" else rule.chunk, "clip_norm": rule.clip_norm}
    deep["rate"], read = rule.convention.rate, rule.convention.read
    deep["read"] = {"after": "completed", "before": "chunk_start"}.get(read, "call_end")
    ns = rule.convention.newton_schulz
    deep["newton_schulz"] = 0 if ns == "none" else ns.steps
    if ns != "none":
        deep |= {"ns_guard": ns.guard, "ns_transpose": ns.transpose}
    keys = (
        params.memory.projection.keys if projection and projection.persistent == "learned" else None
    )
    return Axes(
        heads=s.n_heads,
        attention=s.attn_window_size,
        window=s.omega_context_window,
        decay=s.omega_decay_base,
        deep=deep,
        memory_input=own.memory_input,
        write_key=own.write_key,
        with_residual=own.loss_output == "with_residual",
        weights=changes.get("window_weights", "decay_times_gate"),
        rotated=own.projection_frame == "rotated",
        inclusive=projection is not None and projection.keys_seen == "inclusive",
        keys=keys,
        mix=config.mix.kind,
        rates=(s.ttl_alpha, s.ttl_theta, s.ttl_eta),
        training=s.training,
    )
