"""The odd quintic nearest to 1 on an interval, by Remez exchange on a grid.

It shares nothing with the package.

In the basis x T_k(t), with t the image of x^2 on [-1, 1], the exchange is well-conditioned in
float64 however short the interval is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any
NODES = 4001
SIGNS = np.array([1.0, -1.0, 1.0, -1.0])


class Quintic(NamedTuple):
    """The odd polynomial a, b, c and its largest distance from 1 on the interval."""

    row: tuple[float, float, float]
    error: float


def quintic(low: float, high: float) -> Quintic:
    """The nearest quintic by exchange of all four extrema of 1 - p.

    Each is searched on a grid and polished by Newton's method.
    """
    middle, half = (high * high + low * low) / 2, (high - low) * (high + low) / 2

    def basis(x: Array) -> Array:
        t = (x * x - middle) / half
        return np.stack([x, x * t, x * (2 * t * t - 1)], axis=-1)

    def slopes(x: Array) -> tuple[Array, Array]:
        t, dt = (x * x - middle) / half, 2 * x / half
        ddt = 2 / half
        first = [np.ones_like(x), t + x * dt, 2 * t * t - 1 + 4 * x * t * dt]
        second = [np.zeros_like(x), 2 * dt + x * ddt, 8 * t * dt + 4 * x * (dt * dt + t * ddt)]
        return np.stack(first, axis=-1), np.stack(second, axis=-1)

    grid = np.sqrt(middle - half * np.cos(np.linspace(0, np.pi, NODES)))
    points = grid[[0, NODES // 3, 2 * NODES // 3, -1]]
    for _ in range(30):
        weights = np.linalg.solve(np.column_stack([basis(points), SIGNS]), np.ones(4))
        distance = basis(grid) @ weights[:3] - 1
        # p has a maximum, then a minimum inside
        inner = [1 + int(np.argmax(sign * distance[1:-1])) for sign in (1, -1)]
        extrema = grid[inner]
        for _ in range(3):
            first, second = slopes(extrema)
            extrema = extrema - (first @ weights[:3]) / (second @ weights[:3])
        moved = np.array([low, *extrema, high])
        done = np.abs(moved - points).max() <= 1e-15 * high
        points = moved
        if done:
            break
    u, v, w = weights[:3]
    scale, shift = 1 / half, middle / half
    row = (
        u - v * shift + w * (2 * shift * shift - 1),
        v * scale - 4 * w * scale * shift,
        2 * w * scale * scale,
    )
    return Quintic((float(row[0]), float(row[1]), float(row[2])), float(weights[3]))


def polar_express(lower_bound: float, steps: int) -> list[Quintic]:
    """The quintic of each step on the interval that the steps before it leave.

    It is (15/8, -10/8, 3/8) below a width of 1e-5.
    """
    quintics, low, high = [], lower_bound, 1.0
    for _ in range(steps):
        if high - low < 1e-5:
            quintics.append(Quintic((15 / 8, -10 / 8, 3 / 8), 0.0))
            continue
        quintics.append(quintic(low, high))
        error = abs(quintics[-1].error)  # rounding may make a tiny one negative
        low, high = 1 - error, 1 + error
    return quintics
