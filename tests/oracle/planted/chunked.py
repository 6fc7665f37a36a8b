"""The exact chunk form of titans_lmm, delta and hebbian by hand, a triangular solve per chunk.

The sequence is padded to whole chunks.

    c_t = r_t c_(t-1)   n_t = m_t n_(t-1)   f_t = r_t f_(t-1) - b_t n_t
    N[t,j] = m_t N[t-1,j] (+ a_t at j = t)   G[t,j] = r_t G[t-1,j] + b_t N[t,j]
    (I + tril(shift(G) * K K^T, -1)) E = shift(c) K M_0^T + shift(f) K S_0^T - V

Padding must have r = 1, m = 1, a = b = 0; the planted mistake copies the gates of the last token
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.oracle.planted.restatement import RIGHT, Plant, Rule
from tests.oracle.planted.rounding import Array

CHUNK = 3


def run(
    rule: Rule, inputs: Mapping[str, Array], storage: Any, plant: Plant = RIGHT
) -> dict[str, Array]:
    """out/y, out/M, out/S and the arrays of a chunk kernel: chunk/M, chunk/S, chunk/A, chunk/E."""
    lead = inputs["k"].shape[:-2]
    found: dict[str, list[Array]] = {}
    for place in np.ndindex(*lead):
        for name, value in _one(
            rule, {name: value[place].astype(np.float32) for name, value in inputs.items()}, plant
        ).items():
            found.setdefault(name, []).append(value)
    return {
        name: np.stack(rows).reshape(*lead, *rows[0].shape).astype(storage)
        for name, rows in found.items()
    }


def _one(rule: Rule, x: Mapping[str, Array], plant: Plant) -> dict[str, Array]:
    T = len(x["k"])
    length = -(-T // CHUNK) * CHUNK
    k, v, q = (
        np.concatenate([x[name], np.zeros((length - T, x[name].shape[1]), np.float32)])
        for name in ("k", "v", "q")
    )
    ones, zeros = np.ones(T, np.float32), np.zeros(T, np.float32)
    hebbian, delta = rule.name == "hebbian", rule.name == "delta"
    neutral = {"r": (x["retain"], 1), "m": (zeros if delta or hebbian else x["momentum"], 1)}
    neutral |= {"a": (ones if hebbian else x["step_size"], 0), "b": (ones, 0)}
    r, m, a, b = (
        _padded(value, length, value[-1] if plant.padding else fill)
        for value, fill in neutral.values()
    )
    M, S = x["M0"], x.get("S0", np.zeros_like(x["M0"]))
    y: list[Array] = []
    kept: dict[str, list[Array]] = {"M": [], "S": [], "A": [], "E": []}
    for first in range(0, length, CHUNK):
        span = slice(first, first + CHUNK)
        kept["M"].append(M)
        kept["S"].append(S)
        out, M, S, A, E = _chunk(
            k[span], v[span], q[span], r[span], m[span], a[span], b[span], M, S, errors=not hebbian
        )
        y.append(out)
        kept["A"].append(A)
        kept["E"].append(E)
    found = {"out/y": np.concatenate(y)[:T], "out/M": M} | (
        {} if delta or hebbian else {"out/S": S}
    )
    names = ("M",) if hebbian else ("M", "A", "E") if delta else ("M", "S", "A", "E")
    return found | {f"chunk/{name}": np.stack(kept[name]) for name in names}


def _padded(gate: Array, length: int, fill: Any) -> Array:
    return np.concatenate([gate, np.full(length - len(gate), fill, np.float32)])


def _chunk(
    k: Array,
    v: Array,
    q: Array,
    r: Array,
    m: Array,
    a: Array,
    b: Array,
    M: Array,
    S: Array,
    *,
    errors: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """y, M, S at the end, the triangular matrix and the errors."""
    C = len(k)
    c, n, f = np.ones(C + 1, np.float32), np.ones(C + 1, np.float32), np.zeros(C + 1, np.float32)
    N, G = np.zeros((C + 1, C), np.float32), np.zeros((C + 1, C), np.float32)
    for t in range(C):
        c[t + 1], n[t + 1] = r[t] * c[t], m[t] * n[t]
        f[t + 1] = r[t] * f[t] - b[t] * n[t + 1]
        N[t + 1] = m[t] * N[t]
        N[t + 1, t] += a[t]
        G[t + 1] = r[t] * G[t] + b[t] * N[t + 1]
    A = np.eye(C, dtype=np.float32)
    E = -v
    if errors:
        A = A + np.tril(G[:-1] * (k @ k.T), -1)
        E = np.linalg.solve(A, c[:-1, None] * (k @ M.T) + f[:-1, None] * (k @ S.T) - v).astype(
            np.float32
        )
    y = c[1:, None] * (q @ M.T) + f[1:, None] * (q @ S.T) - (G[1:] * (q @ k.T)) @ E
    return y, c[-1] * M + f[-1] * S - (E.T * G[-1]) @ k, n[-1] * S + (E.T * N[-1]) @ k, A, E
