"""A group of chunks by compiled code, where nothing that it computes must last.

Each thread takes its memories. A result that is not finite is computed again in NumPy, which says what it has to say about it.
Specified in specs/exact.md (EXACT-2, EXACT-6) and specs/chunkwise.md (CHUNK-6 to CHUNK-8).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from atlas_ref import compiled
from atlas_ref.parallel.group import Arrays, End, Layout
from atlas_ref.parallel.joins import Joins
from atlas_ref.parallel.stacked_known import older
from atlas_ref.scratch import scratch
from atlas_ref.threads import in_threads
from atlas_ref.types import Array

#: Multiply-adds of scores from which on it is worth loading compiled code, which takes a second once a process.
WORK = 2**23
#: Rows and columns up to which a chunk and its state stay in the cache; beyond them the BLAS is as fast.
LARGEST = 256


def takes(layout: Layout, given: Arrays) -> bool:
    """Whether a group is one of these: reads of the running memory, one gate a token, no window to solve for; enough, not too large."""
    if layout.read not in ("after", "before") or (layout.solved and layout.window > 1):
        return False
    B, n, d = given.queries.shape
    if max(layout.columns, d, given.values.shape[-1]) > LARGEST:
        return False
    one_gate = all(x is None or x.shape[-1] == 1 for x in (given.retain, given.momentum, given.rate_in, given.rate_out))
    enough = B * n * layout.columns * (d + given.values.shape[-1]) >= WORK
    return one_gate and enough and compiled.available_for(*(x for x in given if x is not None))


def run(layout: Layout, given: Arrays, joins: Joins, shares: Sequence[slice], y: Array) -> End | None:
    """Run a group; its reads go into y (B, n, o) (EXACT-2, EXACT-6, CHUNK-6 to CHUNK-8).

    Args:
        joins: arrays of `given` that are still to be filled.
        shares: memories that one thread takes.

    Returns:
        The end of the group; None where a result is not finite or Numba cannot be used, and then y holds nothing of use.
    """
    walk, has_momentum = compiled.walk_for(given.queries.dtype), given.momentum is not None
    if walk is None:
        return None
    gates, enters, refresh = _gates(given), _enters(given), _refresh(layout)
    M = _turned(given.M)
    S = _turned(given.S) if has_momentum else M
    reference = _turned(given.reference) if layout.keeps_reference else np.zeros_like(M)
    arrivals = _arrivals(given) if layout.carry else reference  # which is then not looked at
    from_before = older(layout, 0) if layout.carry else 0
    fixed = (layout.chunk, from_before, has_momentum, layout.solved, layout.before_error, layout.carry, layout.read == "after")

    def some(memories: slice) -> bool:
        joins.fill(memories)
        for b in range(memories.start, memories.stop):
            rows = (np.ascontiguousarray(x[b]) for x in (given.keys, given.values, given.queries))
            walk(*rows, gates[b], enters[b], refresh, M[b], S[b], reference[b], arrivals[b], *fixed, y[b])
        return all(bool(np.isfinite(x[memories]).all()) for x in (M, S, y))

    if not all(in_threads([partial(some, memories) for memories in shares])):
        return None
    return End(
        M=_turned(M),
        S=_turned(S) if has_momentum else None,
        reference=_turned(reference) if layout.keeps_reference else None,
        residuals=-arrivals[:, -layout.window :] if layout.carry else None,
    )


def _turned(states: Array) -> Array:
    """Transposed, in memory of their own."""
    turned: Array = states.swapaxes(-1, -2).copy()
    return turned


def _gates(given: Arrays) -> Array:
    """(B, 3, n): retain, momentum, what of it enters the memory."""
    momentum = np.zeros_like(given.retain) if given.momentum is None else given.momentum
    return np.ascontiguousarray(np.stack([x[..., 0] for x in (given.retain, momentum, given.rate_out)], axis=1))


def _enters(given: Arrays) -> Array:
    """(B, n, c): what enters the momentum of the residual at each place of the window, the oldest first."""
    return np.ascontiguousarray(given.rate_in * given.weights[..., ::-1])


def _arrivals(given: Arrays) -> Array:
    """(B, h + n, o): minus the residuals of the history, and room for those to come."""
    B, h, o = given.residuals.shape
    arrivals = scratch.empty((B, h + given.queries.shape[1], o), given.values)
    np.negative(given.residuals, out=arrivals[:, :h])
    return arrivals


def _refresh(layout: Layout) -> Array:
    """For each chunk, whether the reference becomes the memory before it."""
    return np.array(layout.refresh) & layout.keeps_reference
