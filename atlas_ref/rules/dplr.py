"""Diagonal plus low rank: a gate per key channel, and an erase along vectors of its own.

    M_t = M_{t-1} (diag(retain_t) - erase_read_t erase_write_t^T) + v_t k_t^T
    y_t = query_scale M_t q_t

Gated linear attention, Kimi Delta Attention, RWKV-6 and 7 and DeltaProduct are settings of it.
Specified in specs/dplr.md. It has tokens of its own, and so is no entry of `RULES`; its cases are
those of specs/dplr_cases.md.

Its members, what it is not, its backward and cost: DPLR-8 to DPLR-11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from atlas_ref import backend
from atlas_ref.parts import rows
from atlas_ref.rules import sequence
from atlas_ref.rules.checks import (
    check_log,
    check_one_precision,
    check_shapes,
    check_start,
    check_state_shape,
)
from atlas_ref.types import Array, Count, Dims, Frozen, check_array
from tape import ops

#: Arrays of a token that have a row for each of its steps.
OF_STEPS = ("k", "v", "erase_read", "erase_write", "erase_scale")


class Config(Frozen):
    """Sizes and choices of a memory of diagonal plus low rank (DPLR-1).

    Attributes:
        d_in, d_out: length of keys and queries; of values and reads.
        steps: erases and writes of one token, which decays once, before them.
        groups: value heads that share a key and a query.
        decay: whether the erase reads the memory of before the decay (after_error) or after it.
        query_scale: factor of the read.
    """

    d_in: Count
    d_out: Count
    steps: Count = 1
    groups: Count = 1
    decay: Literal["after_error", "before_error"] = "after_error"
    query_scale: Literal[1, "1/sqrt(d_in)"] = 1


class State(Frozen):
    """Everything that a split between two tokens must carry (DPLR-7).

    Attributes:
        M (..., d_out, d_in): memory.
    """

    M: Annotated[Array, Dims("... d_out d_in")]


class Tokens(Frozen):
    """T tokens of n steps, with any leading axes L; with groups the last of L counts value heads
    (DPLR-1).

    Attributes:
        k (L, T n, d_in), q (L, T, d_in): with groups of key heads, a group's share of L.
        v (L, T n, d_out): values; step j of token t is row t n + j, here and in k.
        retain (L, T, d_in): gate per key channel from 0 to 1, or (L, T) for all; None for 1.
        log_retain: natural log of the gate in its place, at most 0, -inf for a gate of 0.
        erase_read, erase_write (L, T n, d_in): what the erase reads, and along which vector it
            takes that away; None for no erase.
        erase_scale (L, T n, d_out): factor of what the erase takes from each row of M, or None
            for 1 (DPLR-18).
        bonus (d_in,), or with last axes of L in front: of the read before the write, or None.
        active: (T,) or, of each row of a batch, L without its last axis and T (CONV-68): False where
            M stays; None for all True.
        reset: alike, True where a packed sequence starts; None for nowhere.
    """

    k: Any
    v: Any
    q: Any
    retain: Any = None
    erase_read: Any = None
    erase_write: Any = None
    bonus: Any = None
    active: Any = None
    reset: Any = None
    log_retain: Any = None
    erase_scale: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        for name in ARRAYS:
            value = getattr(self, name)
            if value is not None or name in ("k", "v", "q"):
                gate = name == "retain"
                check_array(name, value, Dims("...", 0.0, 1.0) if gate else Dims("..."))
        if (self.erase_read is None) != (self.erase_write is None):
            absent = "erase_read" if self.erase_read is None else "erase_write"
            raise ValueError(f"{absent}: missing, an erase has both of its vectors")
        if self.erase_scale is not None and self.erase_read is None:
            raise ValueError("erase_scale: belongs to an erase, there is none")
        if self.log_retain is not None:
            if self.retain is not None:
                raise ValueError("log_retain: stands in place of retain, both were given")
            check_log("log_retain", self.log_retain)
        return self


#: Fields of tokens that hold numbers, all finite, and those with the log of the gate.
ARRAYS = ("k", "v", "q", "retain", "erase_read", "erase_write", "erase_scale", "bonus")
NUMBERS = (*ARRAYS, "log_retain")


class Step(NamedTuple):
    """One erase and write: key (L, d_in), value (L, d_out), the vectors of the erase and the
    factors of its rows, or None.
    """

    k: Array
    v: Array
    erase_read: Array = None
    erase_write: Array = None
    erase_scale: Array = None


def start(
    config: Config, leading: tuple[int, ...] = (), *, dtype: Any = np.float64, M: Array = None
) -> State:
    """The state before the first token: M_0, zero unless given (DPLR-1)."""
    check_start(Config, config, leading, dtype)
    shape = (*leading, config.d_out, config.d_in)
    M = sequence.initial("M", M, shape, zeros=lambda: backend.current().zeros(shape, dtype))
    return State.trusted(M=M)


def run(config: Config, tokens: Tokens, state: State) -> tuple[State, Array]:
    """Drive the rule over a sequence (DPLR-2 to DPLR-6).

    Returns:
        state after the last token, y (L, T, d_out).

    Raises:
        ValueError: names the array that contradicts the configuration or another array.
    """
    check_call(config, tokens, state)
    if parts := rows.of_tokens(tokens):
        return run_rows(parts, partial(run, config), tokens, state)
    T = tokens.q.shape[-2]
    active = np.ones(T, bool) if tokens.active is None else np.asarray(tokens.active)
    reset = np.zeros(T, bool) if tokens.reset is None else np.asarray(tokens.reset)
    q, steps = of_groups(tokens.q, config.groups), _rows(config, tokens)
    bonus, retain, M, reads = tokens.bonus, gates(tokens), state.M, []
    for t in range(T):
        M = state.M if reset[t] else M
        before = M
        if active[t]:
            M = write(config, M, _row(retain, t), steps[t * config.steps : (t + 1) * config.steps])
        if bonus is None or not active[t]:
            reads.append(read(config, M, q[..., t, :]))
        else:
            reads.append(read(config, _with_bonus(before, steps[t], bonus), q[..., t, :]))
    return State.trusted(M=M), ops.stack(reads, axis=-2)


def run_rows(
    parts: Sequence[rows.Group],
    call: Callable[[Tokens, State], tuple[State, Array]],
    tokens: Tokens,
    state: State,
) -> tuple[State, Array]:
    """A call whose rows have masks of their own, in any form of the rule (CONV-68)."""
    bonus, lead = tokens.bonus, tokens.v.shape[:-2]
    if bonus is not None and len(bonus.shape) > 2:  # of heads and of some axes before them
        tokens = tokens.replaced(bonus=ops.broadcast_to(bonus, (*lead, bonus.shape[-1])))
        return rows.run(parts, call, tokens, state)
    return rows.run(parts, call, tokens, state, shared=("bonus",))


def write(config: Config, M: Array, retain: Array, steps: list[Step]) -> Array:
    """The memory after one token: a decay, then each erase and write (DPLR-2 to 4, DPLR-18).

    Args:
        M (L, d_out, d_in): the memory before it.
        retain (L, 1, d_in or 1): its gate, or None for 1.
    """
    for number, step in enumerate(steps):
        decays = retain is not None and number == 0
        decayed = M * retain if decays else M
        written = ops.outer(step.v, step.k)
        if step.erase_read is not None:
            of = M if config.decay == "after_error" else decayed
            found = (of @ ops.expand_dims(step.erase_read, -1))[..., 0]  # (L, d_out)
            found = found if step.erase_scale is None else step.erase_scale * found
            decayed = decayed - ops.outer(found, step.erase_write)
        M = decayed + written
    return M


def read(config: Config, M: Array, q: Array) -> Array:
    """y = query_scale M q (DPLR-5).

    Args:
        q (L, d_in): the query, of each value head.
    """
    y = (M @ ops.expand_dims(q, -1))[..., 0]
    return y if config.query_scale == 1 else y * (1.0 / math.sqrt(config.d_in))


def of_groups(x: Array, groups: int) -> Array:
    """An array of key heads, (..., H, T, d), for value heads, (..., H groups, T, d) (DPLR-6).

    Value head i reads key head floor(i / groups).
    """
    if groups == 1:
        return x
    *lead, heads, T, d = x.shape
    wide = ops.broadcast_to(ops.expand_dims(x, -3), (*lead, heads, groups, T, d))
    return ops.reshape(wide, (*lead, heads * groups, T, d))


def _rows(config: Config, tokens: Tokens) -> list[Step]:
    """Every step of every token."""
    arrays = {name: getattr(tokens, name) for name in OF_STEPS}
    arrays["k"] = of_groups(tokens.k, config.groups)
    named = {name: value for name, value in arrays.items() if value is not None}
    count = tokens.v.shape[-2]
    return [Step(**{name: value[..., i, :] for name, value in named.items()}) for i in range(count)]


def gates(tokens: Any) -> Array:
    """Gates as rows (L, T, d_in or 1), None for 1: of `retain`, or exp of `log_retain` (DPLR-1)."""
    retain = tokens.retain
    if tokens.log_retain is not None:
        retain = ops.exp(tokens.log_retain)
    if retain is None or len(retain.shape) == len(tokens.v.shape):
        return retain
    return ops.expand_dims(retain, -1)


def _row(retain: Array, t: int) -> Array:
    """The gate of a token as a row that scales columns of M."""
    return None if retain is None else ops.expand_dims(retain[..., t, :], -2)


def _with_bonus(M: Array, step: Step, bonus: Array) -> Array:
    """The memory that a read before the write sees: M + v (bonus k)^T (DPLR-5)."""
    return M + ops.outer(step.v, bonus * step.k)


def check_call(config: Config, tokens: Tokens, state: State) -> None:
    """Match every array with the sizes of the configuration and the values' leading axes.

    Raises:
        ValueError: names the array, its shape and what is needed.
    """
    *lead, count, _ = tokens.v.shape if len(tokens.v.shape) > 1 else (0, 0)
    if count < 1 or count % config.steps:
        raise ValueError(
            f"v: shape {tokens.v.shape}, expected rows for whole tokens of steps = {config.steps}"
        )
    T, key_lead = count // config.steps, key_heads(config.groups, tuple(lead))
    wide, narrow = (*lead, count, config.d_in), (*lead, T)
    needed: dict[str, tuple[tuple[int, ...], ...]] = {
        "v": ((*lead, count, config.d_out),),
        "k": ((*key_lead, count, config.d_in),),
        "q": ((*key_lead, T, config.d_in),),
        "retain": (narrow, (*narrow, config.d_in)),
        "erase_read": (wide,),
        "erase_write": (wide,),
        "erase_scale": ((*lead, count, config.d_out),),
        "log_retain": (narrow, (*narrow, config.d_in)),
        "bonus": tuple((*lead[i:], config.d_in) for i in range(len(lead) + 1)),
        **dict.fromkeys(rows.MASKS, rows.mask_shapes(tuple(lead), T)),
    }
    arrays = check_shapes(tokens, needed)
    if tokens.bonus is not None and config.steps > 1:
        raise ValueError(f"bonus: a read before the write has one step, found {config.steps}")
    check_state_shape("M", state.M, (*lead, config.d_out, config.d_in))
    check_one_precision(
        {name: arrays[name] for name in NUMBERS if name in arrays} | {"state.M": state.M}
    )


def key_heads(groups: int, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Leading axes of keys and queries: with groups, fewer heads (DPLR-6)."""
    if groups == 1:
        return lead
    if not lead or lead[-1] % groups:
        raise ValueError(
            f"v: leading axes {lead}, expected value heads in whole groups of {groups}"
        )
    return (*lead[:-1], lead[-1] // groups)
