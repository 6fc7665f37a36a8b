"""Log-linear attention: a linear memory for each level of a Fenwick tree over the past.

    y_t = query_scale sum_l level_scales_{t, l} M_t^(l) q_t
    M_t^(l) = sum_{s: level(t, s) = l} (retain_{s+1} ... retain_t) v_s k_s^T

level(t, s) is 0 for s = t, else 1 plus the place of the highest bit in which t and s differ, so that
level l holds 2^(l-1) tokens or none. Specified in specs/recurrences.md (RECUR-12).
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from atlas_ref import backend
from atlas_ref.rules.checks import check_log
from atlas_ref.rules.dplr import key_heads, of_groups
from atlas_ref.rules.recurrences.checks import (
    Events,
    check_call,
    check_finite,
    check_masks,
    events,
)
from atlas_ref.rules.sequence import initial
from atlas_ref.types import Array, Dims, Frozen
from tape import ops, plain

#: What a read is multiplied by.
Scale = Literal[1, "1/sqrt(d_in)"]

#: Memories of the levels that hold tokens.
Held = dict[int, Array]


class State(Frozen):
    """Everything that a split between two tokens must carry (RECUR-12).

    Attributes:
        M (..., levels, d_out, d_in): memory of each level, 0 for one that holds no token.
        position: tokens so far, whose number says which levels hold some.
    """

    M: Annotated[Array, Dims("... levels d_out d_in")]
    position: Annotated[int, Field(ge=0)] = 0


class Tokens(Frozen):
    """T tokens with any leading axes L; with groups the last of L counts value heads (RECUR-12).

    Attributes:
        k, q (L, T, d_in): keys and queries; with groups of key heads, a group's share of L.
        v (L, T, d_out): values.
        log_retain (L, T): natural log of the gate, at most 0, -inf for 0.
        level_scales (L, T, levels): factor of the read of each level.
        active (T,): False where all memories stay, and the position; None for all True.
        reset (T,): True where a packed sequence starts; None for nowhere.
    """

    k: Any
    v: Any
    q: Any
    log_retain: Any
    level_scales: Any
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        check_finite(self, ("k", "v", "q", "level_scales"))
        check_log("log_retain", self.log_retain)
        check_masks(self)
        return self


def start(tokens: Tokens, *, M: Array = None, position: int = 0) -> State:
    """The state before the first of these tokens, empty unless given (RECUR-12)."""
    v, levels = tokens.v, tokens.level_scales.shape[-1]
    shape = (*v.shape[:-2], levels, v.shape[-1], tokens.k.shape[-1])
    M = initial("M", M, shape, zeros=lambda: ops.zeros_like(v, shape=shape), exact=True)
    return State.trusted(M=M, position=position)


def run(
    tokens: Tokens, state: State, *, groups: int = 1, query_scale: Scale = "1/sqrt(d_in)"
) -> tuple[State, Array]:
    """Drive the recurrence over a sequence (RECUR-12).

    Args:
        groups: value heads that share a key and a query.

    Returns:
        state after the last token, y (L, T, d_out).

    Raises:
        ValueError: an array whose shape or precision contradicts another one, more tokens than the
            levels hold, or a first memory in a level that holds none.

    Every floating input has a gradient (RECUR-4), 0 by a first memory in a level that holds none.

    Source: fla-core 0.6.0, ops/log_linear_attn/naive.py; RECUR-12.
    """
    _check(tokens, state, groups)
    T = tokens.q.shape[-2]
    writes, retain, reads = events(tokens, T), ops.exp(tokens.log_retain), []
    check_positions(tokens.level_scales.shape[-1], state.M, state.position, writes)
    k, q = of_groups(tokens.k, groups), of_groups(tokens.q, groups)
    scale = 1.0 if query_scale == 1 else 1.0 / math.sqrt(q.shape[-1])
    nothing = ops.zeros_like(tokens.v[..., 0, :])
    first = {level: state.M[..., level, :, :] for level in holding(state.position)}
    held, position = first, state.position
    for t in range(T):
        held, position = (first, state.position) if writes.reset[t] else (held, position)
        if writes.active[t]:
            held = _merged(held, position, retain[..., t, None, None])
            held[0] = ops.outer(tokens.v[..., t, :], k[..., t, :])
            position += 1
        scales, asks = tokens.level_scales[..., t, :], scale * q[..., t, :, None]
        reads.append(_read(held, scales, asks, nothing))
    empty = ops.zeros_like(state.M[..., 0, :, :])
    M = ops.stack([held.get(level, empty) for level in range(state.M.shape[-3])], axis=-3)
    return State.trusted(M=M, position=position), ops.stack(reads, axis=-2)


def holding(position: int) -> tuple[int, ...]:
    """Levels that hold tokens after this many of them (RECUR-12).

    Level 0 holds the last one, whose number has a bit l - 1 for every other level l that holds some.
    """
    if position == 0:
        return ()
    last = position - 1
    return (0, *(level for level in range(1, last.bit_length() + 1) if last >> (level - 1) & 1))


def check_positions(levels: int, M: Array, position: int, writes: Events) -> None:
    """Refuse more tokens than the levels hold, and a first memory where no token can be (RECUR-12).

    Raises:
        ValueError: names the positions, or the level that must be 0.
    """
    most = here = position
    for active, reset in zip(writes.active, writes.reset, strict=True):
        here = (position if reset else here) + bool(active)
        most = max(most, here)
    holds = (1 << levels) >> 1
    if most > holds:
        raise ValueError(f"level_scales: {levels} levels, which hold {holds} tokens, found {most}")
    bare = backend.host(plain(M))
    for level in range(levels):
        if level not in holding(position) and bare[..., level, :, :].any():
            raise ValueError(
                f"M: level {level} must be 0, which holds no token at position {position}"
            )


def _merged(held: Held, position: int, retain: Array) -> Held:
    """The memories before token `position` writes: decayed, all below a level joined in it.

    The level is that of the lowest bit of the token's number, in which it differs from the last.
    """
    decayed = {level: retain * M for level, M in held.items()}
    if position:
        joint = (position & -position).bit_length()
        decayed[joint] = reduce(add, (decayed.pop(level) for level in range(joint)))
    return decayed


def _read(held: Held, scales: Array, q: Array, nothing: Array) -> Array:
    """The sum over levels of what each finds, times its factor; in their order, as after a cut."""
    found = (scales[..., level, None] * (M @ q)[..., 0] for level, M in sorted(held.items()))
    return reduce(add, found, nothing)


def _check(tokens: Tokens, state: State, groups: int) -> None:
    """Match every array with the values' leading axes, widths, groups and levels."""
    *lead, T, d_out = tokens.v.shape
    d_in, levels = tokens.k.shape[-1], tokens.level_scales.shape[-1]
    heads = key_heads(groups, tuple(lead))
    needed = {
        "k": (*heads, T, d_in),
        "q": (*heads, T, d_in),
        "v": (*lead, T, d_out),
        "log_retain": (*lead, T),
        "level_scales": (*lead, T, levels),
    }
    states = {"M": (*lead, levels, d_out, d_in)}
    check_call(tokens, state, T, needed=needed, states=states)
