"""A deep memory: a function whose weights learn at test time, a chunk of tokens at a write.

    g_n     = d/dW sum_i w_i |M(k_i; W_ref) - v_i|^2          i in the window that ends the chunk
    S_(n+1) = momentum_n S_n + g_n
    W_(n+1) = retain_n W_n - step_size_n NewtonSchulz(S_(n+1))
    y_t     = M(q_t; W_j),    j the writes completed at t

Specified in specs/deep_memory.md. Sources: Titans (2501.00663) Section 3, Atlas (2505.23735) Eqs 9
and 32, Atlas-MAG_OmegaRule, titans-pytorch.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from atlas_ref.parts import memory_functions
from atlas_ref.parts.biases import Bias
from atlas_ref.parts.deep_momentum import PREFIX
from atlas_ref.parts.memory_functions import MemoryFunction
from atlas_ref.parts.retentions import Retention, first
from atlas_ref.rules.deep_memory.config import Config
from atlas_ref.rules.deep_memory.presets import PRESETS, preset
from atlas_ref.rules.deep_memory.run import run
from atlas_ref.rules.deep_memory.state import State, document, renew, restart, start
from atlas_ref.rules.rule import Rule, by_name
from atlas_ref.types import Array

__all__ = ["PRESETS", "RULE", "Config", "State", "preset", "restart", "run", "start"]


def _tensors(config: Config) -> dict[str, tuple[int, ...]]:
    """Shapes of the first weights and of the tensors that no write moves, for each head (DEEP-2)."""
    return {name: (config.heads, *shape) for name, shape in config.tensors.items()}


def _draw(config: Config, seed: int) -> dict[str, Array]:
    """The same tensors, each head's of its own seed, with logarithms where writes take them (DEEP-32)."""
    heads = [
        memory_functions.initial(config.memory, config.d_in, config.d_out, seed=seed + 2**64 * head)
        for head in range(config.heads)
    ]
    drawn = {name: np.stack([head[name] for head in heads]) for name in heads[0]}
    matrices = [name for name, shape in config.fast_shapes.items() if len(shape) == 2]
    drawn |= {name: first(config.retention, drawn[name]) for name in matrices}
    return drawn | _draw_momentum(config, seed)


def _draw_momentum(config: Config, seed: int) -> dict[str, Array]:
    """V_0 of a deep momentum, of streams that no tensor of the memory has (DEEP-37)."""
    if config.deep_momentum is None:
        return {}
    entries, function = config.entries, config.deep_momentum.function
    heads = [
        memory_functions.initial(function, entries, entries, seed=seed + 2**128 + 2**64 * head)
        for head in range(config.heads)
    ]
    return {PREFIX + name: np.stack([head[name] for head in heads]) for name in heads[0]}


RULE = Rule(
    name="deep_memory",
    gates=("retain", "momentum", "step_size"),
    clauses=by_name(
        {
            "DEEP-7": "predicted residual gradient",
            "DEEP-11": "S out/S",
            "DEEP-12": "U",
            "DEEP-13": "M out/M",
            "DEEP-15": "y out/y",
            "DEEP-5": "out",
            "DEEP-18": "grad trace_grad",
        }
    ),
    has_error=True,
    has_momentum=True,
    has_window=True,
    has_newton_schulz=True,
    structure=get_args(MemoryFunction.model_fields["kind"].annotation),
    bias=get_args(Bias.model_fields["kind"].annotation),
    retention=get_args(Retention.model_fields["kind"].annotation),
    memories=("weights", "momentum"),
    like="keys",
    Config=Config,
    State=State,
    start=start,
    restart=restart,
    run=run,
    tensors=_tensors,
    draw=_draw,
    next_document=document,
    renewed=renew,
)
