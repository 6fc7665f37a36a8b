"""The mesa memory: each read solves a ridge regression of all values on all keys so far.

    G_t = retain_t G_{t-1} + weight_t k_t k_t^T
    M_t = retain_t M_{t-1} + weight_t v_t k_t^T
    y_t = M_t (G_t + diag(ridge))^-1 q_t

No setting of `dplr` is it: its reads are rational in the keys. Specified in specs/recurrences.md
(RECUR-10).
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import model_validator

from atlas_ref.rules.checks import check_log
from atlas_ref.rules.recurrences.checks import (
    check_call,
    check_finite,
    check_masks,
    events,
    of_last_axes,
)
from atlas_ref.rules.sequence import initial
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops


class State(Frozen):
    """Everything that a split between two tokens must carry (RECUR-10).

    Attributes:
        G (..., d_in, d_in): weighted sum of products of keys.
        M (..., d_out, d_in): weighted sum of values times keys.
    """

    G: Annotated[Array, Dims("... d_in d_in")]
    M: Annotated[Array, Dims("... d_out d_in")]


class Tokens(Frozen):
    """T tokens with any leading axes L (RECUR-10).

    Attributes:
        k, q (L, T, d_in): keys and queries.
        v (L, T, d_out): values.
        weight (L, T): weight of a token in both sums.
        log_retain (L, T): natural log of the gate, at most 0, -inf for 0.
        ridge (d_in,): at least 0, what is added to the diagonal of G; or with last axes of L in
            front.
        active (T,): False where G and M stay; None for all True.
        reset (T,): True where a packed sequence starts; None for nowhere.
    """

    k: Any
    v: Any
    q: Any
    weight: Any
    log_retain: Any
    ridge: Any
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        check_finite(self, ("k", "v", "q", "weight"))
        check_array("ridge", self.ridge, Dims("...", 0.0))
        check_log("log_retain", self.log_retain)
        check_masks(self)
        return self


def start(tokens: Tokens, *, G: Array = None, M: Array = None) -> State:
    """The state before the first of these tokens: G_0 and M_0, zero unless given (RECUR-10)."""
    k, d_in = tokens.k, tokens.k.shape[-1]
    keys, values = (*k.shape[:-2], d_in, d_in), (*k.shape[:-2], tokens.v.shape[-1], d_in)
    return State.trusted(
        G=initial("G", G, keys, zeros=lambda: ops.zeros_like(k, shape=keys), exact=True),
        M=initial("M", M, values, zeros=lambda: ops.zeros_like(k, shape=values), exact=True),
    )


def run(tokens: Tokens, state: State) -> tuple[State, Array]:
    """Drive the recurrence over a sequence (RECUR-10).

    Returns:
        state after the last token, y (L, T, d_out); not finite where G + diag(ridge) is singular.

    Raises:
        ValueError: an array whose shape or precision contradicts another one.

    Every floating input has a gradient (RECUR-4).

    Source: fla-core 0.6.0, ops/mesa_net/naive.py, exact; RECUR-10.
    """
    _check(tokens, state)
    T, G, M = tokens.q.shape[-2], state.G, state.M
    writes, retain = events(tokens, T), ops.exp(tokens.log_retain)
    square = ops.ones_like(tokens.k, shape=(tokens.k.shape[-1],) * 2)
    ridge = tokens.ridge[..., None] * ops.tril(ops.triu(square))
    reads = []
    for t in range(T):
        G, M = (state.G, state.M) if writes.reset[t] else (G, M)
        if writes.active[t]:
            w, k = retain[..., t, None, None], tokens.k[..., t, :]
            weighted = tokens.weight[..., t, None] * k
            G = w * G + ops.outer(weighted, k)
            M = w * M + ops.outer(tokens.v[..., t, :], weighted)
        reads.append((M @ ops.solve(G + ridge, tokens.q[..., t, :, None]))[..., 0])
    return State.trusted(G=G, M=M), ops.stack(reads, axis=-2)


def _check(tokens: Tokens, state: State) -> None:
    """Match every array with the leading axes and the widths of keys and values."""
    *lead, T, d_in = tokens.k.shape
    d_out = tokens.v.shape[-1]
    needed = {
        "k": (*lead, T, d_in),
        "q": (*lead, T, d_in),
        "v": (*lead, T, d_out),
        "weight": (*lead, T),
        "log_retain": (*lead, T),
        "ridge": of_last_axes(tokens.ridge, tuple(lead), d_in),
    }
    states = {"G": (*lead, d_in, d_in), "M": (*lead, d_out, d_in)}
    check_call(tokens, state, T, needed=needed, states=states)
