"""Hypothesis strategies of shapes, seeds and the axes that both sides of a row take."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from atlas_ref.conventions import PRESETS
from tests.reductions.sides import Draw
from tests.reductions.table import ROWS, Row, Side
from tests.support.strategies import AXES

WINDOWS = (1, 2, 3, 5)
SEEDS = st.integers(0, 10_000)
SIZE = st.integers(1, 6)
TOKENS = st.integers(1, 12)


def stated(side: Side) -> set[str]:
    """The axes that a side gives a value."""
    preset = PRESETS[side.convention.get("preset", "spec")]
    return (set(side.convention) | set(preset)) - {"preset"}


def free(row: Row) -> dict[str, tuple[Any, ...]]:
    """The axes, the window and the span of which a row says nothing, with their values.

    A closed form has no convention, so a row with one has no free axis.
    """
    sides = (row.left, row.right)
    if any(side.form is not None for side in sides):
        return {}
    names = set(AXES) - stated(row.left) - stated(row.right)
    values = {name: tuple(AXES[name]) for name in AXES if name in names}
    if row.window_is_free:
        values["window"] = WINDOWS
    return values


def broken_by(row: Row, axes: dict[str, Any]) -> bool:
    """Whether shared axes hold values that the row names as breaking it."""
    return any(
        all(name in axes and axes[name] in values for name, values in each.items())
        for each in row.breaks
    )


def breaking(row: Row) -> list[dict[str, Any]]:
    """Every setting that the row names as breaking it, one value of each axis."""
    return [
        dict(zip(each, values, strict=True))
        for each in row.breaks
        for values in itertools.product(*each.values())
    ]


def drawn_with(axes: dict[str, Any], draw: Draw, span: int = 3) -> Draw:
    """A draw with shared settings, of which the window is no axis; a span where one needs it."""
    kept = dict(axes)
    window = kept.pop("window", None)
    spans = "chunk_start" in (kept.get("read"), kept.get("reference"))
    return replace(draw, window=window, span=span if spans else None, axes=kept)


SHAPES = st.builds(Draw, TOKENS, SIZE, SIZE, SEEDS, st.booleans(), st.integers(1, 3))


@functools.cache
def draws(name: str) -> st.SearchStrategy[Draw]:
    """Shapes, seeds and masks for a row."""
    row = _row(name)
    return SHAPES.map(lambda draw: draw.fitted(row))


@functools.cache
def draws_under_other_axes(name: str) -> st.SearchStrategy[Draw]:
    """The same with any values of the row's free axes but those that break it."""
    row = _row(name)
    chosen = st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in free(row).items()}
    ).filter(lambda axes: not broken_by(row, axes))
    return st.builds(
        lambda axes, draw, span: drawn_with(axes, draw.fitted(row), row.span or span),
        chosen,
        SHAPES,
        st.integers(1, 7),
    )


def _row(name: str) -> Row:
    return next(row for row in ROWS if row.id == name)
