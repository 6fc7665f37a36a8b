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


Member = Callable[[Inputs], dict[str, Array]]
MEMBERS: dict[str, Member] = {each.__name__: each for each in (linear_attn_normalized,)}


def run(member: str, inputs: Inputs) -> dict[str, Array]:
    """Results of every head of inputs, key head = value head // group."""
    batch, heads = inputs["v"].shape[:2]
    found: dict[str, list[list[Array]]] = {}
    for b in range(batch):
        each = [MEMBERS[member](_of_head(inputs, b, h)) for h in range(heads)]
        for name in each[0]:
            found.setdefault(name, []).append([results[name] for results in each])
    return {name: np.array(value) for name, value in found.items()}


def _of_head(inputs: Inputs, b: int, h: int) -> Inputs:
    heads = inputs["v"].shape[1]
    return {name: value[b, h * value.shape[1] // heads] for name, value in inputs.items()}
