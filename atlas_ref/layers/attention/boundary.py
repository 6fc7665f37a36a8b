"""Checks of attention: parameters and state agree with the settings and the tokens.

Specified in specs/norm.md (NORM-2).
"""

from __future__ import annotations

from typing import Any

from atlas_ref.layers import checks, norm
from atlas_ref.types import Array


def check_params(config: Any, params: Any, x: Array) -> None:
    """Refuse parameters that contradict the settings or the tokens (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    H, d, D, P = config.heads, config.d_head, config.d_model, config.persistent
    of_rows = ((P, D), "P, d_model") if config.prefixed else ((H, P, d), "heads, P, d_head")
    norm.check_params(config.norm, params.norm, x, "params.norm")
    for name in ("q_norm", "k_norm"):
        of_heads, needed = getattr(params, name), config.head_norm is not None
        but = "head_norm needs it" if needed else "there is no head_norm"
        checks.check_presence(f"params.{name}", of_heads, needed, but)
        if needed:
            norm.check_params(config.head_norm, of_heads, x, f"params.{name}")
    checks.check_shape("params.W_qkv", params.W_qkv, (3, H, d, D), "3, heads, d_head, d_model")
    checks.check_shape("params.W_out", params.W_out, (D, H, d), "d_model, heads, d_head")
    checks.check_presence("params.persistent", params.persistent, P > 0, f"persistent is {P}")
    if params.persistent is not None:
        checks.check_shape("params.persistent", params.persistent, *of_rows)
    names = ("W_qkv", "W_out", "persistent")
    checks.check_precision(x, {f"params.{name}": getattr(params, name) for name in names})


def check_state(config: Any, state: Any, x: Array) -> None:
    """Refuse a state that contradicts the settings or the tokens (NORM-2)."""
    n = state.keys.shape[-2]
    expected = (x.shape[0], config.heads, n, config.d_head)
    for name in ("keys", "values"):
        rows, axes = getattr(state, name), "batch, heads, n, d_head"
        checks.check_shape(f"state.{name}", rows, expected, axes)
    if n > config.window:
        raise ValueError(f"state.keys: {n} rows, expected at most window = {config.window}")
    checks.check_precision(x, {"state.keys": state.keys, "state.values": state.values})
    of_prefix = (x.shape[0], config.heads, config.persistent, config.d_head)
    but = (
        f"persistent_kind is {config.persistent_kind}, persistent_visible "
        f"{config.persistent_visible}, begun {state.begun}"
    )
    for name in ("prefix_keys", "prefix_values"):
        rows = getattr(state, name)
        checks.check_presence(f"state.{name}", rows, config.pinned and state.begun, but)
        if rows is not None:
            checks.check_shape(f"state.{name}", rows, of_prefix, "batch, heads, P, d_head")
            checks.check_precision(x, {f"state.{name}": rows})
    if state.begun and not config.prefixed:
        raise ValueError("state.begun: true, but no persistent tokens stand before the sequence")
