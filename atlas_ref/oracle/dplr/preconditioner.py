"""Preconditioned keys as a plain loop in any legal arithmetic (DPLR-20, TOL-3).

Written from the clause; it shares no code with `rules.preconditioned_keys`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.dplr.program import Inputs, Program, as_it_is, chosen, writers
from atlas_ref.types import Array
from tape import ops


class Keys(NamedTuple):
    """Keys of key heads that pairs are written along, and A after the last token."""

    written: Array
    A: Array


def preconditioned(p: Program, x: Inputs, rounding: Any) -> Keys:
    """Each key under the running sum of squares (DPLR-20).

    Args:
        x: inputs, keys under their norm.
    """
    k = x["in/k"]
    first = x["in/A0"] if "in/A0" in x else ops.zeros_like(k, shape=(*k.shape[:-2], k.shape[-1]))
    A, written = first, []
    for t in range(k.shape[-2]):
        if "in/reset" in x and x["in/reset"][t]:
            A = ops.zeros_like(first) if p.reset_to_zero else first
        A = ops.stop_gradient(A) if p.held == "memory" and t else A
        before, key = A, k[..., t, :]
        moved = partial(_moved, x, t, A, key, rounding)
        writes = writers(x, t)
        after = partial(chosen, writes, moved, A)
        A = p.take("A", t, partial(_stored, p.store(x, t, rounding), after))
        seen = before if p.precond == "before" else A
        if p.own.masked_read == "written" and writes is not True:
            # the key of then, along which a masked token is read as if it had been written
            seen = chosen(writes, partial(as_it_is, seen), moved())
        written.append(p.take("written_key", t, partial(_scaled, p, key, seen, rounding)))
    return Keys(ops.stack(written, axis=-2), A)


def _moved(x: Inputs, t: int, A: Array, key: Array, rounding: Any) -> Array:
    """A after the squares of one key."""
    gate = rounding.touch(ops.exp(x["in/log_retain_precond"][..., t]))[..., None]
    return rounding.way.scaled_sum(gate, A, x["in/beta_precond"][..., t, None] * (key * key))


def _scaled(p: Program, key: Array, A: Array, rounding: Any) -> Array:
    """A key times 1.5 to the power of its channel's share of use."""
    if p.precond == "nothing":
        return key
    r = rounding.touch(ops.log(A + np.asarray(1e-6, A.dtype)))
    r = r if p.precond == "no centre" else r + np.asarray(0.2, r.dtype)
    size = ops.where(ops.less(r, 0.0), -r, r)
    power = r / (1.0 + size) * np.asarray(np.log(1.5), r.dtype)
    factor = rounding.touch(ops.exp(-power))
    return key * (ops.stop_gradient(factor) if p.held == "preconditioner" else factor)


def _stored(store: Callable[[Array], Array], compute: Callable[[], Array]) -> Array:
    """A state as it is stored."""
    return store(compute())
