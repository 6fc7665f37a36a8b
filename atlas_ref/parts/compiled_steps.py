"""The steps of Newton-Schulz on a group of matrices by compiled code; plain twin:
`atlas_ref.parts.newton_schulz.plain_newton_schulz`.

A result that is not finite is the caller's to compute again in NumPy, which warns of it. Specified
in specs/newton_schulz.md (NS-1, NS-20).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled.panels import Shape, room
from atlas_ref.backend.scratch import scratch
from atlas_ref.types import Array

MODULE = "atlas_ref.backend.compiled.newton_schulz"
#: Multiply-adds of a call from which on it is worth loading compiled code, which takes a second
#: once a process.
WORK = 2**24
#: Rows and columns beyond which the BLAS is as fast.
LARGEST = 256
#: Bytes of all that the steps of one matrix keep for their backward.
KEPT_BYTES = 2**26

Table = Sequence[tuple[float, float, float]]


def forward(X: Array, table: Table) -> Callable[[Array], Array] | None:
    """A function that runs all steps in place on a group of the matrices X (n, rows, columns).

    It returns the places of those whose result is not finite. None where NumPy is to compute.
    """
    loop, shapes, rows = _prepared("forward", X, table, 0)
    if loop is None:
        return None

    def steps(X: Array) -> Array:
        with scratch.frame():
            loop(X, rows, *(scratch.zeros(shape, X) for shape in shapes))
        return _not_finite(X)

    return steps


def backward(X: Array, table: Table, last: bool) -> Callable[[Array, Array], Array] | None:
    """A function that goes back through all steps in place, on a group of the matrices X and their
    cotangents D.

    Args:
        last: whether X is to end as the last iterate.

    Returns:
        As `forward`.
    """
    loop, shapes, rows = _prepared("backward", X, table, len(table))
    if loop is None:
        return None

    def steps(X: Array, D: Array) -> Array:
        with scratch.frame():
            loop(X, D, rows, last, *(scratch.zeros(shape, X) for shape in shapes))
        return _not_finite(D)

    return steps


def _prepared(
    way: str, X: Array, table: Table, kept: int
) -> tuple[Callable[..., None] | None, Sequence[Shape], Any]:
    """The compiled loop, shapes of its work space, and its table; None for the loop where NumPy is
    to compute.
    """
    count, rows, columns = X.shape
    work = count * len(table) * 3 * rows * rows * columns
    if work < WORK or max(rows, columns) > LARGEST or not compiled.available_for(X):
        return None, (), None
    shapes = room(rows, columns, X.dtype, kept)
    if kept and sum(map(math.prod, shapes)) * X.itemsize > KEPT_BYTES:
        return None, (), None
    return compiled.loop(MODULE, X.dtype, way), shapes, np.array(table, X.dtype)


def _not_finite(x: Array) -> Array:
    """Places of matrices with an infinity or a nan."""
    finite = np.isfinite(x)
    return () if finite.all() else np.flatnonzero(~finite.all(axis=(-2, -1)))
