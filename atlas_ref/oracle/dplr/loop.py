"""The rule dplr as a plain loop in any legal arithmetic (DPLR-2 to DPLR-7, TOL-3).

Written from the clauses; it shares no code with `rules.dplr`. Everything takes arrays and tape
variables. Every quantity goes through a hook, by which a trace sees it (DPLRCASE-11) and a mistake
changes it (DPLRCASE-10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr import momentum
from atlas_ref.oracle.dplr.context import (
    TOKENS,
    DplrContext,
    decay,
    erase_row,
    found_in,
    of_rows,
    plus,
)
from atlas_ref.oracle.dplr.keys import prepare
from atlas_ref.oracle.dplr.members import WRITTEN
from atlas_ref.oracle.dplr.normaliser import divisors
from atlas_ref.oracle.dplr.plain_formulas import with_cumulation
from atlas_ref.oracle.dplr.tensors import axes_of
from atlas_ref.oracle.program.context import no_label, select
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.oracle.program.program import Results
from atlas_ref.types import Array
from tape import ops


def results(context: DplrContext, hook: Hook) -> Results:
    """Results of a call, every head, token and step one after the other, with its ops."""
    hook, after = prepare(hook)
    settings, context = hook.context.settings, with_cumulation(hook.context)
    hook = replace(hook, context=context)
    by = divisors(hook) if settings.of.second == "z" else None
    M = first = hook.point("first/M", 0, same, context.first("M"))
    S = first_S = None
    if settings.of.second == "S":
        S = first_S = hook.point("first/S", 0, same, context.first("S"))
    reads = []
    for t in range(context.tokens):
        hook.values.clear()
        before = hook.start("M", t, M, first), None if S is None else hook.start("S", t, S, first_S)
        gate = _gate(hook, t)
        M, S = _after_token(hook, t, gate, *before)
        reads.append(_read(hook, t, gate, before, M, None if by is None else by.each[t]))
    after |= {} if by is None else {"z": by.z}
    after |= {} if S is None else {"S": S}
    return {"y": ops.stack(reads, axis=-2), "M": M, **after}


def _gate(hook: Hook, t: int) -> Array:
    """The gate of a token, for all channels or for each; None for 1 (DPLR-1)."""
    context = hook.context
    if context.settings.of.gated == "heads":
        return hook("gate", t, partial(_of_heads, context.inputs["in/v"]))
    name = context.gate
    if not name:
        return None
    w = context.entry(t, name)
    if name == "in/retain":
        return hook("gate", t, same, w)
    if context.settings.gate_formula is not None:
        w = hook("log_gate", t, same, w)
    return hook("gate", t, lambda log: context.rounding.touch(ops.exp(log)), w)


def _of_heads(v: Array) -> Array:
    """Gates 1 - 2^(-5 - h) of retention (DPLRCASE-3)."""
    heads = 1.0 - 0.5 ** (5.0 + np.arange(v.shape[-3] if len(v.shape) > 2 else 1))
    each = heads.astype(v.dtype) if len(v.shape) > 2 else heads.astype(v.dtype)[0]
    return ops.zeros_like(v, shape=v.shape[:-2]) + each


def _after_token(hook: Hook, t: int, gate: Array, M: Array, S: Array) -> tuple[Array, Array]:
    """The memory after a token, and its momentum where it has one."""
    settings = hook.context.settings
    if settings.of.second == "S":
        return momentum.after_token(hook, t, gate, M, S)
    for j in range(t * settings.steps, (t + 1) * settings.steps):
        M = _after_row(hook, j, gate, M)
    return M, S


def _after_row(hook: Hook, j: int, gate: Array, M: Array) -> Array:
    """The memory after one erase and write, which the first of a token decays before (DPLR-2 to DPLR-4)."""
    context, (t, step) = hook.context, divmod(j, hook.context.settings.steps)
    rest = M if step else hook.point("rest/M", t, same, M)
    if hook.mask[t] is False:
        return hook.write("M", j, rest, same)
    k, before = context.entry(j, WRITTEN), M
    if step:
        before = hook.point("later", t, same, M)
    elif gate is not None:
        before = hook("decayed", j, decay, M, gate)
    of = M if context.settings.order == "after_error" else before
    if context.settings.of.erase == "error":
        arguments = (before, None, None, None, _change(hook, j, of), k)
    else:
        v = _value(hook, j)
        arguments = (before, *_erase(hook, j, of), v, k)
    return hook.write("M", j, rest, partial(write, context), *arguments)


def write(
    context: DplrContext, M: Array, found: Array, write: Array, scale: Array, added: Array, k: Array
) -> Array:
    """M - diag(e) found b^T + added k^T, where something is erased (DPLR-2, DPLR-18)."""
    M = M if found is None else erase_row(context, M, found, write, scale)
    return plus(context, M, added, k)


def _value(hook: Hook, j: int) -> Array:
    """The value that a row writes."""
    v = hook.context.row(j, "v")
    if hook.context.settings.of.erase != "gates":
        return v
    return hook("value", j, lambda v, g: g * v, v, hook.context.row(j, "write_gate"))


def _change(hook: Hook, j: int, of: Array) -> Array:
    """What a row with a step size adds along its key, beta (v - found) (DPLR-8)."""
    context = hook.context
    v, rate = context.row(j, "v"), context.row(j, "beta")
    read = hook("erase_read", j, same, context.entry(j, context.settings.of.read))
    found = hook("found", j, partial(found_in, context), of, read)
    return hook("change", j, _beta_of, found, v, rate)


def _beta_of(found: Array, v: Array, rate: Array) -> Array:
    """beta (v - found)."""
    return of_rows(rate, v) * (v - found)


def _erase(hook: Hook, j: int, of: Array) -> tuple[Array, Array, Array]:
    """What the erase of a row finds, along which vector it takes that away, and factors of rows.

    Each is None where there is none; vectors are those of the member (DPLR-8).
    """
    context, kind = hook.context, hook.context.settings.of.erase

    def row(name: str) -> Array:
        return context.row(j, name)

    scale = row("erase_scale") if context.has("erase_scale") else None
    if kind == "gates":
        k = context.entry(j, WRITTEN)
        key, gate = row("k"), row("erase_gate")
        read = hook("erase_read", j, lambda gate, key: gate * key, gate, key)
        write = hook("erase_write", j, same, k)
    elif kind == "alpha":
        read = hook("erase_read", j, lambda x: -x, row("alpha"))
        write = hook("erase_write", j, same, row("beta"))
    elif kind == "kk":
        kk, rate = row("kk"), row("a")
        read = hook("erase_read", j, same, kk)
        write = hook("erase_write", j, lambda kk, rate: kk * rate, kk, rate)
    elif context.has("erase_read"):
        read = hook("erase_read", j, same, row("erase_read"))
        write = hook("erase_write", j, same, row("erase_write"))
    else:
        return None, None, None
    return hook("found", j, partial(found_in, context), of, read), write, scale


def _read(
    hook: Hook, t: int, gate: Array, before: tuple[Array, Array], M: Array, divisor: Array
) -> Array:
    """The read of a token (DPLR-5, DPLR-19), which may be masked (DPLRCASE-28).

    Args:
        before: memory and momentum that the token found.
        M: the memory after it.
    """
    context, writes = hook.context, hook.mask[t]
    arguments, compute = _read_arguments(hook, t, before[0], M, divisor), partial(_one, hook, t, M)
    if context.settings.masked_read == "memory" or writes is True:
        return hook("y", t, partial(_divide, compute), *arguments)
    others: Sequence[Array] = ()
    if context.settings.masked_read == "zero":
        shape = (*context.inputs["in/q"].shape[:-2], context.inputs["in/v"].shape[-1])
        other = ops.zeros_like(context.inputs["in/v"], shape=shape)
    else:
        alone, others = hook.alone(), _write_arguments(hook, t, gate, before)
        after, _ = _after_token(alone, t, gate, *before)
        asked = _read_arguments(alone, t, before[0], after, None)
        other = alone("y", t, partial(_divide, partial(_one, alone, t, after)), *asked)

    def read_under_mask(*each: Array) -> Array:
        return select(writes, lambda: compute(*each), other)

    return hook("y", t, partial(_divide, read_under_mask), *arguments, *others)


def _read_arguments(
    hook: Hook, t: int, before: Array, M: Array, divisor: Array
) -> tuple[Array, ...]:
    """Arguments of a read: a memory, the query, a divisor, and what a bonus is with."""
    context, q = hook.context, hook.context.row(t, "q")
    if not context.has("bonus"):
        return (M, q, divisor, None, None, None)
    if hook.mask[t] is False:  # M_{t-1} alone
        return (context.label(M, ("M",), t - 1), q, divisor, None, None, None)
    bonus = context.label(context.inputs["in/bonus"], ("in/bonus",), t)
    return (before, q, divisor, bonus, context.row(t, "v"), context.entry(t, WRITTEN))


def _divide(read: Callable[..., Array], M: Array, q: Array, divisor: Array, *rest: Array) -> Array:
    """A read over its divisor, where it has one (DPLR-19)."""
    y = read(M, q, *rest)
    return y if divisor is None else y / divisor[..., None]


def _one(
    hook: Hook, t: int, after: Array, M: Array, q: Array, bonus: Array, v: Array, k: Array, *_: Any
) -> Array:
    """s M q, with a bonus s (M + v (u k)^T) q, where the token is active (DPLR-5)."""
    context = hook.context
    if bonus is not None:
        pair = partial(plus, context, M, v, bonus * k)
        M = select(hook.mask[t], pair, after)
    if context.settings.query_groups > 1:
        heads = context.settings.states(q.shape[-2])
        M = ops.index(M, (..., heads, slice(None), slice(None)))
    y = context.arithmetic.matmul(M, q[..., None])[..., 0]
    if context.settings.scale == 1:
        return y
    root = np.sqrt(M.shape[-1]).astype(q.dtype)
    return hook.point("scale", t, lambda y, root, *_: y / root, y, root, M, q)


def _write_arguments(
    hook: Hook, t: int, gate: Array, before: tuple[Array, Array]
) -> tuple[Array, ...]:
    """What a token's write is made of, where somebody asks (DPLRCASE-28)."""
    context, steps = hook.context, hook.context.settings.steps
    if context.label is no_label:
        return ()
    seconds = [hook.before[name] for name in "Az" if name in hook.before]
    keys = ["in/k"] if context.settings.norm("in/k") == "l2" else []
    rest = axes_of(context.inputs).keys() - {"in/active", "in/reset", "in/y_bar", *keys, *TOKENS}
    names = [*keys, *sorted(name for name in rest if name.startswith("in/"))]
    rows = [context.entry(j, n) for n in names for j in range(t * steps, (t + 1) * steps)]
    return (*before, *seconds, gate, *rows)
