"""What turns a function into compiled code that holds no lock of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")

#: A product and a sum may round once; nothing else may be rearranged. Overflow makes an infinity, as in NumPy.
SETTINGS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that other compiled ones call."""
    made: Callable[P, R] = numba.njit(**SETTINGS)(function)
    return made


def compiled_for(function: Callable[P, R], signature: Any) -> Callable[P, R]:
    """A function compiled for these types at once; the code stays on disk for the next process, where some folder can be written."""
    try:
        made: Callable[P, R] = numba.njit(signature, cache=True, **SETTINGS)(function)
    except RuntimeError:  # no folder can
        made = numba.njit(signature, **SETTINGS)(function)
    return made
