"""The chunk form as public references have it: exponentials of differences of cumulated log gates.

It is the candidate that a tolerance is stated for, never a truth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

Array = np.ndarray[Any, Any]


def run(tokens: dict[str, Array], log_retain: Array, chunk: int) -> tuple[Array, Array]:
    """y (T, V) and memory (V, K) of one head, in the dtype of the arrays (T, .), from zero.

    Args:
        tokens: k, v, q, erase_read, erase_write; the erase reads the decayed memory.
        log_retain (T, K): natural logs of the gates.
    """
    k, v, q, a, b = (tokens[name] for name in ("k", "v", "q", "erase_read", "erase_write"))
    M, reads = np.zeros((v.shape[-1], k.shape[-1]), k.dtype), []
    for first in range(0, len(k), chunk):
        own = slice(first, first + chunk)
        G = np.cumsum(log_retain[own], axis=0, dtype=k.dtype)
        C = len(G)
        lower = np.tril(np.ones((C, C), bool))[..., None]
        gap = np.where(lower, G[:, None] - G[None], -np.inf)  # masked before exp
        decay = np.exp(gap).astype(k.dtype)  # (C, C, K)

        def scores(x: Array, z: Array, decay: Array = decay) -> Array:
            return np.einsum("ic,ijc,jc->ij", x, decay, z)

        start, end = np.exp(G), np.exp(G[-1] - G)
        strict = np.tril(np.ones((C, C), k.dtype), -1)
        system = np.eye(C, dtype=k.dtype) + strict * scores(a[own], b[own])
        right = (a[own] * start) @ M.T + (strict * scores(a[own], k[own])) @ v[own]
        U = solve_triangular(system, right, lower=True, unit_diagonal=True, check_finite=False)
        y = (q[own] * start) @ M.T + scores(q[own], k[own]) @ v[own] - scores(q[own], b[own]) @ U
        M = M * start[-1] + v[own].T @ (k[own] * end) - U.T @ (b[own] * end)
        reads.append(y)
    return np.concatenate(reads), M
