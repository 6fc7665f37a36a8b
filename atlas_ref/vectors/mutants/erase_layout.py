"""Mistakes of layout of rule dplr: rows of a batch beside heads, and tiles of channels (VEC-27, VEC-28).

Each is a kernel of the rule that is given other tensors than the case has, or whose results are
stored elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.case import Case
from atlas_ref.oracle.family.mistake import Results
from atlas_ref.vectors.inputs import dplr_targets
from atlas_ref.vectors.mutants import own, younger

#: Tensors of a case that are moved together.
STATES = ("in/M0", "in/A0", "in/S0")
GATES = ("in/retain", "in/log_retain")

#: Channels of a tile.
TILES = (32, 64, 128)

Numbers = np.ndarray[Any, Any]


class Move(NamedTuple):
    """Entries of some tensors in the place of others.

    Attributes:
        words: the mistake, for a reader.
        tensors: inputs that are moved, or results.
        change: of a tensor with a row axis and a head axis in front.
    """

    words: str
    tensors: tuple[str, ...]
    change: Callable[[Numbers], Numbers]


def _first_row(x: Numbers) -> Numbers:
    return np.broadcast_to(x[:1], x.shape).copy()


def _rows_in_reverse(x: Numbers) -> Numbers:
    return x[::-1].copy()


def _next_head(x: Numbers) -> Numbers:
    return np.roll(x, -1, axis=1)


def _heads_first(x: Numbers) -> Numbers:
    return np.swapaxes(x, 0, 1).reshape(x.shape)


def _of_first_row(x: Numbers) -> Numbers:
    return np.concatenate([x[:1], np.zeros_like(x[1:])])


def _summed(x: Numbers) -> Numbers:
    return np.broadcast_to(x.sum(axis=0, keepdims=True), x.shape).copy()


#: Moves among the rows of a batch, and the heads of each.
MOVES: dict[str, Move] = {
    "states of the first row": Move("rows start from the memory of the first", STATES, _first_row),
    "states in reverse": Move(
        "rows start from the memories of rows in reverse", STATES, _rows_in_reverse
    ),
    "states of the next head": Move("heads start from the next one's memory", STATES, _next_head),
    "states by heads": Move("first memories lie by heads and then by rows", STATES, _heads_first),
    "gates of the first row": Move("rows have the gates of the first", GATES, _first_row),
    "gates of the next head": Move("heads have the gates of the next one", GATES, _next_head),
    "gates by heads": Move("gates lie by heads and then by rows", GATES, _heads_first),
    "beta of the first row": Move("rows have in/beta of the first", ("in/beta",), _first_row),
    "beta of the next head": Move("heads have in/beta of the next one", ("in/beta",), _next_head),
    **{
        f"in/{name} of the first row": Move(
            f"rows have in/{name} of the first", (f"in/{name}",), _first_row
        )
        for name in ("k", "v", "q")
    },
    "last states in reverse": Move(
        "out/M is that of rows in reverse", ("out/M",), _rows_in_reverse
    ),
    "last states by heads": Move("out/M lies by heads and then by rows", ("out/M",), _heads_first),
    "gradient of the first row": Move(
        "gradients of rows but the first are 0",
        ("grad/k", "grad/v", "grad/q", "grad/beta"),
        _of_first_row,
    ),
    "gradient of M0 over rows": Move(
        "the gradient of in/M0 is the sum over rows", ("grad/M0",), _summed
    ),
}


def named() -> dict[str, str]:
    """Every mutant in words, by its name."""
    found = {name: move.words for name, move in MOVES.items()}
    for tile in TILES:
        found[_tile("key", tile)] = f"channels of keys and queries beyond {tile} are left out"
        found[_tile("value", tile)] = f"channels of values beyond {tile} are left out"
    return {f"{own.ahead(dplr_targets.RULE)}{name}": words for name, words in found.items()}


def mutants(case: Case, dtype: str) -> Iterator[tuple[str, Results]]:
    """Names and results of every mutant of a case, in float32 and rounded to `dtype`."""
    for name, move in made_in(case).items():
        yield (
            f"{own.ahead(dplr_targets.RULE)}{name}",
            _of_results(move, own.kernel(_given(case, move), dtype)),
        )


def made_in(case: Case) -> dict[str, Move]:
    """Mistakes that a case can show: those that are not the same function (VEC-24)."""
    if case.header.rule != dplr_targets.RULE:
        return {}
    moved = younger.redrawn(case)
    right = own.exact(moved)
    return {
        name: move
        for name, move in {**_of_rows(case), **_of_tiles(case)}.items()
        if own.apart(right, _of_results(move, own.exact(_given(moved, move))))
    }


def _of_rows(case: Case) -> dict[str, Move]:
    """Moves among rows, of a case that has a batch axis beside its heads."""
    return MOVES if case.inputs["in/v"].ndim > 3 else {}


def _of_tiles(case: Case) -> dict[str, Move]:
    """Tiles that are narrower than the vectors of a case."""
    found = {}
    for kind, names in (("key", ("in/k", "in/q", "in/kk")), ("value", ("in/v",))):
        for tile in TILES:
            if tile < case.inputs[names[0]].shape[-1]:
                found[_tile(kind, tile)] = Move("", names, _cut(tile))
    return found


def _tile(kind: str, tile: int) -> str:
    return f"{kind} channels beyond {tile}"


def _cut(tile: int) -> Callable[[Numbers], Numbers]:
    return lambda x: np.where(np.arange(x.shape[-1]) < tile, x, np.zeros_like(x))


def _given(case: Case, move: Move) -> Case:
    """The case with the tensors that a kernel takes for its own."""
    return case.replaced(
        inputs={n: move.change(x) if n in move.tensors else x for n, x in case.inputs.items()}
    )


def _of_results(move: Move, results: Any) -> Results:
    """Results with those of the tensors that a kernel stores elsewhere."""
    return {n: move.change(np.asarray(x)) if n in move.tensors else x for n, x in results.items()}
