"""A result of another shape: the order of axes in which it would be right (CASE-21)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from atlas_ref.types import Array

#: Axes, and numbers, of the largest result whose axes are tried in every order.
AXES, NUMBERS = 5, 10**6


def other_shape(got: Array, want: Array, right: Callable[[Array], bool]) -> str:
    """Words about a result that has not our shape: what it is, and what would make it right.

    Args:
        right: whether an array of our shape is.
    """
    words = f"shape {got.shape}, expected {want.shape}"
    for axes, moved in _orders(got, want):
        if right(moved):
            if _moves(got, want):
                return f"{words}; transposed by {_inverse(axes)} it would be right"
            shape = tuple(want.shape[axis] for axis in axes)
            tail = "" if axes == tuple(range(want.ndim)) else f", transposed by {_inverse(axes)},"
            return f"{words}; as {shape}{tail} it would be right"
    return words


def _orders(got: Array, want: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Orders of our axes that got may have, axes merged or of length 1 left out among them."""
    if want.ndim > AXES or got.size != want.size or math.prod(want.shape) > NUMBERS:
        return
    for axes in itertools.permutations(range(want.ndim)):
        shape = tuple(want.shape[axis] for axis in axes)
        if got.shape == shape or not _moves(got, want):
            yield axes, got.reshape(shape).transpose(_inverse(axes))


def _moves(got: Array, want: Array) -> bool:
    """Whether the axes are ours in some order, so that none is merged, added or left out."""
    return sorted(got.shape) == sorted(want.shape)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The order that undoes another one."""
    return tuple(axes.index(axis) for axis in range(len(axes)))
