"""The rule of one level of a memory over the calls of a recording: reads and last state.

Specified in specs/modules.md (MODULES-7). The rule is driven token by token, as a second way to
what `layers.memory` computes through `levels`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.layers import memory, projection
from atlas_ref.oracle.modules.graph import Graph
from atlas_ref.oracle.modules.memories import active
from atlas_ref.parts import window
from atlas_ref.rules import rule_of, sequence
from atlas_ref.rules.sequence import Tokens
from tape import ops

#: Inputs of a cell, by name: ours, for a head and token.
GATES = {"step_size": "to_lr", "retain": "to_decay", "momentum": "to_momentum"}


def cell(
    config: memory.Config,
    number: int,
    branch: memory.Branch,
    graph: Graph,
    keeps: tuple[bool, ...],
    fields: Mapping[str, Any],
    lost: Sequence[str] = (),
) -> tuple[Any, Any]:
    """Reads (B, H, T, d_out) and the state after the last call (MODULES-7).

    Args:
        number: of the level.
        keeps: for each call whether its state goes on; empty for always.
        fields: those of Tokens, and state/M, state/S.
        lost: what each call but the first forgets: M, S, window (MODULES-18).
    """
    level = config.levels.levels[number]
    rule, of_rule = level.rule, projection.of_computed(level.config)
    fields = dict(fields)
    initial = {name: fields.pop(f"state/{name}", None) for name in ("M", "S")}
    k = fields["k"]
    if rule.has_window:
        fields |= _by_lag(of_rule, branch, config.heads, fields)
    writes = active(config, number, k.shape[-2])
    memories = {name: value for name, value in initial.items() if value is not None}
    state = rule_of(of_rule).start(of_rule, k.shape[:2], dtype=k.dtype, **memories)
    reads = []
    for i, (first, last) in enumerate(graph.spans(k.shape[-2])):
        state = state if i == 0 else forgetful(of_rule, graph.hand_over(state), lost)
        before = state
        if config.reference_at_call == "renewed" and of_rule.convention.reference == "call_start":
            state = state.replaced(reference=None, position=sequence.first_position(of_rule))
        for start, end in _pieces(config, first, last):
            part = {name: each[:, :, start:end] for name, each in fields.items()}
            tokens = Tokens(**part, active=None if writes.all() else writes[start:end])
            state, y = sequence.run(rule, of_rule, tokens, state, phi=branch.projection.phi)
            reads.append(y)
            if config.state_clamp is not None:
                state = state.replaced(M=memory.clamped(state.M, config.state_clamp))
        state = state if not keeps or keeps[i] else before
    return ops.concatenate(reads, axis=-2), state


def _by_lag(
    of_rule: Any, branch: memory.Branch, heads: int, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Weights of the window by lag, times those that a habit brings."""
    k = fields["k"]
    weights, its = of_rule.window_weights, branch.projection.window
    lag = window.by_lag(weights, its, window=of_rule.window, heads=heads, like=k)
    if lag is None:
        return {}
    own = fields.get("window_weights", np.ones((*k.shape[:-1], 1), k.dtype))
    return {"window_weights": lag * own}


def forgetful(config: Any, state: Any, lost: Sequence[str]) -> Any:
    """A state without what a program does not carry from call to call (MODULES-18)."""
    if "window" in lost:
        state = rule_of(config).restart(config, state)
    zeros = {name: np.zeros_like(getattr(state, name)) for name in lost if name != "window"}
    return state.replaced(**zeros)


def _pieces(config: memory.Config, first: int, last: int) -> list[tuple[int, int]]:
    """Tokens of a call between two clamps."""
    if config.state_clamp is None or config.scan_chunk is None:
        return [(first, last)]
    return list(itertools.pairwise([*range(first, last, config.scan_chunk), last]))
