"""Levels as plain loops: the outer loop of levels that move at their own periods.

Vectors are lists of Python's numbers. Nothing here is shared with the package under test.
"""

from __future__ import annotations

from collections.abc import Callable

Vector = list[float]
#: (parameter, its momentum, gradient) -> the same two after an update.
Update = Callable[[Vector, Vector, Vector], tuple[Vector, Vector]]


def descent(rate: float, keep: float) -> Update:
    """Gradient descent with a momentum that keeps a share of itself."""

    def update(p: Vector, held: Vector, g: Vector) -> tuple[Vector, Vector]:
        held = [keep * h + each for h, each in zip(held, g, strict=True)]
        return [each - rate * h for each, h in zip(p, held, strict=True)], held

    return update


def outer(
    levels: list[Vector],
    periods: list[int],
    gradients: Callable[[list[Vector]], list[Vector]],
    update: Update,
    *,
    steps: int,
    first: int = 0,
) -> list[list[Vector]]:
    """The levels after each of some outer steps, one by one.

    Args:
        gradients: of all levels, at the values that they have.
        first: number of the first step.
    """
    levels = [list(each) for each in levels]
    held = [[0.0] * len(each) for each in levels]
    waiting: list[list[Vector]] = [[] for _ in levels]
    after = []
    for step in range(first, first + steps):
        now = gradients(levels)
        for i, period in enumerate(periods):
            waiting[i].append(now[i])
            if step % period:
                continue
            total = [0.0] * len(levels[i])
            for g in waiting[i]:
                total = [a + b for a, b in zip(total, g, strict=True)]
            levels[i], held[i] = update(levels[i], held[i], total)
            waiting[i] = []
        after.append([list(each) for each in levels])
    return after
