"""The token of a delta rule with momentum as a plain loop in any legal arithmetic (DPLR-21, TOL-3).

Written from the clause; it shares no code with `rules.momentum_delta`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from atlas_ref.oracle.dplr.program import Inputs, Program, chosen
from atlas_ref.types import Array
from tape import ops


class Moved(NamedTuple):
    """The memory and the momentum between two tokens."""

    M: Array
    S: Array


def after_token(
    p: Program, x: Inputs, t: int, gate: Array, state: Moved, key: Array, writes: Any, by: Any
) -> Moved:
    """The state after a token that is active, at least in some rows (DPLR-21).

    Args:
        gate: as a row that scales columns of M, None for 1.
        key: which the change is along.
        writes: True, or the rows in which the token is active.
        by: a rounding.
    """
    M, S, store = *state, p.store(x, t, by)
    decay = partial(p.take, "decayed", t)
    late = p.gate_after == "write"
    decayed = M if gate is None or late else decay(partial(_times, gate, M))
    of = decayed if p.own.order == "before_error" else M
    momentum = p.take("momentum", t, lambda: by.touch(ops.exp(x["in/log_momentum"][..., t])))
    change = _change(p, x, t, of, by)
    before, last = (ops.stop_gradient(S) if p.held == "momentum" and t else S), S
    rate = x["in/beta"][..., t, None, None]
    factor = momentum[..., None, None]

    def added() -> Array:
        own = -change if p.momentum == "negative" else change
        own = (1.0 - momentum[..., None]) * own if p.momentum == "average" else own
        return by.way.scaled_sum(factor, before, own[..., :, None] * key[..., None, :])

    S = p.take("S", t, lambda: store(chosen(writes, added, last)))
    moves = last if p.momentum == "before" else S
    sign = 1.0 if p.momentum == "negative" else -1.0

    def moved() -> Array:
        return by.way.scaled_sum(sign * rate, moves, decayed)

    if late and gate is not None:
        M = decay(lambda: gate * moved())
        return Moved(p.take("M", t, lambda: store(chosen(writes, lambda: M, state.M))), S)
    silent = gate * state.M if p.gate_silent and gate is not None else state.M
    return Moved(p.take("M", t, lambda: store(chosen(writes, moved, silent))), S)


def at_rest(p: Program, x: Inputs, t: int, gate: Array, state: Moved, by: Any) -> Moved:
    """The state after a token that is not active."""
    store = p.store(x, t, by)
    S = p.take("S", t, lambda: store(state.S))
    decays = p.gate_silent and gate is not None
    return Moved(p.take("M", t, lambda: store(gate * state.M if decays else state.M)), S)


def _change(p: Program, x: Inputs, t: int, of: Array, by: Any) -> Array:
    """The error of a token under the rate of the momentum."""
    read = x["in/k" if p.erase_of == "key" else "in/erase_key"][..., t, :]
    read = ops.stop_gradient(read) if p.held == "erase_read" else read
    v, rate = x["in/v"][..., t, :], x["in/eta"][..., t, None]
    if p.erases == "nothing":
        return p.take("change", t, lambda: rate * -v)

    def finds() -> Array:
        found = by.way.matmul(of, read[..., None])[..., 0]
        return ops.stop_gradient(found) if p.held == "erase" else found

    found = p.take("found", t, finds)
    taken = -found if p.erases == "adds" else found
    return p.take("change", t, lambda: rate * (taken - v))


def _times(gate: Array, M: Array) -> Array:
    return gate * M
