"""Mistakes of the ceiling of a memory's norm: another norm, another place, another backward.

Source: VEC-25.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.oracle.family.mistake import Hooks, Mistake, Seen
from atlas_ref.oracle.family.state import Inputs
from atlas_ref.parts.ceiling import held
from atlas_ref.types import Array
from tape import ops

#: A written memory and the ceiling -> what a kernel has in the place of the shortened one.
Wrong = Callable[[Array, float], Array]


def _always(at: Seen) -> bool:
    return True


def _by(length: Callable[[Array], Array]) -> Wrong:
    """M, shortened where another length of it is above the ceiling."""

    def shorten(M: Array, ceiling: float) -> Array:
        size = length(M)
        longer = size > ceiling
        return M * np.where(longer, ceiling / np.where(longer, size, 1.0), 1.0).astype(M.dtype)

    return shorten


def _frobenius(M: Array, axes: Any = (-2, -1)) -> Array:
    return np.sqrt(np.sum(M * M, axis=axes, keepdims=True))


def _factor(M: Array, ceiling: float) -> Array:
    """min(1, ceiling / ||M||) as an expression, which has derivatives."""
    square = ops.sum(M * M, axis=(-2, -1), keepdims=True)
    longer = ops.greater(square, ceiling * ceiling)
    return ops.where(longer, ceiling / ops.sqrt(ops.where(longer, square, 1.0)), 1.0)


def _stop(M: Array, ceiling: float) -> Array:
    """The shortened memory, which passes a cotangent only where it is as long as before."""
    plain = ops.stop_gradient(M)
    factor = _factor(plain, ceiling)
    return ops.where(ops.less(factor, 1.0), factor * plain, M)


#: name -> mistake in words, what is in the place of the shortened memory, whether it is of the
#: backward pass.
WRITTEN: dict[str, tuple[str, Wrong, bool]] = {
    "ceiling of the largest entry": (
        "the memory is shortened by its largest entry",
        _by(lambda M: np.max(np.abs(M), axis=(-2, -1), keepdims=True)),
        False,
    ),
    "ceiling of the spectral norm": (
        "the memory is shortened by its largest singular value",
        _by(lambda M: np.linalg.norm(M, 2, axis=(-2, -1), keepdims=True)),
        False,
    ),
    "ceiling of every row": (
        "every row is shortened by its own norm",
        _by(lambda M: _frobenius(M, -1)),
        False,
    ),
    "ceiling of every column": (
        "every column is shortened by its own norm",
        _by(lambda M: _frobenius(M, -2)),
        False,
    ),
    "ceiling of the square": (
        "the square of the norm is in the place of the norm",
        _by(lambda M: _frobenius(M) ** 2),
        False,
    ),
    "ceiling of entries": (
        "entries are clipped",
        lambda M, ceiling: np.clip(M, -ceiling, ceiling),
        False,
    ),
    "always at the ceiling": (
        "a shorter memory is made as long as the ceiling",
        lambda M, ceiling: M * (ceiling / _frobenius(M)).astype(M.dtype),
        False,
    ),
    "derivative of the ceiling": (
        "the cotangent goes through the division by the norm",
        lambda M, ceiling: M * _factor(M, ceiling),
        True,
    ),
    "cotangent shortened": (
        "the cotangent is multiplied by what shortened the memory",
        lambda M, ceiling: M * _factor(ops.stop_gradient(M), ceiling),
        True,
    ),
    "cotangent stopped at the ceiling": (
        "a memory that was shortened passes no cotangent",
        _stop,
        True,
    ),
}

OVER_HEADS = "ceiling over heads"
READ = "ceiling at the read alone"
STATE = "ceiling not at the read"
BEFORE = "ceiling before the write"
FIRST = "ceiling of the first memory"
MOMENTUM = "ceiling of the momentum too"
LAST = "ceiling at the last token alone"

#: Mistakes of the place, in words.
PLACES = {
    OVER_HEADS: "all heads are shortened by one norm",
    READ: "the memory is shortened where it is read, and carried on as long as it was",
    STATE: "the memory is read as long as it was, and carried on shortened",
    BEFORE: "the memory is shortened before the write, not after it",
    FIRST: "the initial memory is shortened too",
    MOMENTUM: "the momentum is shortened too",
    LAST: "the memory is shortened at the end of the call",
}


def words_by_name() -> dict[str, str]:
    """Mistakes in words, by name."""
    return {name: words for name, (words, _, _) in WRITTEN.items()} | PLACES


def mistakes(at: Seen) -> list[Mistake]:
    """Mistakes of the ceiling of a case, in a kernel that has none but that of the mistake."""
    ceiling = at.case.convention.memory_ceiling
    if ceiling == "none":
        return []
    off = {"memory_ceiling": "none"}
    listed = [
        Mistake(name, words, _always, grad, hooks=_write(wrong, ceiling), convention=off)
        for name, (words, wrong, grad) in WRITTEN.items()
    ]
    if at.heads > 1:
        over = _by(lambda M: np.sqrt(np.sum(M * M, keepdims=True)))
        listed.append(_place(OVER_HEADS, _write(over, ceiling)))
    listed.append(_place(READ, lambda: Hooks(touch={"read": lambda M: held(M, ceiling)})))
    if at.structure.read == "after":
        listed.append(_place(STATE, _read_before(ceiling)))
    listed.append(_place(BEFORE, _before(ceiling)))
    listed.append(_place(FIRST, _of_first(ceiling)))
    listed.append(_place(LAST, _at_last(at.tokens - 1, ceiling))._replace(whole=True))
    if at.momentum:
        listed.append(_place(MOMENTUM, _of_momentum(ceiling)))
    return listed


def _place(name: str, hooks: Callable[[], Hooks]) -> Mistake:
    off = {"memory_ceiling": "none"}
    return Mistake(name, PLACES[name], _always, hooks=hooks, convention=off)


def _write(wrong: Wrong, ceiling: float) -> Callable[[], Hooks]:
    def values(op: str, t: int, x: Array) -> Array:
        return wrong(x, ceiling) if op == "M" else x

    return lambda: Hooks(values=values)


def _read_before(ceiling: float) -> Callable[[], Hooks]:
    def hooks() -> Hooks:
        written: dict[str, Array] = {}

        def values(op: str, t: int, x: Array) -> Array:
            if op == "M":
                written["M"] = x
                return held(x, ceiling)
            return written.pop("M", x) if op == "read" else x

        return Hooks(values=values)

    return hooks


def _before(ceiling: float) -> Callable[[], Hooks]:
    def shorter(M: Array) -> Array:
        return held(M, ceiling)

    return lambda: Hooks(touch={"carried M": shorter, "reference": shorter})


def _of_first(ceiling: float) -> Callable[[], Hooks]:
    def change(inputs: Inputs) -> Inputs:
        return inputs._replace(M0=held(inputs.M0, ceiling))

    return lambda: Hooks(inputs=change, values=_write(held, ceiling)().values)


def _of_momentum(ceiling: float) -> Callable[[], Hooks]:
    def values(op: str, t: int, x: Array) -> Array:
        return held(x, ceiling) if op in ("S", "M") else x

    return lambda: Hooks(values=values)


def _at_last(last: int, ceiling: float) -> Callable[[], Hooks]:
    def values(op: str, t: int, x: Array) -> Array:
        return held(x, ceiling) if op == "M" and t == last else x

    return lambda: Hooks(values=values)
