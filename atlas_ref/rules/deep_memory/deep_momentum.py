"""One write's step of a deep momentum: the network learns, then maps the gradient.

Specified in specs/deep_memory.md (DEEP-37, DEEP-38).
"""

from __future__ import annotations

import math
from typing import Any

from atlas_ref.parts import memory_functions
from atlas_ref.parts.deep_momentum import PREFIX, slope
from atlas_ref.rules.deep_memory.carry import carry
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.state import Tensors, of_leading
from atlas_ref.types import Array
from tape import ops


def step(
    config: Config, momentum: Array, network: Tensors, a: Any, g: Tensors
) -> tuple[dict[str, Array], dict[str, Array]]:
    """V after a write, and the step s by the names of the fast tensors (DEEP-37).

    Args:
        momentum, a (...,): the gate, and the rate of the network or None for 1.
        network: V before the write.
        g: the gradient of every fast tensor, within its bound.
    """
    settings, u = config.deep_momentum, vector(config, g)
    assert settings is not None
    before = memory_functions.forward(settings.function, network, u)
    minus = config.convention.momentum_sign == "minus"
    gy = slope(settings, before.y, u, minus=minus)
    found, _ = memory_functions.gradient(
        settings.function, network, u, gy, needs_input=False, of=before
    )
    after = {}
    for name, shape in config.momentum_shapes.items():
        rank = len(shape)
        change = found[name] if a is None else of_leading(a, rank) * found[name]
        after[name] = carry(momentum, network[name], change, rank, minus=True)
    return after, _tensors(config, memory_functions.apply(settings.function, after, u))


def vector(config: Config, g: Tensors) -> Array:
    """u (..., 1, N): the entries of all fast tensors one after the other, row by row (DEEP-37)."""
    flat = []
    for name, shape in config.fast_shapes.items():
        leading = g[name].shape[: g[name].ndim - len(shape)]
        flat.append(ops.reshape(g[name], (*leading, 1, math.prod(shape))))
    return flat[0] if len(flat) == 1 else ops.concatenate(flat, axis=-1)


def _tensors(config: Config, s: Array) -> dict[str, Array]:
    """The entries of s (..., 1, N) as the fast tensors."""
    found, first = {}, 0
    for name, shape in config.fast_shapes.items():
        last = first + math.prod(shape)
        found[name] = ops.reshape(s[..., 0, first:last], (*s.shape[:-2], *shape))
        first = last
    return found


def first(config: Config, phi: Tensors, leading: tuple[int, ...]) -> dict[str, Array]:
    """V_0 of the tensors that a call brings, for each memory (DEEP-37)."""
    return {
        name: ops.broadcast_to(phi[PREFIX + name], (*leading, *shape))
        for name, shape in config.momentum_shapes.items()
    }
