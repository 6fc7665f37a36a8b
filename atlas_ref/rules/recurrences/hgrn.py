"""The recurrence of hierarchically gated networks: one number a channel, without key and query.

    h_t = retain_t * h_{t-1} + x_t,    y_t = h_t

Specified in specs/recurrences.md (RECUR-3).
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import model_validator

from atlas_ref.rules.checks import check_log
from atlas_ref.rules.recurrences.checks import check_call, check_finite, check_masks, events
from atlas_ref.rules.sequence import initial
from atlas_ref.types import Array, Dims, Frozen
from tape import ops


class State(Frozen):
    """Everything that a split between two tokens must carry (RECUR-3).

    Attributes:
        h (..., d): a number of each channel.
    """

    h: Annotated[Array, Dims("... d")]


class Tokens(Frozen):
    """T tokens with any leading axes L (RECUR-3).

    Attributes:
        x (L, T, d): what a token adds.
        log_retain (L, T, d): natural log of the gate of a channel, at most 0, -inf for 0.
        active (T,): False where h stays; None for all True.
        reset (T,): True where a packed sequence starts; None for nowhere.
    """

    x: Any
    log_retain: Any
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        check_finite(self, ("x",))
        check_log("log_retain", self.log_retain)
        check_masks(self)
        return self


def start(tokens: Tokens, *, h: Array = None) -> State:
    """The state before the first of these tokens: h_0, zero unless given (RECUR-3)."""
    x = tokens.x
    shape = (*x.shape[:-2], x.shape[-1])
    return State.trusted(
        h=initial("h", h, shape, zeros=lambda: ops.zeros_like(x, shape=shape), exact=True)
    )


def run(tokens: Tokens, state: State) -> tuple[State, Array]:
    """Drive the recurrence over a sequence (RECUR-3).

    Returns:
        state after the last token, y (L, T, d).

    Raises:
        ValueError: an array whose shape or precision contradicts another one.

    Every floating input has a gradient (RECUR-4).

    Source: fla-core 0.6.0, ops/hgrn/naive.py; RECUR-3.
    """
    *lead, T, d = tokens.x.shape
    needed = dict.fromkeys(("x", "log_retain"), (*lead, T, d))
    check_call(tokens, state, T, needed=needed, states={"h": (*lead, d)})
    writes, retain, h, reads = events(tokens, T), ops.exp(tokens.log_retain), state.h, []
    for t in range(T):
        h = state.h if writes.reset[t] else h
        if writes.active[t]:
            h = retain[..., t, :] * h + tokens.x[..., t, :]
        reads.append(h)
    return State.trusted(h=h), ops.stack(reads, axis=-2)
