"""Keys and queries before the loop of rule dplr, in any legal arithmetic (TOL-3).

Norms (DPLRCASE-2), preconditioned keys (DPLR-20) and groups of heads (DPLR-6), written from the
clauses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.context import DplrContext
from atlas_ref.oracle.dplr.members import WRITTEN
from atlas_ref.oracle.program.context import select
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.types import Array
from tape import ops

#: Name of the keys without their norm, which are no tensor of a case of their own.
BARE = "bare key"

#: The log that A has where a key stays as it is.
CENTRE = -0.2


def prepare(hook: Hook) -> tuple[Hook, dict[str, Array]]:
    """The hook on keys and queries of value heads, and a state beside the memory after the last token."""
    context, after = _norm(hook), dict[str, Array]()
    tensors = dict(context.inputs)
    tensors["in/k"] = hook.point("keys", 0, same, tensors["in/k"])
    tensors |= {BARE: hook.context.inputs["in/k"], WRITTEN: tensors["in/k"]}
    sources = {**context.sources, WRITTEN: context.sources.get("in/k", ("in/k",))}
    hook = replace(hook, context=context._replace(inputs=tensors, sources=sources))
    if context.settings.of.second == "A":
        tensors[WRITTEN], after["A"] = _precondition(hook)
        sources[WRITTEN] = ("written_key",)
    queries = ("in/q",) if context.settings.query_groups == 1 else ()
    if context.settings.groups > 1:
        for name in ("in/k", *queries, WRITTEN):
            tensors[name] = spread(hook, tensors[name], -3)
    return hook, after


def spread(hook: Hook, z: Array, axis: int) -> Array:
    """Key heads as value heads, along an axis of heads (DPLR-6, DPLRCASE-26)."""
    settings = hook.context.settings
    heads = settings.key_heads(z.shape[axis] * settings.groups)
    return hook.point("spread", 0, partial(of_heads, axis), z, heads)


def of_heads(axis: int, z: Array, heads: Any) -> Array:
    """The head that each of several has."""
    behind = (slice(None),) * (-axis - 1)
    return ops.stack([z[(..., int(head), *behind)] for head in heads], axis=axis)


def _norm(hook: Hook) -> DplrContext:
    """Keys and queries under their norm, row by row through the hook."""
    context: DplrContext = hook.context
    tensors, sources = dict(context.inputs), dict[str, Any]()
    for name in ("in/k", "in/q"):
        if context.settings.norm(name) != "l2":
            continue
        x, rows = context.inputs[name], []
        compute = partial(_length, context)
        z = x / hook.point("length", 0, compute, x, context.settings.norm_eps, 0.0)
        for i in range(z.shape[-2]):
            row = context.label(z[..., i, :], (name,), None)
            rows.append(hook(name[3:], i, same, row))
        tensors[name], sources[name] = ops.stack(rows, axis=-2), (name[3:],)
    return context._replace(inputs=tensors, sources={**context.sources, **sources})


def _length(context: DplrContext, z: Array, inside: float, outside: float) -> Array:
    """The length of keys or queries, with eps under the root, or a floor (DPLRCASE-3)."""
    square = context.arithmetic.matmul(z[..., None, :], z[..., :, None])[..., 0]
    touch, floor = context.rounding.touch, context.settings.of.floor
    if not floor:
        return touch(ops.sqrt(square + inside) + outside)
    short = ops.less(square, floor**2)
    return ops.where(short, floor, touch(ops.sqrt(ops.where(short, 1.0, square))))


def _precondition(hook: Hook) -> tuple[Array, Array]:
    """Each key under the running sum of squares, and the sum after the last token (DPLR-20)."""
    context, written = hook.context, []
    A = first = context.first("A")
    for t in range(context.tokens):
        A = before = hook.start("A", t, A, first)
        key, writes = context.row(t, "k"), hook.mask[t]
        weights = [context.row(t, name) for name in ("log_retain_precond", "beta_precond")]
        sums = (before, key, *weights)
        A = hook.write("A", t, before, partial(_sum_squares, context), *sums)
        as_if = None
        if context.settings.masked_read == "written" and writes is not True:
            as_if = _sum_squares(context, *sums)
        written.append(hook("written_key", t, partial(_written_key, hook, t, as_if), A, key))
    return ops.stack(written, axis=-2), A


def _sum_squares(context: DplrContext, A: Array, key: Array, log: Array, weight: Array) -> Array:
    """g A + h k^2."""
    gate = context.rounding.touch(ops.exp(log))[..., None]
    return context.arithmetic.scaled_sum(gate, A, weight[..., None] * (key * key))


def _written_key(hook: Hook, t: int, as_if: Array, A: Array, key: Array) -> Array:
    """A key times 1.5 to the power of its channel's share of use.

    Args:
        as_if: the sum along which a masked token is read as if it had been written, or None.
    """
    A = A if as_if is None else select(hook.mask[t], partial(same, A), as_if)
    return key * hook.point("factor", t, partial(_factor, hook.context), A, CENTRE)


def _factor(context: DplrContext, A: Array, centre: float) -> Array:
    """1.5^(-r / (1 + |r|)) with r = log(A + 10^-6) less its centre."""
    r = context.rounding.touch(ops.log(A + np.asarray(1e-6, A.dtype)))
    r = r - np.asarray(centre, r.dtype)
    size = ops.where(ops.less(r, 0.0), -r, r)
    power = r / (1.0 + size) * np.asarray(np.log(1.5), r.dtype)
    return context.rounding.touch(ops.exp(-power))
