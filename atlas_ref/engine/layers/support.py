"""Choice between a block written by hand and its plain twin, and what such blocks share; it
computes nothing of a layer.

A block takes arrays of NumPy, all of float32 or all of float64. All else, a complex step and
arrays of a device among it, runs through the plain twin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from atlas_ref.backend import compiled
from atlas_ref.backend.compiled.panels import PANEL_BYTES
from atlas_ref.types import Array
from tape import opaque, plain

MODULE = "atlas_ref.engine.compiled.layer_rows"
#: Numbers from which on it is worth loading compiled code, which takes a second once a process.
WORK = 2**16
#: Numbers of a run of rows that is computed at once, which stay in the second cache.
NUMBERS = 2**15
#: The largest x whose exp(x) is finite in float32 and in float64, by bytes of a number.
LARGEST_EXPONENT = {4: 88.0, 8: 709.0}

_KINDS = (np.dtype(np.float32), np.dtype(np.float64))


def takes(*arrays: Array) -> bool:
    """Whether a block can compute these arrays or tape variables."""
    bare = [plain(x) for x in arrays]
    kind = getattr(bare[0], "dtype", None)
    return kind in _KINDS and all(type(x) is np.ndarray and x.dtype == kind for x in bare)


def block_or_plain(
    plainly: Callable[..., Any],
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[..., Any],
) -> Callable[..., Any]:
    """The block where it takes all arguments, else its plain twin."""
    block = opaque(plainly, forward, backward, fresh=True)

    @functools.wraps(plainly)
    def chosen(*arrays: Array) -> Any:
        return (block if takes(*arrays) else plainly)(*arrays)

    return chosen


def loop(name: str, x: Array, columns: int = 0) -> Callable[..., None] | None:
    """Compiled code for x, whose rows fill whole vectors; None where NumPy is to compute."""
    width = PANEL_BYTES // x.itemsize
    if x.size < WORK or columns % width or not compiled.available_for(x):
        return None
    return compiled.loop(MODULE, x.dtype, name)


def line(x: Array) -> Array:
    """An array as one axis, in order."""
    return np.ascontiguousarray(x).reshape(-1)


def runs(rows: int, columns: int) -> Iterator[slice]:
    """Runs of rows that fit into the cache together."""
    step = max(1, NUMBERS // max(1, columns))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def flat(x: Array) -> Array:
    """All but the last axis as one, (rows, d)."""
    return x.reshape(-1, x.shape[-1])


def column_sums(x: Array) -> Array:
    """Sums over the rows of x (rows, d), as one product."""
    return np.ones(len(x), x.dtype) @ x


def row_sums(x: Array) -> Array:
    """Sums over the last axis of x (..., d), as one product, (..., 1)."""
    return x @ np.ones((x.shape[-1], 1), x.dtype)


def sigmoids(x: Array, to: Array, rest: Array) -> None:
    """sigmoid(x) into `to` and sigmoid(-x) into `rest`, both to full relative precision."""
    np.negative(x, out=rest)
    np.minimum(rest, LARGEST_EXPONENT[x.itemsize], out=rest)
    np.exp(rest, out=rest)
    np.add(rest, 1.0, out=to)
    np.reciprocal(to, out=to)
    np.multiply(rest, to, out=rest)
