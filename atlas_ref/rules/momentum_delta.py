"""The delta rule with momentum, whose error is read along a vector of its own.

    S_t = momentum_t S_{t-1} + step_size_t (M_{t-1} p_t - v_t) k_t^T
    M_t = retain_t M_{t-1} - step_size_memory_t S_t
    y_t = query_scale M_t q_t

No setting of `dplr` is it: its state [M, S] moves by a matrix that is not diagonal plus low rank.
Specified in specs/dplr.md (DPLR-21).
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.parts import rows
from atlas_ref.rules import dplr, sequence
from atlas_ref.rules.checks import check_log, check_one_precision, check_shapes, check_state_shape
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops

#: Arrays with numbers, all of one precision.
NUMBERS = (
    *("k", "v", "q", "p", "retain", "log_retain", "log_momentum"),
    *("step_size", "step_size_memory"),
)


class State(Frozen):
    """Everything that a split between two tokens must carry (DPLR-21).

    Attributes:
        M (..., d_out, d_in): memory.
        S (..., d_out, d_in): momentum.
    """

    M: Annotated[Array, Dims("... d_out d_in")]
    S: Annotated[Array, Dims("... d_out d_in")]


class Tokens(Frozen):
    """T tokens with any leading axes L; with groups the last of L counts value heads (DPLR-21).

    Attributes:
        k, q (L, T, d_in): with groups of key heads, a group's share of L.
        v (L, T, d_out): values.
        p (L, T, d_in): what the error reads the memory with.
        log_momentum (L, T): natural log of the gate of S, at most 0, -inf for a gate of 0.
        step_size, step_size_memory (L, T): rates of S and of M.
        retain (L, T) or (L, T, d_in): gate of all channels or of each, from 0 to 1; None for 1.
        log_retain: its natural log in its place.
        active: (T,) or, of each row of a batch, L without its last axis and T (CONV-68): False where
            M and S stay; None for all True.
        reset: alike, True where a packed sequence starts; None for nowhere.
    """

    k: Any
    v: Any
    q: Any
    p: Any
    log_momentum: Any
    step_size: Any
    step_size_memory: Any
    retain: Any = None
    log_retain: Any = None
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        for name in ("k", "v", "q", "p", "step_size", "step_size_memory"):
            check_array(name, getattr(self, name), Dims("..."))
        if self.retain is not None:
            check_array("retain", self.retain, Dims("...", 0.0, 1.0))
        if self.retain is not None and self.log_retain is not None:
            raise ValueError("log_retain: stands in place of retain, both were given")
        if self.log_retain is not None:
            check_log("log_retain", self.log_retain)
        check_log("log_momentum", self.log_momentum)
        return self


def start(
    config: dplr.Config,
    leading: tuple[int, ...] = (),
    *,
    dtype: Any = np.float64,
    M: Array = None,
    S: Array = None,
) -> State:
    """The state before the first token: M_0 and S_0, zero unless given (DPLR-21)."""
    memory = dplr.start(config, leading, dtype=dtype, M=M).M
    zeros = partial(ops.zeros_like, memory)
    S = sequence.initial("S", S, memory.shape, zeros=zeros, exact=True)
    return State.trusted(M=memory, S=S)


def run(config: dplr.Config, tokens: Tokens, state: State) -> tuple[State, Array]:
    """Drive the rule over a sequence (DPLR-21).

    Args:
        config: sizes, groups, decay and query_scale as of the rule dplr; steps of 1.

    Returns:
        state after the last token, y (L, T, d_out).

    Raises:
        ValueError: several steps, or an array that contradicts the configuration or another array.

    Reduces to: titans_lmm for p = k, under rate split.

    Source: fla-core 0.6.0, ops/momentum_delta_rule/naive.py; DPLR-21.
    """
    check_call(config, tokens, state)
    if parts := rows.of_tokens(tokens):
        return rows.run(parts, partial(run, config), tokens, state)
    T, M, S = tokens.q.shape[-2], state.M, state.S
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    k, q = (dplr.of_groups(x, config.groups) for x in (tokens.k, tokens.q))
    retain, momentum = dplr.gates(tokens), ops.exp(tokens.log_momentum)
    reads = []
    for t in range(T):
        M, S = (state.M, state.S) if reset[t] else (M, S)
        if active[t]:
            decayed = M if retain is None else retain[..., t, None, :] * M
            of = M if config.decay == "after_error" else decayed
            error = (of @ tokens.p[..., t, :, None])[..., 0] - tokens.v[..., t, :]
            change = ops.outer(tokens.step_size[..., t, None] * error, k[..., t, :])
            S = momentum[..., t, None, None] * S + change
            M = decayed - tokens.step_size_memory[..., t, None, None] * S
        reads.append(dplr.read(config, M, q[..., t, :]))
    return State.trusted(M=M, S=S), ops.stack(reads, axis=-2)


def check_call(config: dplr.Config, tokens: Tokens, state: State) -> None:
    """Match every array with the sizes of the configuration and the values' leading axes.

    Raises:
        ValueError: names the array, its shape and what is needed.
    """
    if config.steps != 1:
        raise ValueError(f"steps: {config.steps}, but momentum moves once a token; 1 is needed")
    *lead, T, _ = tokens.v.shape
    heads = dplr.key_heads(config.groups, tuple(lead))
    narrow, wide = (*lead, T), (*lead, T, config.d_in)
    needed: dict[str, tuple[tuple[int, ...], ...]] = {
        "v": ((*lead, T, config.d_out),),
        **dict.fromkeys(("k", "q"), ((*heads, T, config.d_in),)),
        "p": (wide,),
        **dict.fromkeys(("retain", "log_retain"), (narrow, wide)),
        **dict.fromkeys(("log_momentum", "step_size", "step_size_memory"), (narrow,)),
        **dict.fromkeys(rows.MASKS, rows.mask_shapes(tuple(lead), T)),
    }
    arrays = check_shapes(tokens, needed)
    check_state_shape("M", state.M, (*lead, config.d_out, config.d_in))
    numbers = {name: arrays[name] for name in NUMBERS if name in arrays}
    check_one_precision(numbers | {"state.M": state.M, "state.S": state.S})
