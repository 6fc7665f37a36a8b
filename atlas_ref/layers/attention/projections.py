"""Projections of attention: tokens to queries, keys and values of heads, and reads back to tokens.

Specified in specs/attention.md (ATTENTION-1, ATTENTION-15).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.layers import checks, norm
from atlas_ref.layers.projection import linear
from atlas_ref.types import Array, Dims, check_array
from tape import ops


def projected(config: Any, params: Any, x: Array) -> tuple[Array, Array]:
    """Normed tokens, and queries, keys and values of the heads before positions (ATTENTION-1).

    Args:
        x (B, T, d_model): tokens, checked as the parameters are.

    Returns:
        tokens (B, T, d_model) after the norm, qkv (B, 3, H, T, d_head), of which queries and keys
        are after the norm of heads, where there is one.
    """
    B, T, D = x.shape
    H, d = config.heads, config.d_head
    # time last: what follows is sums over entries and keys, with tokens side by side
    normed = norm.normed(config.norm, params.norm, x)
    qkv = ops.reshape(params.W_qkv, (3 * H * d, D)) @ ops.swapaxes(normed, -1, -2)  # (B, 3 H d, T)
    qkv = ops.swapaxes(ops.reshape(qkv, (B, 3, H, d, T)), -1, -2)
    return normed, heads_normed(config, params, qkv)


def merged(config: Any, params: Any, y: Array) -> Array:
    """The reads (B, H, T, d_head) of all heads, projected back to (B, T, d_model) (ATTENTION-1)."""
    B, H, T, d = y.shape
    rows = ops.reshape(ops.swapaxes(y, -1, -2), (B, H * d, T))
    W_out = ops.reshape(params.W_out, (config.d_model, H * d))
    return linear(ops.swapaxes(rows, -1, -2), W_out)


def heads_normed(config: Any, params: Any, qkv: Array) -> Array:
    """Queries and keys (B, 3, H, T, d_head) after the norm of heads, where there is one."""
    if config.head_norm is None or params.q_norm is None or params.k_norm is None:
        return qkv
    q, k = (
        norm.normed(config.head_norm, each, qkv[:, i])
        for i, each in enumerate((params.q_norm, params.k_norm))
    )
    return ops.stack([q, k, qkv[:, 2]], axis=1)


def of_context(config: Any, params: Any, context: Array, x: Array) -> tuple[Array, Array]:
    """Keys and values (B, H, N, d_head) of rows of context (ATTENTION-15)."""
    if config.attention_window == "causal":
        raise ValueError("context: attention_window causal has no rows before the call")
    B, N, D = x.shape[0], context.shape[-2], x.shape[-1]
    checks.check_shape("context", context, (B, N, D), "batch, rows, d_model")
    check_array("context", context, Dims("..."))
    checks.check_precision(x, {"context": context})
    rows = ops.expand_dims(context, 1)
    return rows @ ops.transpose(params.W_qkv[1]), rows @ ops.transpose(params.W_qkv[2])
