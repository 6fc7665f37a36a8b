"""Masks and indices, moved from the host to the device of the arrays beside them.

Which token is active, which window row is older, which column a monomial takes: such constants
follow from settings and not from data, so they are plain NumPy arrays on the host. Where one meets
an array of another library, that library's mover copies it there. The latest copies are cached, so
a loop over tokens does not move the same mask again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tape.variable import Array, Variable

#: Array type -> how a NumPy array becomes one, and the number of the device where it then is.
#: NumPy's own needs none.
_movers: dict[type, tuple[Callable[[np.ndarray[Any, Any]], Any], Callable[[], int]]] = {}

_holding: list[list[Any]] = []

KEPT_BYTES = 2**16  # of one constant at most; larger ones are moved each time


def register(
    array_type: type, move: Callable[[np.ndarray[Any, Any]], Any], device: Callable[[], int] = int
) -> None:
    """Register the mover of a type and the function of its device; drop copies by earlier ones."""
    _movers[array_type] = move, device
    _kept.cache_clear()


def beside(constant: Any, *others: Array) -> Any:
    """A NumPy array, moved to the device of the other arrays (TAPE-3).

    Beside NumPy arrays, or of another type, the constant is returned as it is.
    """
    if not _movers or type(constant) is not np.ndarray:
        return constant
    for other in others:
        while type(other) is Variable:
            other = other.value
        if type(other) in _movers:
            return _moved(constant, type(other))
    return constant


@contextlib.contextmanager
def held() -> Iterator[list[Any]]:
    """All constants used until the end of the block, for a need longer than the cache's."""
    constants: list[Any] = []
    _holding.append(constants)
    try:
        yield constants
    finally:
        _holding.pop()


def _moved(constant: np.ndarray[Any, Any], to: type) -> Any:
    move, device = _movers[to]
    array = (
        move(constant)
        if constant.nbytes > KEPT_BYTES
        else _kept(to, device(), constant.tobytes(), constant.dtype.str, constant.shape)
    )
    for each in _holding:
        each.append(array)
    return array


@functools.lru_cache(maxsize=1024)
def _kept(to: type, device: int, data: bytes, kind: str, shape: tuple[int, ...]) -> Any:
    return _movers[to][0](np.frombuffer(data, kind).reshape(shape))
