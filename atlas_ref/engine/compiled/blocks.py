"""Arrays as the compiled loops over tokens take them, in blocks of columns; plain twin:
`atlas_ref.forms.chunked_plain`.

Specified in specs/exact.md (EXACT-21).
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend.compiled import LANES_BYTES, SUM_BYTES
from atlas_ref.types import Array


def read_only(x: Array) -> Array:
    """A read-only array of rows one after the other, as the loop was compiled for."""
    rows = np.require(x, requirements=("C", "A")).view()
    rows.flags.writeable = False
    return rows


def padded(x: Array, multiple: int) -> Array:
    """Zeros behind the last axis, up to a multiple."""
    more = -x.shape[-1] % multiple
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, more)]) if more else x


def rows_of_blocks(x: Array) -> Array:
    """(B, n, o) as rows of blocks (B, n blocks, lanes)."""
    lanes = LANES_BYTES // x.itemsize
    x = padded(x, lanes)
    return x.reshape(len(x), x.shape[1] * (x.shape[2] // lanes), lanes)


def rows_back(rows: Array, n: int, o: int) -> Array:
    x = rows.reshape(len(rows), n, rows.shape[1] // n * rows.shape[2])
    return x if x.shape[-1] == o else np.ascontiguousarray(x[..., :o])


def states_of_blocks(x: Array) -> Array:
    """States (B, o, d) transposed, by block of columns (B, blocks, d, lanes); a copy."""
    if x is None:
        return None
    lanes, rows = LANES_BYTES // x.itemsize, SUM_BYTES // x.itemsize
    B, o, d = x.shape
    states = np.zeros((B, -(-o // lanes) * lanes, d + -d % rows), x.dtype)
    states[:, :o, :d] = x
    blocks = states.reshape(B, -1, lanes, states.shape[-1])
    return np.ascontiguousarray(blocks.swapaxes(-1, -2))


def states_back(states: Array, d: int, o: int) -> Array:
    B, blocks, rows, lanes = states.shape
    x = states.swapaxes(-1, -2).reshape(B, blocks * lanes, rows)
    return np.ascontiguousarray(x[:, :o, :d])
