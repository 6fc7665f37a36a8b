"""Retentions of MIRAS by loops over the entries of one matrix.

Written from the printed equations. Comparisons look at real parts alone and nothing is conjugated,
so that a complex step passes through. Nothing here is shared with the package under test.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def soft(x: Any, threshold: float) -> Any:
    """S(x) = sign(x) max(|x| - threshold, 0)."""
    if np.real(x) > threshold:
        return x - threshold
    return x + threshold if np.real(x) < -threshold else 0.0 * x


def groups(shape: Any, over: str) -> list[list[tuple[int, int]]]:
    """Places that are normalised together."""
    n, m = shape
    if over == "row":
        return [[(i, j) for j in range(m)] for i in range(n)]
    if over == "column":
        return [[(i, j) for i in range(n)] for j in range(m)]
    return [[(i, j) for i in range(n) for j in range(m)]]


def written(
    W: Array,
    retain: Any,
    step: Array,
    *,
    kind: str,
    threshold: float = 1e-3,
    over: str = "matrix",
    size: float = 1.0,
    power: float = 4.0,
    link: str = "printed",
) -> Array:
    """W, or A of ftrl and lq, after a write; step is what is subtracted."""
    if kind in ("l2", "ftrl", "lq"):
        return retain * W - step
    new = 0.0 * (retain * W - step)
    if kind == "elastic_net":
        for place in np.ndindex(W.shape):
            new[place] = soft(retain * W[place] - step[place], threshold)
        return new
    for group in groups(W.shape, over):
        if kind == "sphere":
            rows = {at: retain * W[at] - step[at] for at in group}
            length = np.sqrt(sum(x * x for x in rows.values()))
            for at, x in rows.items():
                new[at] = size * x / length if np.real(length) > 0.0 else x
        else:
            # W is a power of the old one times a factor, over their sum
            alive = [at for at in group if np.real(W[at]) > 0.0]
            shares = {at: np.exp(retain * np.log(W[at]) - step[at]) for at in alive}
            for at, x in shares.items():
                new[at] = size * x / sum(shares.values())
    return new


def seen(
    A: Array,
    *,
    kind: str,
    threshold: float = 1e-3,
    power: float = 4.0,
    link: str = "printed",
    **others: Any,
) -> Array:
    """What the memory function has in the place of A."""
    new = A.copy()
    if kind == "ftrl":
        for place in np.ndindex(A.shape):
            new[place] = soft(A[place], threshold)
    if kind == "lq":
        p = power if link == "printed" else power / (power - 1.0)
        sizes = {at: -A[at] if np.real(A[at]) < 0.0 else A[at] for at in np.ndindex(A.shape)}
        length = sum(x**p for x in sizes.values()) ** (1.0 / p)
        for at, x in sizes.items():
            up = A[at] if link != "mirror" else np.sign(np.real(A[at])) * x ** (p - 1.0)
            new[at] = up / length ** (p - 2.0) if np.real(length) > 0.0 else 0.0 * A[at]
    return new
