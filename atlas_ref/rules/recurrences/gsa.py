"""Gated slot attention: two gated linear attentions with a softmax between.

    K_t = diag(retain_t) K_{t-1} + s_t k_t^T
    M_t = M_{t-1} diag(retain_t) + v_t s_t^T
    y_t = M_t softmax(query_scale K_t q_t)

K keeps a key for each slot and M a value. No setting of `dplr` is it: the query of the second
memory is a function of what the first one finds. Specified in specs/recurrences.md (RECUR-2).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from atlas_ref.rules.checks import check_log
from atlas_ref.rules.recurrences.checks import check_call, check_finite, check_masks, events
from atlas_ref.rules.sequence import initial
from atlas_ref.types import Array, Dims, Frozen
from tape import ops

#: What a query is multiplied by.
Scale = Literal[1, "1/sqrt(d_in)"]


class State(Frozen):
    """Everything that a split between two tokens must carry (RECUR-2).

    Attributes:
        K (..., slots, d_in): a key of each slot.
        M (..., d_out, slots): a value of each slot.
    """

    K: Annotated[Array, Dims("... slots d_in")]
    M: Annotated[Array, Dims("... d_out slots")]


class Tokens(Frozen):
    """T tokens with any leading axes L (RECUR-2).

    Attributes:
        k, q (L, T, d_in): keys and queries.
        v (L, T, d_out): values.
        s (L, T, slots): what a token writes into each slot.
        log_retain (L, T, slots): natural log of the gate of a slot, at most 0, -inf for 0.
        active (T,): False where K and M stay; None for all True.
        reset (T,): True where a packed sequence starts; None for nowhere.
    """

    k: Any
    v: Any
    q: Any
    s: Any
    log_retain: Any
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        check_finite(self, ("k", "v", "q", "s"))
        check_log("log_retain", self.log_retain)
        check_masks(self)
        return self


def start(tokens: Tokens, *, K: Array = None, M: Array = None) -> State:
    """The state before the first of these tokens: K_0 and M_0, zero unless given (RECUR-2)."""
    k, v, slots = tokens.k, tokens.v, tokens.s.shape[-1]
    keys, values = (*k.shape[:-2], slots, k.shape[-1]), (*v.shape[:-2], v.shape[-1], slots)
    return State.trusted(
        K=initial("K", K, keys, zeros=lambda: ops.zeros_like(k, shape=keys), exact=True),
        M=initial("M", M, values, zeros=lambda: ops.zeros_like(v, shape=values), exact=True),
    )


def run(
    tokens: Tokens, state: State, *, query_scale: Scale = "1/sqrt(d_in)"
) -> tuple[State, Array]:
    """Drive the recurrence over a sequence (RECUR-2).

    Returns:
        state after the last token, y (L, T, d_out).

    Raises:
        ValueError: an array whose shape or precision contradicts another one.

    Every floating input has a gradient (RECUR-4).

    Source: fla-core 0.6.0, ops/gsa/naive.py; RECUR-2.
    """
    _check(tokens, state)
    T, K, M = tokens.q.shape[-2], state.K, state.M
    writes, retain = events(tokens, T), ops.exp(tokens.log_retain)
    scale = 1.0 if query_scale == 1 else 1.0 / math.sqrt(tokens.q.shape[-1])
    reads = []
    for t in range(T):
        K, M = (state.K, state.M) if writes.reset[t] else (K, M)
        if writes.active[t]:
            w, s = retain[..., t, :], tokens.s[..., t, :]
            K = w[..., :, None] * K + ops.outer(s, tokens.k[..., t, :])
            M = w[..., None, :] * M + ops.outer(tokens.v[..., t, :], s)
        found = (K @ (scale * tokens.q[..., t, :, None]))[..., 0]
        reads.append((M @ ops.softmax(found)[..., None])[..., 0])
    return State.trusted(K=K, M=M), ops.stack(reads, axis=-2)


def _check(tokens: Tokens, state: State) -> None:
    """Match every array with the leading axes and the widths of keys, values and slots."""
    *lead, T, d_in = tokens.k.shape
    d_out, slots = tokens.v.shape[-1], tokens.s.shape[-1]
    needed = {
        "k": (*lead, T, d_in),
        "q": (*lead, T, d_in),
        "v": (*lead, T, d_out),
        "s": (*lead, T, slots),
        "log_retain": (*lead, T, slots),
    }
    states = {"K": (*lead, slots, d_in), "M": (*lead, d_out, slots)}
    check_call(tokens, state, T, needed=needed, states=states)
