"""Masks and indices beside arrays of another library: they are made on the host and moved to where the array is.

Which token is active, which window row is older, which column a monomial takes: such constants follow from settings and not
from data, so they are plain NumPy arrays wherever they are made. Where one meets an array of another library, that library's
mover takes it there, once: what was moved lately is kept, so a loop over tokens does not move the same mask again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tape.variable import Array, Variable

#: Array type -> how a NumPy array becomes one, and the number of the device where it then is. NumPy's own needs none.
_movers: dict[type, tuple[Callable[[np.ndarray[Any, Any]], Any], Callable[[], int]]] = {}

_holding: list[list[Any]] = []

KEPT_BYTES = 2**16  # of one constant at most; larger ones are moved each time


def register(array_type: type, move: Callable[[np.ndarray[Any, Any]], Any], device: Callable[[], int] = int) -> None:
    """Name the mover of an array type, and what says which device it moves to; what earlier movers left is forgotten."""
    _movers[array_type] = move, device
    _kept.cache_clear()


def beside(constant: Any, *others: Array) -> Any:
    """A NumPy array where the others are; anything else, or beside NumPy arrays, as it is (TAPE-3)."""
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
    """All constants that are used until the end of the block, for whoever needs them beyond the time that they are kept here."""
    constants: list[Any] = []
    _holding.append(constants)
    try:
        yield constants
    finally:
        _holding.pop()


def _moved(constant: np.ndarray[Any, Any], to: type) -> Any:
    move, device = _movers[to]
    large = constant.nbytes > KEPT_BYTES
    array = move(constant) if large else _kept(to, device(), constant.tobytes(), constant.dtype.str, constant.shape)
    for each in _holding:
        each.append(array)
    return array


@functools.lru_cache(maxsize=1024)
def _kept(to: type, device: int, data: bytes, kind: str, shape: tuple[int, ...]) -> Any:
    return _movers[to][0](np.frombuffer(data, kind).reshape(shape))
