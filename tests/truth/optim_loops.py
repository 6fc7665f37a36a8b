"""Optimisers by plain loops over Python's numbers: one parameter, a list of gradients in turn.

Vectors and matrices are lists. Nothing here is shared with the package under test.
"""

from __future__ import annotations

import math
from typing import Any

Vector = list[float]
Matrix = list[list[float]]


def sgd(
    p: Vector,
    grads: list[Vector],
    *,
    rates: list[float],
    momentum: float = 0.0,
    average: str = "sum",
    nesterov: bool = False,
    decay: float = 0.0,
    decoupled: bool = False,
) -> Vector:
    p, held = list(p), [0.0] * len(p)
    for g, rate in zip(grads, rates, strict=True):
        for i in range(len(p)):
            slope = g[i] if decoupled else g[i] + decay * p[i]
            share = 1 - momentum if average == "ema" and momentum else 1
            held[i] = momentum * held[i] + share * slope
            move = share * slope + momentum * held[i] if nesterov else held[i]
            if decoupled:
                p[i] = p[i] - rate * decay * p[i]
            p[i] = p[i] - rate * move
    return p


def adamw(
    p: Vector,
    grads: list[Vector],
    *,
    rates: list[float],
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.0,
    correct: bool = True,
    decoupled: bool = True,
) -> Vector:
    p, m, v = list(p), [0.0] * len(p), [0.0] * len(p)
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        for i in range(len(p)):
            slope = g[i] if decoupled else g[i] + decay * p[i]
            m[i] = b1 * m[i] + (1 - b1) * slope
            v[i] = b2 * v[i] + (1 - b2) * slope**2
            mean, square = m[i], v[i]
            if correct:
                mean, square = mean / (1 - b1**t), square / (1 - b2**t)
            if decoupled:
                p[i] = p[i] - rate * decay * p[i]
            p[i] = p[i] - rate * mean / (math.sqrt(square) + eps)
    return p


def product(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum(a[i][k] * b[k][j] for k in range(len(b))) for j in range(len(b[0]))]
        for i in range(len(a))
    ]


def transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def combined(*terms: tuple[float, Matrix]) -> Matrix:
    """The sum of factors times matrices."""
    rows, columns = len(terms[0][1]), len(terms[0][1][0])
    return [
        [sum(factor * x[i][j] for factor, x in terms) for j in range(columns)] for i in range(rows)
    ]


def newton_schulz(
    x: Matrix,
    *,
    abc: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
    steps: int = 5,
    eps: float = 1e-7,
    guard: str = "add",
    scale: str = "1",
) -> Matrix:
    """Always on X X^T, of tall matrices too."""
    norm = math.sqrt(sum(each**2 for row in x for each in row))
    size = norm + eps if guard == "add" else max(norm, eps)
    y = [[each / size for each in row] for row in x]
    a, b, c = abc
    for _ in range(steps):
        gram = product(y, transposed(y))
        y = combined((a, y), (1.0, product(combined((b, gram), (c, product(gram, gram))), y)))
    factor = {"1": 1.0, "norm": norm, "sqrt": math.sqrt(max(1.0, len(x) / len(x[0])))}[scale]
    return combined((factor, y))


def muon(
    p: Matrix,
    grads: list[Matrix],
    *,
    rates: list[float],
    momentum: float = 0.95,
    average: str = "ema",
    nesterov: bool = False,
    correct: bool = False,
    decay: float = 0.0,
    rms: float | None = None,
    **of_newton_schulz: Any,
) -> Matrix:
    held = combined((0.0, p))
    share = 1 - momentum if average == "ema" else 1.0
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        held = combined((momentum, held), (share, g))
        own = 1 - momentum**t if correct else 1.0
        later = 1 - momentum ** (t + 1) if correct else 1.0
        argument = (
            combined((share / own, g), (momentum / later, held))
            if nesterov
            else combined((1 / own, held))
        )
        update = newton_schulz(argument, **of_newton_schulz)
        factor = 1.0 if rms is None else rms * math.sqrt(max(len(p), len(p[0])))
        p = combined((1 - rate * decay, p), (-rate * factor, update))
    return p


def adamuon(
    p: Matrix,
    grads: list[Matrix],
    *,
    rates: list[float],
    b1: float = 0.95,
    b2: float = 0.999,
    eps: float = 1e-8,
    decay: float = 0.1,
    average: str = "ema",
    correct: bool = True,
    second: str = "gradient",
    sign: bool = False,
    align: float | None = None,
    **of_newton_schulz: Any,
) -> Matrix:
    rows, columns = len(p), len(p[0])
    m, v = combined((0.0, p)), combined((0.0, p))
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        m = combined((b1, m), (1 - b1 if average == "ema" else 1.0, g))
        first = 1 - b1**t if correct and average == "ema" else 1.0
        argument = combined((1 / first, m))
        if sign:
            argument = [[math.copysign(1.0, x) if x else 0.0 for x in row] for row in m]
        update = newton_schulz(argument, **of_newton_schulz)
        squares = update if second == "update" else g
        v = combined((b2, v), (1 - b2, [[x**2 for x in row] for row in squares]))
        last = 1 - b2**t if correct else 1.0
        move = [
            [update[i][j] / (math.sqrt(v[i][j] / last) + eps) for j in range(columns)]
            for i in range(rows)
        ]
        if align is not None:
            norm = math.sqrt(sum(x**2 for row in move for x in row))
            move = combined((align * math.sqrt(rows * columns) / norm, move))
        p = combined((1 - rate * decay, p), (-rate, move))
    return p


def m3(
    p: Matrix,
    grads: list[Matrix],
    *,
    rates: list[float],
    scales: list[tuple[float, float, int, float]],
    takes: str = "sum",
    second: tuple[float, float, float] | None = None,
    matrix: bool = True,
    decay: float = 0.0,
    **of_newton_schulz: Any,
) -> Matrix:
    """Scales as (keep, take, period, weight), the second moment as (keep, take, eps)."""
    held = [combined((0.0, p)) for _ in scales]
    v = combined((0.0, p))
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        move = combined((0.0, p))
        for i, (keep, take, period, weight) in enumerate(scales):
            if t % period == 0:
                since = grads[t - period : t] if takes == "sum" else [g]
                held[i] = combined((keep, held[i]), *((take, each) for each in since))
            own = newton_schulz(held[i], **of_newton_schulz) if matrix else held[i]
            move = combined((1.0, move), (weight, own))
        if second is not None:
            keep, take, eps = second
            v = combined((keep, v), (take, [[x**2 for x in row] for row in g]))
            move = [
                [a / (math.sqrt(b) + eps) for a, b in zip(x, y, strict=True)]
                for x, y in zip(move, v, strict=True)
            ]
        p = combined((1 - rate * decay, p), (-rate, move))
    return p
