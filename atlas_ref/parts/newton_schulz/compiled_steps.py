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
#: Rows and columns beyond which the BLAS shares one product out over processors, and is as fast.
LARGEST = 256
#: Bytes of all that the steps of one matrix keep for their backward.
KEPT_BYTES = 2**26

Table = Sequence[tuple[float, float, float]]
Steps = Callable[[slice], list[slice]]


def forward(X: Array, table: Table) -> Steps | None:
    """A function that runs all steps on a group of the matrices X (n, rows, columns).

    It works in place, and returns each whose result is not finite. None where NumPy is to compute.
    """
    loop, shapes, rows = _prepared("forward", X, table, 0)
    if loop is None:
        return None

    def steps(group: slice) -> list[slice]:
        with scratch.frame():
            loop(X[group], rows, *(scratch.zeros(shape, X) for shape in shapes))
        return _not_finite(group, X)

    return steps


def backward(X: Array, D: Array, table: Table, last: bool) -> Steps | None:
    """A function that goes back through all steps, on a group of the matrices X and cotangents D.

    It works in place.

    Args:
        X, D (n, rows, columns): the matrices and their cotangents.
        last: whether X is to end as the last iterate.

    Returns:
        As `forward`.
    """
    loop, shapes, rows = _prepared("backward", X, table, len(table))
    if loop is None:
        return None

    def steps(group: slice) -> list[slice]:
        with scratch.frame():
            loop(X[group], D[group], rows, last, *(scratch.zeros(shape, X) for shape in shapes))
        return _not_finite(group, D, X) if last else _not_finite(group, D)

    return steps


def _prepared(
    way: str, X: Array, table: Table, kept: int
) -> tuple[Callable[..., None] | None, Sequence[Shape], Any]:
    """The compiled loop, shapes of its work space, and its table.

    The loop is None where NumPy is to compute.
    """
    count, rows, columns = X.shape
    work = count * len(table) * 3 * rows * rows * columns
    if work < WORK or max(rows, columns) > LARGEST or not compiled.available_for(X):
        return None, (), None
    shapes = room(rows, columns, X.dtype, kept)
    if kept and sum(map(math.prod, shapes)) * X.itemsize > KEPT_BYTES:
        return None, (), None
    return compiled.loop(MODULE, X.dtype, way), shapes, np.array(table, X.dtype)


def _not_finite(group: slice, *arrays: Array) -> list[slice]:
    """Each matrix of a group with an infinity or a nan in one of the arrays."""
    finite = [np.isfinite(x[group]) for x in arrays]
    if all(each.all() for each in finite):
        return []
    whole = np.logical_and.reduce([each.all(axis=(-2, -1)) for each in finite])
    return [slice(i, i + 1) for i in group.start + np.flatnonzero(~whole)]
