"""The steps of Newton-Schulz, compiled, forward and backward; plain twin:
`atlas_ref.parts.newton_schulz.plain_newton_schulz`.

    A = X X^T,   B = b A + c A^2,   X <- a X + B X

A and B are symmetric, so half of their tiles are copies. All steps of a matrix run before the next
one begins, and what they keep for their backward stays in the cache. Specified in
specs/newton_schulz.md (NS-1, NS-20).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from atlas_ref.backend.compiled.lanes import compiled, on_disk
from atlas_ref.backend.compiled.products import (
    add_transpose,
    enter,
    leave,
    product,
    transpose,
)
from atlas_ref.types import Array


def compiled_for(kind: np.dtype[Any], way: str) -> Callable[..., None]:
    """The steps "forward" or "backward" for a dtype."""
    number = numba.from_dtype(kind)
    matrices, table = numba.types.Array(number, 3, "C"), numba.types.Array(number, 2, "C")
    panels = numba.types.Array(number, 4, "C")
    if way == "forward":
        return on_disk(forward, (matrices, table, panels, panels, panels))
    flag = numba.types.boolean
    return on_disk(backward, (matrices, matrices, table, flag, panels, panels, panels))


def forward(X: Array, table: Array, wide: Array, turned: Array, square: Array) -> None:
    """Run all steps in place (NS-1).

    Args:
        X (n, rows, columns): normalised matrices.
        table (steps, 3): a, b and c of each step.
        wide, turned, square: work space of the shapes of `atlas_ref.backend.compiled.panels.room`.
    """
    rows, columns = X.shape[1:]
    for i in range(len(X)):
        enter(X[i], wide[0])
        for s in range(len(table)):
            x, A, B = wide[s % 2], square[0], square[1]
            _operator(x, turned[0], table[s], rows, columns, A, B)
            _apply(x, table[s], rows, A, B, wide[(s + 1) % 2])
        leave(wide[len(table) % 2], X[i])


def backward(
    X: Array, D: Array, table: Array, last: bool, wide: Array, turned: Array, square: Array
) -> None:
    """Recompute all steps, and go back through them in place (NS-20).

        G = D X^T + X D^T,   D <- a D + B D + (b G + c (G A + A G)) X

    Args:
        X (n, rows, columns): normalised matrices; the last iterates after it where `last`.
        D (n, rows, columns): cotangent of the last iterate, then of the first.
        table (steps, 3): a, b and c of each step.
        wide, turned, square: work space of the shapes of `atlas_ref.backend.compiled.panels.room`.
    """
    rows, columns = X.shape[1:]
    steps = len(table)
    for i in range(len(X)):
        enter(X[i], wide[0])
        for s in range(steps):
            A, B = square[2 * s], square[2 * s + 1]
            _operator(wide[s], turned[0], table[s], rows, columns, A, B)
            if last or s + 1 < steps:
                _apply(wide[s], table[s], rows, A, B, wide[s + 1])
        if last:
            leave(wide[steps], X[i])
        enter(D[i], wide[steps + 1])
        for s in range(steps - 1, -1, -1):
            d, before = wide[steps + 1 + (steps - 1 - s) % 2], wide[steps + 1 + (steps - s) % 2]
            A, B = square[2 * s], square[2 * s + 1]
            G, H = square[2 * steps], square[2 * steps + 1]
            _apply(d, table[s], rows, A, B, before)
            _add_through_operator(wide[s], d, turned, table[s], rows, columns, A, G, H, before)
        leave(wide[steps + 1 + steps % 2], D[i])


@compiled
def _operator(
    x: Array, x_T: Array, row: Array, rows: int, columns: int, A: Array, B: Array
) -> None:
    """A = x x^T and B = b A + c A^2; without c only A."""
    one = row.dtype.type(1)
    transpose(x, x_T)
    product(one, x_T, x_T, columns, row.dtype.type(0), A, A, rows, True)
    if row[2] != 0:
        product(row[2], A, A, rows, row[1], A, B, rows, True)


@compiled
def _apply(x: Array, row: Array, rows: int, A: Array, B: Array, y: Array) -> None:
    """y = a x + B x; without c, B is b A."""
    cubic = row[2] == 0
    scale = row[1] if cubic else row.dtype.type(1)
    product(scale, A if cubic else B, x, rows, row[0], x, y, rows, False)


@compiled
def _add_through_operator(
    x: Array,
    d: Array,
    turned: Array,
    row: Array,
    rows: int,
    columns: int,
    A: Array,
    G: Array,
    H: Array,
    dx: Array,
) -> None:
    """Add what arrives through A.

    dx += (b G + c (G A + A G)) x with G = d x^T + x d^T, since only symmetric parts count
    """
    one = row.dtype.type(1)
    transpose(x, turned[0])
    transpose(d, turned[1])
    product(one, turned[1], turned[0], columns, row.dtype.type(0), G, G, rows, False)
    add_transpose(G)
    cubic = row[2] == 0
    if not cubic:
        product(row[2], G, A, rows, row[1] / 2, G, H, rows, False)
        add_transpose(H)
    scale = row[1] if cubic else one
    product(scale, G if cubic else H, x, rows, one, dx, dx, rows, False)
