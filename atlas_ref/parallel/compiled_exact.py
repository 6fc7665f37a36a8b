"""A group of chunks by the compiled exact form, where nothing that it computes must last.

Each thread takes its memories. What is not finite is computed again in NumPy, which says what it has to say about it.
Specified in specs/exact.md (EXACT-2, EXACT-6).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from atlas_ref import compiled
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.threads import in_threads
from atlas_ref.types import Array

#: Multiply-adds of scores from which on it is worth loading compiled code, which takes a second once a process.
WORK = 2**23


def takes(layout: Layout, given: Arrays) -> bool:
    """Whether a group is one of these: solved, one weight and one gate a token, reads of the running memory, and enough to do."""
    if not layout.solved or layout.window > 1 or layout.read not in ("after", "before"):
        return False
    B, n, d = given.queries.shape
    one_gate = all(x is None or x.shape[-1] == 1 for x in (given.retain, given.momentum, given.rate_in, given.rate_out))
    enough = B * n * layout.chunk * (d + given.values.shape[-1]) >= WORK
    return one_gate and enough and compiled.available_for(*(x for x in given if x is not None))


def run(layout: Layout, given: Arrays, shares: Sequence[slice], y: Array) -> End | None:
    """Run a group; its reads go into y (B, n, o) (EXACT-2, EXACT-6).

    Args:
        shares: memories that one thread takes.

    Returns:
        The end of the group; None where a result is not finite, and then y holds nothing of use.
    """
    from atlas_ref.compiled.exact import walk_for  # here, since Numba takes its time to load

    walk, gates, has_momentum = walk_for(given.queries.dtype), _gates(given), given.momentum is not None
    M = given.M.swapaxes(-1, -2).copy()
    S = given.S.swapaxes(-1, -2).copy() if has_momentum else M
    fixed = (layout.chunk, has_momentum, layout.before_error, layout.read == "after")

    def some(memories: slice) -> bool:
        for b in range(memories.start, memories.stop):
            rows = (np.ascontiguousarray(x[b]) for x in (given.keys, given.values, given.queries))
            walk(*rows, gates[b], M[b], S[b], *fixed, y[b])
        return all(bool(np.isfinite(x[memories]).all()) for x in (M, S, y))

    if not all(in_threads([partial(some, memories) for memories in shares])):
        return None
    return End(*(x.swapaxes(-1, -2).copy() for x in ((M, S) if has_momentum else (M,))))


def _gates(given: Arrays) -> Array:
    """(B, 4, n): retain, momentum, what enters it of a residual, what of it enters the memory."""
    enters = given.rate_in[..., 0] * given.weights[..., 0]
    momentum = np.zeros_like(enters) if given.momentum is None else given.momentum[..., 0]
    return np.ascontiguousarray(np.stack([given.retain[..., 0], momentum, enters, given.rate_out[..., 0]], axis=1))
