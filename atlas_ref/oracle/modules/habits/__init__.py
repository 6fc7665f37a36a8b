"""Habits of programs by kind of work: `HABITS` is the only list of them (MODULES-18)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atlas_ref.oracle.modules.graph import Value
from atlas_ref.oracle.modules.habits import (
    attentions,
    cells,
    feed_forwards,
    norms,
    projections,
)
from atlas_ref.oracle.modules.habits.habit import Habit
from atlas_ref.oracle.modules.habits.wires import Way

#: Kind of work -> other ways in which programs do it.
HABITS: dict[type, tuple[Habit, ...]] = {
    norms.Norm: norms.HABITS,
    projections.Linear: projections.LINEAR,
    projections.Gate: projections.GATE,
    projections.Convolution: projections.CONVOLUTION,
    projections.Split: projections.SPLIT,
    projections.Merge: projections.MERGE,
    attentions.Rotary: attentions.ROTARY,
    attentions.Passed: attentions.PASSED,
    attentions.Attend: attentions.ATTEND,
    cells.Cell: cells.CELL,
    cells.Combine: cells.COMBINE,
    feed_forwards.Gated: feed_forwards.GATED,
    feed_forwards.Mix: feed_forwards.MIX,
    feed_forwards.Loss: feed_forwards.LOSS,
}


def of_work(value: Value) -> Iterator[Way]:
    """Habits of the work of a value."""
    for habit in HABITS.get(type(value.work), ()):
        if habit.where(value.work):

            def compute(*sources: Any, habit: Habit = habit) -> Any:
                return habit.function(value.work, *sources)

            yield Way(habit.words, value.sources, compute)
