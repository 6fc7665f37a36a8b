"""The error that a value may have, from the rounding of what it was computed from.

Specified in specs/modules.md (MODULES-9), by the machinery of specs/tolerance.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from atlas_ref.oracle.judge.op_tolerance import OP_FLOOR
from atlas_ref.oracle.judge.tolerance import Tolerance, from_members
from atlas_ref.oracle.modules.graph import Graph, evaluate
from atlas_ref.oracle.norms import FORMATS, round_to
from atlas_ref.types import Array

#: Evaluations with recorded inputs, and all that is computed between, moved within half a unit.
DRAWS = 8

#: Parts in which programs sum the terms of a product, one after another: whole, halves, many.
PARTS = (1, 2, 1024)


class Truth(NamedTuple):
    """A value as it should be, in float64, and its tolerance."""

    want: Array
    tolerance: Tolerance


def arithmetic_of(dtype: str) -> str:
    """The format of the arithmetic for values of a format (TOL-9)."""
    return "float64" if dtype == "float64" else "float32"


class Graphs:
    """A graph in float64 and in the arithmetic of each format, each built once.

    Args:
        build: (arithmetic) -> graph.
    """

    def __init__(self, build: Callable[[str], Graph]) -> None:
        self.wide = build("float64")
        self._build, self._narrow = build, {"float64": self.wide}

    def narrow(self, dtype: str) -> Graph:
        """The graph in the arithmetic for values of a format."""
        kind = arithmetic_of(dtype)
        if kind not in self._narrow:
            self._narrow[kind] = self._build(kind)
        return self._narrow[kind]

    def truth(self, key: str, known: Mapping[str, Array], dtype: str) -> Truth:
        """A value of a format as it should be, from known ones (MODULES-9)."""
        return truth(key, known, self.wide, self.narrow(dtype), dtype)


def truth(key: str, known: Mapping[str, Array], wide: Graph, narrow: Graph, dtype: str) -> Truth:
    """A value from known ones, and what rounding can do to it (MODULES-9).

    Args:
        known: recorded values, as recorded.
        wide, narrow: graphs in float64, and in the arithmetic of `dtype`.
    """
    exact = in_format(known, "float64")
    with np.errstate(all="ignore"):
        want = np.asarray(evaluate(wide, key, exact), np.float64)
        members = {}
        for way in ways(known, dtype):
            with narrow.summing_in(way.parts):
                members[way.words] = evaluate(narrow, key, way.known, way.half)
    return judged_by(key, want, members, dtype)


def judged_by(key: str, want: Array, members: Mapping[str, Array], dtype: str) -> Truth:
    """The truth with the tolerance that the results of all members give."""
    results = {name: round_to(np.asarray(value), dtype) for name, value in members.items()}
    return Truth(want, from_members(key, want, results, dtype, units=OP_FLOOR))


class Way(NamedTuple):
    """One evaluation of the ensemble (MODULES-9).

    Attributes:
        words: what it rounds.
        known: the values that it takes.
        half: changes each value computed between; None for none.
        parts: into which sums of products are cut.
    """

    words: str
    known: dict[str, Array]
    half: _Half | None
    parts: int


def ways(known: Mapping[str, Array], dtype: str) -> list[Way]:
    """The evaluations that measure a tolerance in the arithmetic of a format (MODULES-9)."""
    near = in_format(known, arithmetic_of(dtype))
    found = [Way("plain", near, None, 1)]
    for number in range(DRAWS):
        half, parts = _Half(number, dtype), PARTS[number % len(PARTS)]
        moved = {name: half(name, value) for name, value in near.items()}
        words = f"inputs and steps within half a unit, sums in {parts}, draw {number + 1}"
        found.append(Way(words, moved, half, parts))
    return found


def in_format(known: Mapping[str, Array], dtype: str) -> dict[str, Array]:
    """Values in the arithmetic of a format; whole numbers as they are."""
    return {name: _as(value, FORMATS[dtype][0]) for name, value in known.items()}


def _as(value: Array, kind: type) -> Array:
    return value if value.dtype.kind in "iu" else np.asarray(value).astype(kind)


class _Half:
    """Numbers moved within half a unit of their last place, by a draw for each name."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.seed = seed
        self.half = 2.0 ** -(FORMATS[dtype][1] + 1)

    def __call__(self, name: str, value: Array) -> Array:
        if value.dtype.kind in "iu":
            return value
        draw = np.random.Generator(np.random.Philox([self.seed, zlib.crc32(name.encode())]))
        change = 1.0 + self.half * draw.uniform(-1.0, 1.0, np.shape(value))
        moved: Array = (value * change).astype(value.dtype)
        return moved
