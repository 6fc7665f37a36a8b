"""Gates as a kernel has them that cumulates their logs over a chunk (DPLRCASE-15).

    G_t = g_first + ... + g_t,      w_t = exp(G_t - G_{t-1})

A product of these gates is exp(G_i - G_j), which is what such a kernel multiplies with: the loop
over them has the errors of its logs, in every result and norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from atlas_ref.oracle.dplr.context import Context, chosen, same
from atlas_ref.types import Array
from tape import ops

NAMES = ("in/log_retain", "in/retain")


def with_cumulated(context: Context) -> Context:
    """The context with such gates, where the case declares them and arithmetic is float32.

    In float64, the truth, a gate stays what it is.
    """
    x, v = context.tensors, context.tensors["in/v"]
    name = next((each for each in NAMES if each in x), "")
    chunk = context.params.log_chunk
    if chunk is None or not name or v.dtype == np.float64:
        return context
    rows = len(x[name].shape) == len(v.shape)
    logs = x[name] if name == NAMES[0] else context.rounding.touch(ops.log(x[name]))
    gates = ops.stack(list(_gates(context, chunk, logs, rows)), axis=-2 if rows else -1)
    others = {each: value for each, value in x.items() if each not in NAMES}
    return context._replace(tensors={**others, "in/retain": gates})


def _gates(context: Context, chunk: int, logs: Array, rows: bool) -> Iterator[Array]:
    """The gate of each token; a silent one has a log of 0."""
    first, total, before, mask = 0, None, None, context.mask()
    for t in range(logs.shape[-2 if rows else -1]):
        if context.starts(t):
            first = t
        if (t - first) % chunk == 0:
            total = before = None
        g = logs[..., t, :] if rows else logs[..., t]
        g = chosen(mask[t], partial(same, g), 0 * g)
        total = g if total is None else total + g
        seen = context.rounding.touch(total)  # whose sum others round in another order
        yield ops.exp(seen if before is None else seen - before)
        before = seen
