"""The divisors of normalised reads as a plain loop in any legal arithmetic (DPLR-19, TOL-3).

Written from the clause; it shares no code with `rules.normalised_reads`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from atlas_ref.oracle.program.context import select
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.types import Array
from tape import ops

#: What is added to every divisor, a number of its own like the scale of a query.
EPS = 1e-10


class Divisors(NamedTuple):
    """A divisor of each token's read, (...), and the sum of keys after the last token."""

    each: list[Array]
    z: Array


def divisors(hook: Hook) -> Divisors:
    """What every read is divided by (DPLR-19)."""
    context, n, found = hook.context, hook.context.settings.steps, []
    written = context.settings.masked_read == "written" and context.has_mask
    z = first = context.first("z")
    for t in range(context.tokens):
        z = before = as_if = hook.start("z", t, z, first)
        keys = [context.row(j, "k") for j in range(t * n, (t + 1) * n)]
        for j, key in enumerate(keys, t * n):
            as_if = as_if + key if written else as_if
            z = hook.write("z", j, z, _add, z, key)
        others = (before, *keys) if written else ()
        compute = partial(_divisor, hook, t, as_if if written else None)
        found.append(hook("normaliser", t, compute, z, *others, context.row(t, "q")))
    return Divisors(found, z)


def _add(z: Array, key: Array) -> Array:
    return z + key


def _divisor(hook: Hook, t: int, as_if: Array, z: Array, *others: Array) -> Array:
    """The scaled query's share of the sum, and eps.

    Args:
        as_if: the sum of a token as if it were written, None where masked tokens read no such thing.
        others: what that is made of, and the query.
    """
    context, q, writes = hook.context, others[-1], hook.mask[t]
    if as_if is not None and writes is not True:
        z = select(writes, partial(same, z), as_if)
    if context.settings.query_groups > 1:
        z = ops.index(z, (..., context.settings.states(q.shape[-2]), slice(None)))
    share = context.arithmetic.matmul(z[..., None, :], q[..., :, None])[..., 0, 0]
    if context.settings.scale != 1:
        root = np.sqrt(z.shape[-1]).astype(share.dtype)
        share = hook.point("share", t, ops.divide, share, root)
    return share + np.asarray(EPS, share.dtype)
