"""Gates as a kernel has them that cumulates their logs over a chunk (DPLRCASE-15).

    G_t = g_first + ... + g_t,      w_t = exp(G_t - G_{t-1})

A product of these gates is exp(G_i - G_j), which is what such a kernel multiplies with: the loop
over them has the errors of its logs, in every result and norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.parameters import Parameters
from atlas_ref.oracle.dplr.program import Inputs, as_it_is, chosen, writers
from atlas_ref.types import Array
from tape import ops

NAMES = ("in/log_retain", "in/retain")


def with_cumulated(own: Parameters, x: dict[str, Array], rounding: Any) -> dict[str, Array]:
    """The inputs with such gates, where the case declares them and arithmetic is float32.

    In float64, the truth, a gate stays what it is.
    """
    name = next((each for each in NAMES if each in x), "")
    if own.log_chunk is None or not name or x["in/v"].dtype == np.float64:
        return x
    rows = len(x[name].shape) == len(x["in/v"].shape)
    logs = x[name] if name == NAMES[0] else rounding.touch(ops.log(x[name]))
    gates = list(_gates(own.log_chunk, x, logs, rows, rounding))
    others = {each: value for each, value in x.items() if each not in NAMES}
    return {**others, "in/retain": ops.stack(gates, axis=-2 if rows else -1)}


def _gates(chunk: int, x: Inputs, logs: Array, rows: bool, rounding: Any) -> Iterator[Array]:
    """The gate of each token; a silent one has a log of 0."""
    first, total, before = 0, None, None
    for t in range(logs.shape[-2 if rows else -1]):
        if "in/reset" in x and x["in/reset"][t]:
            first = t
        if (t - first) % chunk == 0:
            total = before = None
        g = logs[..., t, :] if rows else logs[..., t]
        g = chosen(writers(x, t), partial(as_it_is, g), 0 * g)
        total = g if total is None else total + g
        seen = rounding.touch(total)  # whose sum others round in another order
        yield ops.exp(seen if before is None else seen - before)
        before = seen
