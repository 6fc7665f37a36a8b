"""A memory that shares queries, keys and values with attention.

    u = gate(n),    q' = project(q; k, u),    y = M(q')

A rule writes pairs of key and value, each with the weight u, and is read with q'. Specified in
specs/shared_memory.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import checks, query_key
from atlas_ref.layers.projection import gates_of_tokens, hidden_gate
from atlas_ref.layers.shared_memory.config import PRESETS, Config, Rates, axes_of, configured
from atlas_ref.layers.shared_memory.params import Params, check_params, init
from atlas_ref.levels import block
from atlas_ref.levels.level import run_projected
from atlas_ref.parts import window
from atlas_ref.rules.checks import check_count, require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops

__all__ = [
    "PRESETS",
    "Config",
    "Params",
    "Rates",
    "Shared",
    "State",
    "apply",
    "axes_of",
    "configured",
    "gate_of",
    "init",
    "projected",
    "start",
]


class Shared(NamedTuple):
    """What attention gives the memory of its tokens (SHARED-2).

    Attributes:
        n (B, T, d_model): tokens after the norm of attention.
        q, k (B, H, T, d_head): queries and keys of the heads, in the frame of the settings.
        v (B, H, T, d_head): values.
    """

    n: Array
    q: Array
    k: Array
    v: Array


class State(Frozen):
    """All that the next call needs (SHARED-8).

    Attributes:
        levels: the memory and the step that comes next.
        projection: the last keys and their gates; None without a projection.
    """

    levels: block.Context
    projection: query_key.State | None = None


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64, initial: Any = None) -> State:
    """The state before the first token (SHARED-8).

    Args:
        initial: memories of the rule by name, as `levels.block.start` takes those of a level: of a
            deep memory weights and momentum; None for none.
    """
    check_count("batch", batch)
    require_floating(dtype)
    memories = None if initial is None else [initial]
    own = config.projection
    return State(
        levels=block.start(config.levels, batch, dtype=dtype, initial=memories),
        projection=None if own is None else query_key.start(own, batch, dtype=dtype),
    )


def apply(
    config: Config, params: Params, state: State, tokens: Shared, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Write each token into the memory and read it (SHARED-2 to SHARED-6).

    Args:
        reset (T,): True where a document starts.

    Returns:
        state, y (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    starts = _check(config, params, state, tokens, reset)
    T = tokens.n.shape[-2]
    u = gate_of(params, tokens.n)
    after, rows = projected(config, params, state, tokens, u, starts)
    level, context = config.level, state.levels
    memory, y = run_projected(
        level,
        _fields(config, params, tokens.n, rows, u),
        params.phi,
        context.states[0],
        context.origins[0],
        context.conductor.schedule(T)[:, 0],
        np.zeros(T, bool) if starts is None else starts,
    )
    levels = context.replaced(conductor=context.conductor.advanced(T), states=(memory,))
    return State.trusted(levels=levels, projection=after), _merged(y)


def gate_of(params: Params, n: Array) -> Array | None:
    """The weight (B, T) of each token, None without a gate (SHARED-4)."""
    return None if params.gate is None else hidden_gate(params.gate, n)[:, 0]


def projected(
    config: Config, params: Params, state: State, tokens: Shared, u: Array | None, starts: Any
) -> tuple[query_key.State | None, dict[str, Array]]:
    """Keys, values and queries of the rule (SHARED-3, SHARED-6).

    Args:
        u (B, T): of `gate_of`.

    Returns:
        state of the projection, rows (B, T, d_model) by the names k, v, q: all heads of a token one
        after the other.
    """
    q, k, v = (_merged(each) for each in tokens[1:])
    known = {"h": tokens.n, "q": q, "k": k}
    after, own = state.projection, config.projection
    if own is not None and params.projection is not None and state.projection is not None:
        gate = u if own.gated else None
        after, known["q_projected"] = query_key.apply(
            own, params.projection, state.projection, q, k, gate, reset=starts
        )
    key = known[config.write_key]
    if config.loss_output == "with_residual":
        v = v - key  # M(key) + key - v is the error of M(key) against v - key
    return after, {"k": key, "v": v, "q": known[config.memory_input]}


def _fields(
    config: Config, params: Params, n: Array, rows: dict[str, Array], u: Array | None
) -> dict[str, Any]:
    """Fields of `Tokens` for the rule (SHARED-4, SHARED-5)."""
    B, T, D = n.shape
    H = config.heads
    fields: dict[str, Any] = {
        name: ops.swapaxes(ops.reshape(x, (B, T, H, D // H)), 1, 2) for name, x in rows.items()
    }
    if config.rates is None:
        rate = ops.sigmoid if config.step_size == "sigmoid" else ops.softplus
        fields |= gates_of_tokens(params.gates, n, rate)
    else:
        ones = ops.ones_like(n, shape=(B, H, T))
        for name, number in config.rates:
            fields[name] = None if number is None else number * ones
    if not config.level.rule.has_window:
        return fields
    rule = config.level.config
    if config.level.rule.run is None:  # a rule with a run of its own has those of its settings
        by_lag = window.by_lag(rule.window_weights, {}, window=rule.window, heads=H, like=n)
        if by_lag is not None:
            fields["window_weights"] = by_lag + ops.zeros_like(n, shape=(B, H, T, 1))
    if u is not None and config.window_gate:
        fields["window_gate"] = ops.expand_dims(u, 1) + ops.zeros_like(n, shape=(B, H, T))
    return fields


def _merged(x: Array) -> Array:
    """Heads (B, H, T, d) of a token one after the other (B, T, H d)."""
    B, H, T, d = x.shape
    return ops.reshape(ops.swapaxes(x, 1, 2), (B, T, H * d))


def _check(config: Config, params: Params, state: State, tokens: Shared, reset: Any) -> Any:
    """Refuse arguments that contradict the settings (NORM-2)."""
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(tokens.n, config.d_model)
    B, T, D = tokens.n.shape
    for name in "qkv":
        x = getattr(tokens, name)
        check_array(name, x, Dims("..."))
        if len(x.shape) != 4 or x.shape[1] * x.shape[3] != D or (x.shape[0], x.shape[2]) != (B, T):
            raise ValueError(
                f"{name}: shape {x.shape}, expected ({B}, heads, {T}, d_head) with heads d_head = "
                f"{D}"
            )
        checks.check_precision(tokens.n, {name: x}, "n")
    check_params(config, params, tokens.n)
    own = config.projection
    but = f"the settings {'need it' if own is not None else 'have none'}"
    checks.check_presence("state.memory.projection", state.projection, own is not None, but)
    if len(state.levels.states) != 1:
        raise ValueError(f"state: {len(state.levels.states)} memories, expected one")
    return checks.check_reset(reset, T)
