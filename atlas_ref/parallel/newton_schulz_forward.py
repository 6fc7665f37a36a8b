"""The value of a block of tokens with Newton-Schulz, in place: the same operations in the same order as in tape ops.

Matrices of a token lie next to each other for all memories, so that a step of a recurrence is one pass over memory that is
in order; windows are views; steps become momenta and updates become memories where they are. `chunkwise_newton_schulz`
has the same in tape ops, for derivatives and for what is not here. Specified in specs/chunkwise.md (CHUNK-18).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import as_strided, on_host
from atlas_ref.newton_schulz import NewtonSchulz, newton_schulz
from atlas_ref.scratch import scratch
from atlas_ref.types import Array


def takes(*arrays: Array) -> bool:
    """Whether all arrays are on the host and of one dtype: a complex step may have moved a few of them only."""
    present = [x for x in arrays if x is not None]
    return len({x.dtype for x in present}) == 1 and on_host(present[0])


def reads(
    tokens: tuple[Array, Array, Array],
    gates: tuple[Array, Array, Array, Array],
    weights: Array,
    M: Array,
    S: Array,
    reference: Array,
    *,
    read: str,
    settings: NewtonSchulz,
) -> tuple[Array, Array, Array]:
    """y (B, n, o), memory and momentum after a block, where a momentum sums the gradients of its window.

    Args:
        tokens: keys (B, h + n, d), values (B, h + n, o), queries (B, n, d).
        gates: retain, momentum, rate_in, rate_out (B, n, 1 or o).
        weights (B or 1, n, c).
        M, S (B, o, d).
        reference: that residuals refer to (B, o, d), None for the zero reference.
        read: "after" or "before".
    """
    keys, values, queries = tokens
    retain, momentum, rate_in, rate_out = (gate.swapaxes(0, 1)[..., None] for gate in gates)  # (n, B, 1 or o, 1)
    n, (B, o, d) = queries.shape[1], M.shape
    with scratch.frame():
        steps, room = scratch.empty((n, B, o, d), M), scratch.empty((B, o, d), M)
        _gradients(keys, values, weights, reference, out=steps.swapaxes(0, 1))
        np.multiply(rate_in, steps, out=steps)
        for t in range(n):
            np.multiply(momentum[t], S, out=room)
            S = np.add(room, steps[t], out=steps[t])
        updates = newton_schulz(steps, settings)
        np.multiply(rate_out, updates, out=updates)
        first = M
        for t in range(n):
            np.multiply(retain[t], M, out=room)
            M = np.subtract(room, updates[t], out=updates[t])
        y = np.empty_like(M, order="C", shape=(B, n, o))
        columns, rows = queries.swapaxes(0, 1)[..., None], y.swapaxes(0, 1)[..., None]
        if read == "after":
            np.matmul(updates, columns, out=rows)
        else:
            np.matmul(first, columns[0], out=rows[0])
            np.matmul(updates[:-1], columns[1:], out=rows[1:])
        return y, M.copy(), S.copy()


def _gradients(keys: Array, values: Array, weights: Array, reference: Array, *, out: Array) -> None:
    """g_t = sum_j weights[t,j] e_{t-j} phi_{t-j}^T (B, n, o, d) of every token."""
    error = -values if reference is None else np.matmul(keys, reference.swapaxes(-1, -2)) - values
    weighted = scratch.times(weights[..., ::-1, None], _windows(error, weights.shape[-1]))
    np.matmul(weighted.swapaxes(-1, -2), _windows(keys, weights.shape[-1]), out=out)


def _windows(rows: Array, c: int) -> Array:
    """Rows (B, h + n, x) as the window of each token (B, n, c, x), oldest first: a view."""
    B, length, x = rows.shape
    first, down, right = rows.strides
    return as_strided(rows, (B, length - c + 1, c, x), (first, down, down, right))
