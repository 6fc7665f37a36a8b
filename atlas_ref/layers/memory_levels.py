"""Levels inside a memory layer: each over its tokens, clamped where calls end, their reads combined.

    y = sum_l w_l y^l

Specified in specs/memory.md (MEMORY-7 to MEMORY-9); levels themselves in specs/cms.md.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from atlas_ref import backend
from atlas_ref.layers.memory_params import Branch
from atlas_ref.levels import block
from atlas_ref.levels.level import Level, run_projected
from atlas_ref.types import Array
from tape import ops, plain


def run(
    config: Any,
    params: Any,
    projected: list[dict[str, Any]],
    context: Any,
    active: Any,
    schedule: Any,
    starts: Any,
) -> tuple[tuple[Any, ...], Array]:
    """Every level over projected tokens, and their reads as one (MEMORY-8).

    Args:
        config, params: of the layer.
        projected: fields of `Tokens` for each level.
        active, schedule (T, k): where levels write, and where their steps are.
        starts (T,): where documents start; None for nowhere.

    Returns:
        states, reads (B, H, T, d_out).
    """
    mask = np.zeros(len(schedule), bool) if starts is None else starts
    states, reads = [], []
    for i, (level, branch) in enumerate(zip(config.levels.levels, params.levels, strict=True)):
        memory, origin = _renewed(config, level, context.states[i]), context.origins[i]
        memory, y = _run(config, level, branch, projected[i], memory, origin, active[:, i], mask)
        states.append(memory)
        reads.append(y)
    y = reads[0]
    if len(reads) > 1:
        weights = block.combining(config.levels, params.logits, schedule)
        y = sum((w * read for w, read in zip(weights[1:], reads[1:], strict=True)), weights[0] * y)
    return tuple(states), y


def restarted(config: block.Config, context: Any) -> block.Context:
    """The memories where a document starts: at their origins (MEMORY-9)."""
    states = tuple(
        level.rule.document(level.config, origin, before)
        for level, origin, before in zip(
            config.levels, context.origins, context.states, strict=True
        )
    )
    after: block.Context = context.replaced(states=states)
    return after


def _renewed(config: Any, level: Level, state: Any) -> Any:
    """The state of a memory at the start of a call (MEMORY-7)."""
    convention = level.config.convention
    if config.reference_at_call == "carried" or convention.reference != "call_start":
        return state
    return level.rule.renewed(level.config, state)


def _run(
    config: Any,
    level: Level,
    branch: Branch,
    projected: dict[str, Any],
    state: Any,
    origin: Any,
    active: Any,
    starts: Any,
) -> tuple[Any, Array]:
    """One level over a call, clamped where the convention says so (MEMORY-7)."""
    phi, bound, T = branch.projection.phi, config.state_clamp, len(active)
    if bound is None:
        return run_projected(level, projected, phi, state, origin, active, starts)
    reads = []
    step = T if config.scan_chunk is None else config.scan_chunk
    for first, last in itertools.pairwise([*range(0, T, step), T]):
        part = {
            name: None if value is None else value[:, :, first:last]
            for name, value in projected.items()
        }
        of = slice(first, last)
        state, y = run_projected(level, part, phi, state, origin, active[of], starts[of])
        state = state.replaced(M=clamped(state.M, bound))
        reads.append(y)
    return state, reads[0] if len(reads) == 1 else ops.concatenate(reads, axis=-2)


def clamped(M: Array, bound: float) -> Array:
    """Each entry of M within [-bound, bound], without a gradient where it is not (MEMORY-7)."""
    at = np.real(plain(M))
    if not backend.truth((np.abs(at) > bound).any()):
        return M
    return ops.where(at > bound, bound, ops.where(at < -bound, -bound, M))
