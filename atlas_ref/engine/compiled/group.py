"""A group of chunks by compiled code, without residuals for backward; plain twin:
`atlas_ref.forms.chunked_plain`.

Each thread runs its memories. A result that is not finite is recomputed in NumPy, which warns of
it. Specified in specs/chunkwise.md (CHUNK-6 to CHUNK-8).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.scratch import scratch
from atlas_ref.backend.threads import in_threads
from atlas_ref.engine.group.layout import Arrays, End, Layout
from atlas_ref.types import Array

#: Multiply-adds of scores from which on it is worth loading compiled code, which takes a second
#: once a process.
WORK = 2**23
#: Rows and columns up to which a chunk and its state stay in the cache; beyond them the BLAS is as
#: fast.
LARGEST = 256


def takes(layout: Layout, inputs: Arrays) -> bool:
    """Whether a group fits: a reference that is known, reads of the memory, one gate a token, a
    fair size.
    """
    if layout.read not in ("after", "before") or layout.running:
        return False
    B, n, d = inputs.queries.shape
    if max(layout.columns, d, inputs.values.shape[-1]) > LARGEST:
        return False
    one_gate = all(
        x is None or x.shape[-1] == 1
        for x in (inputs.retain, inputs.momentum, inputs.rate_in, inputs.rate_out)
    )
    enough = B * n * layout.columns * (d + inputs.values.shape[-1]) >= WORK
    return one_gate and enough and compiled.available_for(*(x for x in inputs if x is not None))


def run(layout: Layout, inputs: Arrays, partition: Sequence[slice], y: Array) -> End | None:
    """Run a group; its reads go into y (B, n, o) (CHUNK-6 to CHUNK-8).

    Args:
        partition: memories of each thread.

    Returns:
        The end of the group; None where a result is not finite or Numba cannot be used, and then y
        is undefined.
    """
    loop = compiled.loop("atlas_ref.engine.compiled.chunks", inputs.queries.dtype)
    has_momentum = inputs.momentum is not None
    if loop is None:
        return None
    gates, enters, refresh = _gates(inputs), _enters(inputs), _refresh(layout)
    M = _transposed(inputs.M)
    S = _transposed(inputs.S) if has_momentum else M
    reference = _transposed(inputs.reference) if layout.keeps_reference else np.zeros_like(M)
    arrivals = _arrivals(inputs) if layout.carry else reference  # which is then not looked at
    from_before = layout.older(0) if layout.carry else 0
    fixed = (
        layout.chunk,
        from_before,
        has_momentum,
        layout.carry,
        layout.read == "after",
    )

    def of_thread(memories: slice) -> bool:
        for b in range(memories.start, memories.stop):
            rows = (
                np.ascontiguousarray(x[b]) for x in (inputs.keys, inputs.values, inputs.queries)
            )
            loop(
                *rows,
                gates[b],
                enters[b],
                refresh,
                M[b],
                S[b],
                reference[b],
                arrivals[b],
                *fixed,
                y[b],
            )
        return all(bool(np.isfinite(x[memories]).all()) for x in (M, S, y))

    if not all(in_threads([partial(of_thread, memories) for memories in partition])):
        return None
    return End(
        M=_transposed(M),
        S=_transposed(S) if has_momentum else None,
        reference=_transposed(reference) if layout.keeps_reference else None,
        residuals=-arrivals[:, -layout.window :] if layout.carry else None,
    )


def _transposed(states: Array) -> Array:
    """The transposes, contiguous."""
    transposed: Array = states.swapaxes(-1, -2).copy()
    return transposed


def _gates(inputs: Arrays) -> Array:
    """(B, 3, n): retain, momentum, rate_out."""
    momentum = np.zeros_like(inputs.retain) if inputs.momentum is None else inputs.momentum
    return np.ascontiguousarray(
        np.stack([x[..., 0] for x in (inputs.retain, momentum, inputs.rate_out)], axis=1)
    )


def _enters(inputs: Arrays) -> Array:
    """(B, n, c): weights times rate_in at each place of the window, the oldest first."""
    return np.ascontiguousarray(inputs.rate_in * inputs.weights[..., ::-1])


def _arrivals(inputs: Arrays) -> Array:
    """An array (B, h + n, o): minus the residuals of the history, then room for those of tokens."""
    B, h, o = inputs.residuals.shape
    arrivals = scratch.empty((B, h + inputs.queries.shape[1], o), inputs.values)
    np.negative(inputs.residuals, out=arrivals[:, :h])
    return arrivals


def _refresh(layout: Layout) -> Array:
    """For each chunk, whether the reference becomes the memory before it."""
    return np.array(layout.refresh) & layout.keeps_reference
