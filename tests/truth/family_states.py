"""Members of the linear family with a state beside the memory, as literal loops.

M is (V, K); inputs and results are those of recorded files. Each function computes one sequence of
one head, entry by entry, and knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Inputs = dict[str, Any]


def linear_attn_normalized(x: Inputs) -> dict[str, Array]:
    """Each read over what its query finds in the sum of keys, and 1e-10."""
    M, z, reads = x["state0"].T, x["z0"][0], []
    K, V = len(z), len(M)
    for t in range(len(x["q"])):
        k, v, q = x["k"][t], x["v"][t], x["q"][t] * K**-0.5
        M = np.array([[M[i, j] + v[i] * k[j] for j in range(K)] for i in range(V)])
        z = np.array([z[j] + k[j] for j in range(K)])
        divisor = sum(q[j] * z[j] for j in range(K)) + 1e-10
        reads.append([sum(M[i, j] * q[j] for j in range(K)) / divisor for i in range(V)])
    return {"y": np.array(reads), "state": M.T, "z": z[None]}


def preconditioned(x: Inputs, t: int, A: Array) -> tuple[Array, Array]:
    """A and the key of token t under it, channel by channel."""
    k, K = x["k"][t], len(A)
    w, h = np.exp(x["log_decay_precond"][t]), x["beta_precond"][t]
    A = np.array([w * A[j] + h * k[j] ** 2 for j in range(K)])
    key = []
    for j in range(K):
        r = np.log(A[j] + 1e-6) + 0.2
        size = r if r.real > 0 else -r
        key.append(k[j] * 1.5 ** (-r / (1 + size)))
    return A, np.array(key)


def precond_kda(x: Inputs) -> dict[str, Array]:
    """The erase reads with the key, and the pair is written along the preconditioned one."""
    M, A, reads = x["state0"].T, x["A0"], []
    V, K = M.shape
    for t in range(len(x["q"])):
        A, key = preconditioned(x, t, A)
        w = np.exp(x["log_decay"][t]) * np.ones(K)
        M = np.array([[M[i, j] * w[j] for j in range(K)] for i in range(V)])
        error = x["beta"][t] * (x["v"][t] - M @ x["k"][t])
        M = np.array([[M[i, j] + error[i] * key[j] for j in range(K)] for i in range(V)])
        reads.append(M @ x["q"][t] * K**-0.5)
    return {"y": np.array(reads), "state": M.T, "A": A}


def precond_gated_delta(x: Inputs) -> dict[str, Array]:
    """The same with a gate for all channels, of keys and queries of length 1."""

    def unit(z: Array) -> Array:
        length = np.sqrt(np.sum(z * z))
        return z / (length if length.real > 1e-12 else 1e-12)

    rows = {name: np.array([unit(z) for z in x[name]]) for name in ("k", "q")}
    return precond_kda(x | rows)


def momentum_delta(x: Inputs) -> dict[str, Array]:
    """The error reads the memory of before the decay, and the read sees that of after the token."""
    M, S, reads = x["state0"].T, x["momentum0"].T, []
    V, K = M.shape
    for t in range(len(x["q"])):
        k, w, mu = x["k"][t], np.exp(x["log_decay"][t]), np.exp(x["log_momentum"][t])
        error = [sum(M[i, j] * x["erase_key"][t, j] for j in range(K)) for i in range(V)]
        error = x["eta"][t] * (np.array(error) - x["v"][t])
        S = np.array([[mu * S[i, j] + error[i] * k[j] for j in range(K)] for i in range(V)])
        rows = [[w * M[i, j] - x["beta"][t] * S[i, j] for j in range(K)] for i in range(V)]
        M = np.array(rows)
        reads.append(M @ x["q"][t] * K**-0.5)
    return {"y": np.array(reads), "state": M.T, "momentum": S.T}


Member = Callable[[Inputs], dict[str, Array]]
MEMBERS: dict[str, Member] = {
    each.__name__: each
    for each in (linear_attn_normalized, precond_kda, precond_gated_delta, momentum_delta)
}


def run(member: str, inputs: Inputs) -> dict[str, Array]:
    """Results of every head of inputs, key head = value head // group."""
    batch, heads = inputs["v"].shape[:2]
    found: dict[str, list[list[Array]]] = {}
    for b in range(batch):
        each = [MEMBERS[member](_of_head(inputs, b, h)) for h in range(heads)]
        for name in each[0]:
            of_keys = each[:: heads // inputs["k"].shape[1]] if name == "A" else each
            found.setdefault(name, []).append([results[name] for results in of_keys])
    return {name: np.array(value) for name, value in found.items()}


def _of_head(inputs: Inputs, b: int, h: int) -> Inputs:
    heads = inputs["v"].shape[1]
    return {name: value[b, h * value.shape[1] // heads] for name, value in inputs.items()}
