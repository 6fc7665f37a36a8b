"""The token of a delta rule with momentum as a plain loop in any legal arithmetic (DPLR-21, TOL-3).

Written from the clause; it shares no code with `rules.momentum_delta`.
"""

from __future__ import annotations

from functools import partial

from atlas_ref.oracle.dplr.context import DplrContext, decay, found_in
from atlas_ref.oracle.dplr.members import WRITTEN
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.types import Array
from tape import ops


def after_token(hook: Hook, t: int, gate: Array, M: Array, S: Array) -> tuple[Array, Array]:
    """The memory and the momentum after a token (DPLR-21).

    Args:
        gate: None for 1.
    """
    context, first = hook.context, M
    if hook.mask[t] is False:
        S = hook.write("S", t, S, same)
        return hook.write("M", t, hook.point("rest/M", t, same, first), same), S
    key = context.entry(t, WRITTEN)
    M = M if gate is None else hook("decayed", t, decay, M, gate)
    of = M if context.settings.order == "before_error" else first
    momentum = hook("momentum", t, partial(_exp, context), context.row(t, "log_momentum"))
    change = _change(hook, t, of)
    rate = context.row(t, "beta")
    S = hook.write("S", t, S, partial(_after, context), S, momentum, change, key)
    rest = hook.point("rest/M", t, same, first)
    return hook.write("M", t, rest, partial(_move, context), M, S, rate), S


def _exp(context: DplrContext, log: Array) -> Array:
    return context.rounding.touch(ops.exp(log))


def _change(hook: Hook, t: int, of: Array) -> Array:
    """The error of a token under the rate of the momentum, eta (M p - v)."""
    context = hook.context
    p = hook.point("erase_read", t, same, context.row(t, "erase_key"))
    v, rate = context.row(t, "v"), context.row(t, "eta")
    found = hook("found", t, partial(found_in, context), of, p)
    return hook("change", t, lambda found, v, rate: rate[..., None] * (found - v), found, v, rate)


def _after(context: DplrContext, S: Array, momentum: Array, change: Array, key: Array) -> Array:
    """mu S + change k^T."""
    added = change[..., :, None] * key[..., None, :]
    return context.arithmetic.scaled_sum(momentum[..., None, None], S, added)


def _move(context: DplrContext, M: Array, S: Array, rate: Array) -> Array:
    """M - beta S."""
    return context.arithmetic.scaled_sum(-1.0 * rate[..., None, None], S, M)
