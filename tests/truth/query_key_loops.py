"""The projection of queries onto recent keys by its definition: a matrix of keys for every token.

Takes float64 or complex128 and never conjugates, so that a complex step passes through. Nothing
here is shared with the package under test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray


class Reading(NamedTuple):
    """What public code and its text leave open, by words of their own.

    Attributes:
        own: whether a query meets the key of its own token.
        weight: (power of decay, gate) -> weight of a key.
        rounded: whether powers are those of float32.
    """

    window: int
    decay: float
    own: bool = False
    weight: Any = staticmethod(lambda power, gate: power * gate)
    rounded: bool = False
    eps: float = 1e-6


def of_rows(rows: Array) -> tuple[Array, Any]:
    """P and n_0 of persistent rows."""
    d = rows.shape[1]
    P = np.zeros((d, d), rows.dtype)
    n_0: Any = 0.0
    for row in rows:
        for a in range(d):
            n_0 = n_0 + row[a] * row[a]
            for b in range(d):
                P[a, b] += row[a] * row[b]
    return P, n_0


def projection(
    r: Reading, P: Array, n_0: Any, q: Array, k: Array, gate: Array, starts: Any = ()
) -> Array:
    """One sequence q, k (T, d), gate (T,); `starts` are the tokens at which documents begin."""
    T, d = q.shape
    y = np.zeros((T, d), np.result_type(P, n_0, q, k, gate))
    for t in range(T):
        begin = max((s for s in starts if s <= t), default=0)
        newest = t if r.own else t - 1
        M = P + np.zeros((d, d), y.dtype)
        size = n_0
        for lag in range(r.window):
            j = newest - lag
            if j < begin:
                break
            power = float(np.float32(r.decay**lag)) if r.rounded else r.decay**lag
            w = r.weight(power, gate[j])
            for a in range(d):
                size = size + w * k[j, a] * k[j, a]
                for b in range(d):
                    M[a, b] += w * k[j, a] * k[j, b]
        for a in range(d):
            y[t, a] = sum(M[a, b] * q[t, b] for b in range(d)) / (size + r.eps)
    return y
