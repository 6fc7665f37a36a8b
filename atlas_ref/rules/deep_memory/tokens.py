"""When a document goes through the loop over single tokens of an MLP, and how it is handed over.

Specified in specs/deep_memory.md (DEEP-14, DEEP-15).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atlas_ref.engine import memory_tokens as engine
from atlas_ref.engine.layers.support import takes
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.state import Tensors
from atlas_ref.types import Array

GAIN = "norm/gain"


def fits(config: Config, part: Any, *tensors: Tensors) -> bool:
    """Whether the loop computes these settings, and takes a document's tokens and these tensors.

    Each token is active and writes by itself at the running weights, without a clip or a direction;
    no array is recorded, and all are of this host.
    """
    arrays = [part.keys, part.values, part.queries, part.token_gates, part.lags]
    arrays += [*part.rates.values(), *(x for each in tensors for x in each.values())]
    arrays = [x for x in arrays if x is not None]
    bare = all(type(x) is np.ndarray for x in arrays) and takes(*arrays)
    return bare and bool(part.active.all()) and settings_fit(config)


def settings_fit(config: Config) -> bool:
    """Whether the loop computes these settings."""
    c, memory = config.convention, config.memory
    return (
        (config.chunk, config.window, config.momentum_order) == (1, 1, 1)
        and memory.kind == "mlp"
        and not memory.with_input
        and config.deep_momentum is None
        and config.writes
        and config.coupling == "per_sample"
        and (config.clip, config.adaptive) == ("none", False)
        and (config.bias.kind, config.retention.kind) == ("l2", "l2")
        and set(_matrices(config)) <= set(config.fast_shapes)
        and (GAIN not in config.fast_shapes or config.vectors == "raw")
        and (c.decay, c.reference, c.newton_schulz) == ("after_error", "running", "none")
        and (c.value_sign, c.read in ("after", "before")) == ("minus", True)
    )


def _matrices(config: Config) -> list[str]:
    return [f"W_{i + 1}" for i in range(config.memory.depth)]


def run(
    config: Config,
    tensors: Tensors,
    weights: Tensors,
    momentum: Tensors,
    part: Any,
    of_tokens: Array,
) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """W, S and reads of a document that `fits`.

    Args:
        tensors: slow ones by name.
        part: the document's tokens.
        of_tokens (..., T): weights of the tokens.
    """
    rates = {name: x for name, x in part.rates.items() if x is not None}
    leading, T = part.queries.shape[:-2], part.queries.shape[-2]
    N, c = math.prod(leading), config.convention

    def flat(x: Array, own: int) -> Array:
        shape = x.shape[x.ndim - own :]
        return np.broadcast_to(x, (*leading, *shape)).reshape(N, *shape)

    names = [*_matrices(config), *([GAIN] if GAIN in config.fast_shapes else [])]
    every = {**tensors, **weights}
    gain = flat(every[GAIN], 1) if GAIN in every else np.zeros((N, config.d_out), part.keys.dtype)
    step = rates.get("step_size")
    a = step if c.rate in ("momentum", "both", "split") else None
    b = step if c.rate in ("memory", "both") else None
    b = rates["step_size_memory"] if c.rate == "split" else b
    of_rates = [rates.get("retain"), rates.get("momentum"), a, b]
    scale = 2.0 / config.d_out if isinstance(c.gradient_scale, str) else c.gradient_scale
    reads, W, S = engine.run(
        engine.Settings(
            activation=config.memory.activation,
            eps=config.memory.norm_eps if config.memory.residual_norm else None,
            scale=scale,
            minus=c.momentum_sign == "minus",
            descends=c.direction == "descent",
            moves_gain=GAIN in config.fast_shapes,
            after=c.read == "after",
        ),
        engine.Tokens(
            flat(part.keys, 2),
            flat(part.values, 2),
            flat(part.queries, 2),
            flat(of_tokens, 1),
            *(None if x is None else flat(x, 1) for x in of_rates),
        ),
        [flat(every[name], 2) for name in _matrices(config)],
        gain,
        [flat(momentum[name], momentum[name].ndim - len(leading)) for name in names]
        if momentum
        else None,
    )

    def named(found: list[Array]) -> dict[str, Array]:
        return {
            name: x.reshape(*leading, *x.shape[1:]) for name, x in zip(names, found, strict=True)
        }

    by_name = named(W), named(S)
    ordered = [{name: each[name] for name in config.fast_shapes} for each in by_name]
    return ordered[0], ordered[1], reads.reshape(*leading, T, -1)
