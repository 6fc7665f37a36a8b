"""Tokens as the rules of a memory layer take them: queries, keys, values, gates and window weights.

Specified in specs/memory.md (MEMORY-3 to MEMORY-6).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.layers import convolution, norm
from atlas_ref.layers.memory_params import Branch
from atlas_ref.layers.projection import gates_of_tokens, linear
from atlas_ref.levels.level import Level
from atlas_ref.parts import gates, window
from atlas_ref.types import Array
from tape import ops


def projected_tokens(
    config: Any, level: Level, branch: Branch, tails: Any, n: Array, starts: Any
) -> tuple[dict[str, Any], tuple[convolution.State, ...]]:
    """Queries, keys, values, gates and window weights of normed tokens (MEMORY-3 to MEMORY-6).

    Returns:
        fields of `Tokens` by name, tails of the convolutions after n.
    """
    B, T, _ = n.shape
    own, of_heads, after = branch.projection, config.head_norm, []
    rows: dict[str, Any] = {}
    norms = (branch.q_norm, branch.k_norm, None)
    matrices = (own.W_Q, own.W_K, own.W_V)
    for i, (name, W, its_norm) in enumerate(zip("qkv", matrices, norms, strict=True)):
        filters, conv, x = getattr(branch, f"{name}_conv"), config.conv_of(level, name), n
        if conv is not None and config.conv_place == "before_projection":
            tail, x = convolution.convolved(conv, filters, tails[i], n, starts)
            after.append(tail)
        H, d, D = W.shape
        x = linear(x, ops.reshape(W, (H * d, D)))
        if conv is not None and config.conv_place == "after_projection":
            tail, x = convolution.convolved(conv, filters, tails[i], x, starts)
            after.append(tail)
        x = ops.reshape(x, (B, T, H, d))
        rows[name] = (
            ops.swapaxes(x, 1, 2) if its_norm is None else norm.normed_heads(of_heads, its_norm, x)
        )
    return rows | _gates(config, level, branch, rows, n), tuple(after)


def _gates(
    config: Any, level: Level, branch: Branch, rows: dict[str, Any], n: Array
) -> dict[str, Any]:
    """Gates of the rule, and the weights of its window (MEMORY-5, MEMORY-6)."""
    own, of = branch.projection, ops.expand_dims(n, 1)  # (B, 1, T, d_model)
    rate = ops.sigmoid if config.step_size == "sigmoid" else ops.softplus
    if config.gate_input == "normed":
        fields: dict[str, Any] = gates_of_tokens(own.gates, n, rate)
    else:
        of = ops.concatenate([rows["k"], rows["v"]], axis=-1)
        fields = gates.from_tokens(own.gates, of, step_size=rate)
    if not level.rule.has_window:
        return fields
    weights, c, H = level.config.window_weights, level.config.window, config.heads
    fields["window_gate"] = window.by_token(weights, own.window, n)
    if branch.window_gate is not None:
        own_gate = branch.window_gate
        u = ops.sigmoid(of @ ops.transpose(own_gate.W) + ops.expand_dims(own_gate.b, -2))[..., 0]
        fields["window_gate"] = u if fields["window_gate"] is None else u * fields["window_gate"]
    by_lag = window.by_lag(weights, own.window, window=c, heads=H, like=n)
    if by_lag is not None:
        by_lag = by_lag + ops.zeros_like(n, shape=(n.shape[0], H, n.shape[1], 1))
    fields["window_weights"] = by_lag
    return fields
