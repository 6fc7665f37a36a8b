"""The pullback of indexing, and the one buffer that all the indexings of an array share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tape.variable import Array, Variable


@dataclass(slots=True, eq=False)
class Scatter:
    """The pullback of indexing, which adds the cotangent into a zero array at `key`.

    The sweep collects the scatters of one array in a `Collected` instead of making an array for
    each, so a loop over x[0], x[1], ... costs one array, not T of them (TAPE-21).

    Attributes:
        shape, dtype: of the array that was indexed.
        key: as it was indexed.
        scatter: the op (have or None, *cotangents, keys=, like=this) -> their sum.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    key: Any
    scatter: Callable[..., Array]


@dataclass(slots=True, eq=False)
class Collected:
    """The cotangent of an indexed array while the sweep adds to it, in the order of arrival.

    Plain cotangents are added in place into a buffer of its own. From the first variable on
    they wait, so that all of them become one entry of the outer tape.
    """

    have: Array | None
    like: Scatter
    owned: bool = False  # whether nothing else holds the buffer `have`
    waiting: list[tuple[Any, Array]] = field(default_factory=list)

    def add(self, key: Any, g: Array) -> None:
        """Add a cotangent of x[key]."""
        if self.owned and not self.waiting and type(g) is not Variable:
            self.have = add_at(self.have, key, g)
            return
        self.waiting.append((key, g))
        if type(g) is not Variable and type(self.have) is not Variable and len(self.waiting) == 1:
            self.have, self.owned, self.waiting = self.total(), True, []

    def total(self) -> Array:
        """The cotangent so far."""
        if not self.waiting:
            return self.have
        keys, parts = zip(*self.waiting, strict=True)
        return self.like.scatter(self.have, *parts, keys=keys, like=self.like)

    def __add__(self, part: Array) -> Array:
        return self.total() + part


def add_at(buffer: Array, key: Any, g: Array) -> Array:
    """The buffer with g added at `key`.

    It is changed in place, or copied to a wider dtype where g needs one, or to another order.
    """
    wide = np.result_type(buffer, g)
    if wide != buffer.dtype:
        buffer = buffer.astype(wide)
    if is_basic(key):
        buffer[key] += g
    elif isinstance(buffer, np.ndarray) or isinstance(key, type(buffer)):
        np.add.at(buffer, key, g)  # an advanced key may name an entry twice
    else:  # CuPy takes no tuple and no list through NumPy's dispatch
        entries = np.arange(buffer.size, like=buffer).reshape(buffer.shape)[key]
        flat = buffer.reshape(-1)  # a view, or a copy of another order
        np.add.at(flat, entries, g)
        return flat.reshape(buffer.shape)
    return buffer


def is_basic(key: Any) -> bool:
    """Whether an index's form (integers, slices, None, Ellipsis) names each entry at most once."""
    for part in key if type(key) is tuple else (key,):
        if not (part is None or part is Ellipsis or isinstance(part, int | slice | np.integer)):
            return False
    return True
