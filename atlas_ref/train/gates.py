"""How far the gates of shared memories tell tokens apart: the standard deviation of their weights.

    n_i = norm(x_i),    u = gate(n),    gate_std = std over blocks, rows, tokens of u

Weights that are all alike leave the choice of tokens to the window. Specified in specs/train.md
(TRAIN-15).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.blocks import module_of
from atlas_ref.layers import attention, shared_memory
from atlas_ref.models import language_model
from atlas_ref.train import loop
from atlas_ref.train.loop import Moment, Task
from atlas_ref.types import Array


def deviation(own: Task, moment: Moment) -> float | None:
    """The standard deviation of the weights of held-out tokens, each row from a start (TRAIN-15).

    The rows are one batch, spread evenly over the text.

    Returns:
        None for a model without such gates, and where nothing is held out.

    Raises:
        Diverged: a value on the way that is not finite.
    """
    if own.data.held is None or not any(_has_gate(block) for block in own.config.blocks):
        return None
    found = []
    with loop.finite(loop.HELD_OUT):
        for begun, rows, reset in loop.held_out(own, moment, 1):
            found += weights(own.config, moment.params, begun, rows.ids[:, :-1], reset)
    each = np.concatenate([np.ravel(backend.host(x)) for x in found])
    return float(np.std(each.astype(np.float64)))


def weights(
    config: language_model.Config,
    params: language_model.Params,
    state: language_model.State,
    ids: Any,
    reset: Any = None,
) -> list[Array]:
    """The weight (B, T) of each token in each block whose shared memory has a gate (SHARED-4)."""
    x, found = language_model.embedded(config, params, ids), []
    for block, own, before in zip(config.blocks, params.blocks, state.blocks, strict=True):
        if _has_gate(block):
            n, _ = attention.projected(block.attention, own.attention, x)
            found.append(shared_memory.gate_of(own.memory, n))
        _, x = module_of(block).apply(block, own, before, x, reset=reset)
    return found


def _has_gate(block: Any) -> bool:
    return isinstance(block.memory, shared_memory.Config) and block.memory.gate_hidden is not None
