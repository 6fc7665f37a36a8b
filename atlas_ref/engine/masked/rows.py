"""Rows of coefficients spread over the columns of a group, and products with them.

Plain twins: `_rows` and `_running_set` of `atlas_ref.forms.chunked_plain`.
"""

from __future__ import annotations

import numpy as np

from atlas_ref.backend import as_strided
from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.group.coefficients import GateRows
from atlas_ref.engine.group.layout import Layout
from atlas_ref.types import Array


def transposed(x: Array) -> Array:
    return x.swapaxes(-1, -2).copy()


def spread(layout: Layout, rows: Array) -> Array:
    """Columns (B, g, K, x) of each chunk from rows (B, h + n, x): a view where windows overlap."""
    C, c = layout.chunk, layout.window
    B, length, x = rows.shape
    g = (length - c + 1) // C
    across, down, right = rows.strides
    if layout.stride == 1:
        return as_strided(rows, (B, g, layout.columns, x), (across, C * down, down, right))
    windows = as_strided(rows, (B, g, C, c, x), (across, C * down, down, down, right))
    return windows.reshape(B, g, C * c, x)


def spread_transposed(layout: Layout, rows: Array) -> Array:
    """Columns (B, g, x, K), contiguous along K, on which matrix products are fastest."""
    return scratch.transposed(spread(layout, rows))


def gathered(layout: Layout, columns: Array, rows: Array) -> None:
    """Add columns (B, g, K, x) into their rows (B, h + n, x), the transpose of `spread`."""
    C, c = layout.chunk, layout.window
    B, g, _, x = columns.shape
    h, n = c - 1, g * C
    if layout.stride != 1:
        each = columns.reshape(B, n, c, x)
        for place in range(c):
            rows[:, place : place + n] += each[:, :, place]
        return
    rows[:, h:] += columns[:, :, h:].reshape(B, n, x)
    if h <= C:
        rows[:, :n].reshape(B, g, C, x)[:, :, :h] += columns[:, :, :h]
        return
    for k in range(g):
        rows[:, k * C : k * C + h] += columns[:, k, :h]


def read_rows(layout: Layout, D: Array) -> Array:
    """Coefficients of the read of each token, (B, g, G, C, bases + K)."""
    return np.moveaxis(D[1:] if layout.read == "after" else D[:-1], 0, -2)


def before_rows(layout: Layout, gates: GateRows, D: Array) -> Array:
    """Coefficients of the memory of each column's residual, (B, g, G, K, bases + K) (EXACT-1)."""
    rows = D[:-1] * gates.retain[..., None] if layout.before_error else D[:-1]
    rows = np.moveaxis(rows, 0, -2)
    return rows if layout.stride == 1 else np.repeat(rows, layout.window, axis=-2)


def factor(coefficients: Array) -> Array:
    """Coefficients (..., G, rows) as factors (..., rows, G) of arrays with o columns."""
    return coefficients.swapaxes(-1, -2)


def mix(A: Array, E: Array, out: Array = None) -> Array:
    """A (..., G, C, K) times E (..., K, o): one matrix for all columns, or one for each."""
    if A.shape[-3] == 1:
        return (
            scratch.product(A[..., 0, :, :], E)
            if out is None
            else np.matmul(A[..., 0, :, :], E, out=out)
        )
    found = scratch.product(A, scratch.transposed(E)[..., None])[..., 0].swapaxes(-1, -2)
    if out is None:
        return found
    out[...] = found
    return out


def spread_out(g: Array, factors: Array) -> Array:
    """[c g | f g] (..., rows, bases o) from g (..., rows, o) and factors (..., rows, G, bases)."""
    o, bases = g.shape[-1], factors.shape[-1]
    both = scratch.empty((*g.shape[:-1], bases * o), g)
    np.multiply(g, factors[..., 0], out=both[..., :o])
    if bases == 2:
        np.multiply(g, -factors[..., 1], out=both[..., o:])
    return both


def factor_cotangents(g: Array, both: Array, out: Array) -> None:
    """Add the cotangents of the factors of M_0 and of -S_0 into (..., rows, G, bases)."""
    o = g.shape[-1]
    for base in range(out.shape[-1]):
        part = both[..., base * o : base * o + o]
        each = g * part if out.shape[-2] == o else row_dots(g, part)[..., None]
        out[..., base] += each if base == 0 else -each


def against(g: Array, E: Array, G: int) -> Array:
    """Cotangent (..., G, C, K) of A in A E, from g (..., C, o)."""
    if G == 1:
        return scratch.product(g, scratch.transposed(E))[..., None, :, :]
    return scratch.times(g.swapaxes(-1, -2)[..., :, None], E.swapaxes(-1, -2)[..., None, :])


def row_dots(a: Array, b: Array) -> Array:
    """Sums of products along the last axis."""
    return np.einsum("...i,...i->...", a, b)
