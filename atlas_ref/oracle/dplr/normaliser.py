"""The divisors of normalised reads as a plain loop in any legal arithmetic (DPLR-19, TOL-3).

Written from the clause; it shares no code with `rules.normalised_reads`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr.program import Inputs, Program, as_it_is, chosen, writers
from atlas_ref.types import Array
from tape import ops

#: What is added to every divisor, a number of its own like the scale of a query.
EPS = 1e-10


class Divisors(NamedTuple):
    """A divisor of each token's read, (..., 1), and the sum of keys after the last token."""

    each: list[Array]
    z: Array


def divisors(p: Program, x: Inputs, inputs: Inputs, rounding: Any) -> Divisors:
    """What every read is divided by (DPLR-19).

    Args:
        x: keys and queries of value heads, under their norms.
        inputs: with the tokens that are active, and resets.
    """
    v, k, n = x["in/v"], x["in/k"], p.own.steps
    first = ops.zeros_like(v, shape=(*v.shape[:-2], k.shape[-1]))
    if "in/z0" in x and not p.sum_from_zero:
        first = x["in/z0"]
    z, found = first, []
    for t in range(x["in/q"].shape[-2]):
        if "in/reset" in inputs and inputs["in/reset"][t]:
            z = ops.zeros_like(first) if p.reset_to_zero else first
        z = ops.stop_gradient(z) if p.held == "memory" and t else z
        before = z
        writes, as_if = writers(inputs, t), z
        for j in range(t * n, (t + 1) * n):
            store = p.store(x, t, rounding) if (j + 1) % n == 0 else as_it_is
            as_if = as_if + k[..., j, :]
            z = p.row("z", j, partial(_added, z, k[..., j, :], writes, store))
        seen = before if "before" in (p.normaliser, p.reads) else z
        if p.own.masked_read == "written" and writes is not True:
            seen = chosen(writes, partial(as_it_is, seen), as_if)
        found.append(_divisor(p, x, t, seen, rounding))
    return Divisors(found, z)


def _added(z: Array, key: Array, writes: Any, store: Callable[[Array], Array]) -> Array:
    """The sum with one key more where the token is active, as it is stored."""
    return store(chosen(writes, lambda: z + key, z))


def _divisor(p: Program, x: Inputs, t: int, z: Array, rounding: Any) -> Array:
    """The scaled query's share of the sum, and eps."""

    if p.own.query_groups > 1:
        z = ops.index(z, (..., p.own.states(x["in/q"].shape[-3]), slice(None)))

    def compute() -> Array:
        share = rounding.way.matmul(z[..., None, :], x["in/q"][..., t, :, None])[..., 0, 0]
        if p.own.scale != 1 and p.normaliser != "bare":
            share = share / np.sqrt(z.shape[-1]).astype(share.dtype)
        return share + np.asarray(EPS, share.dtype)

    divisor = p.take("normaliser", t, compute)[..., None]
    if p.normaliser == "at least 1":
        divisor = ops.where(ops.less(divisor, 1.0), 1.0, divisor)
    return ops.stop_gradient(divisor) if p.held == "normaliser" else divisor
