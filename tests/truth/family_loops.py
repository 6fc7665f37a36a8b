"""Members of the linear family as literal loops, each by its own equation: truth for the rule dplr.

M is (V, K) and starts as given; y = M q scale, scale K^-1/2 unless said. Every function computes one
sequence of one head, entry by entry or row by row, and knows nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.truth import family_states

Array = np.ndarray
Inputs = dict[str, Any]


def scaled(q: Array, scale: float | None = None) -> Array:
    return q * (q.shape[-1] ** -0.5 if scale is None else scale)


def added(M: Array, v: Array, k: Array) -> Array:
    """M + v k^T, entry by entry."""
    out = M.copy()
    for i in range(len(v)):
        for j in range(len(k)):
            out[i, j] = out[i, j] + v[i] * k[j]
    return out


def columns(M: Array, w: Array) -> Array:
    """M diag(w)."""
    return np.array([[M[i, j] * w[j] for j in range(M.shape[1])] for i in range(M.shape[0])])


def linear_attn(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    M = added(M, x["v"][t], x["k"][t])
    return M, M @ scaled(x["q"][t])


def simple_gla(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    M = added(np.exp(x["log_decay"][t]) * M, x["v"][t], x["k"][t])
    return M, M @ scaled(x["q"][t])


def gla(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    M = added(columns(M, np.exp(x["log_decay"][t])), x["v"][t], x["k"][t])
    return M, M @ scaled(x["q"][t])


def rwkv6(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    """The read comes before the write, and sees the token's own pair under the bonus."""
    seen = added(M, x["v"][t], x["bonus"] * x["k"][t])
    y = seen @ scaled(x["q"][t])
    return added(columns(M, np.exp(x["log_decay"][t])), x["v"][t], x["k"][t]), y


def delta(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    error = x["v"][t] - M @ x["k"][t]
    M = added(M, x["beta"][t] * error, x["k"][t])
    return M, M @ scaled(x["q"][t])


def gated_delta(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    M = np.exp(x["log_decay"][t]) * M
    error = x["v"][t] - M @ x["k"][t]
    M = added(M, x["beta"][t] * error, x["k"][t])
    return M, M @ scaled(x["q"][t])


def kda(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    M = columns(M, np.exp(x["log_decay"][t]))
    error = x["v"][t] - M @ x["k"][t]
    M = added(M, x["beta"][t] * error, x["k"][t])
    return M, M @ scaled(x["q"][t])


def kimi_linear(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    k, q = (z / np.sqrt(np.sum(z * z) + 1e-6) for z in (x["k"][t], x["q"][t]))
    M = columns(M, np.exp(x["log_decay"][t]))
    M = added(M, x["beta"][t] * (x["v"][t] - M @ k), k)
    return M, M @ scaled(q)


def gdn2(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    """An erase gate on key channels, a write gate on values."""
    M = columns(M, np.exp(x["log_decay"][t]))
    found = M @ (x["erase_gate"][t] * x["k"][t])
    M = added(M, x["write_gate"][t] * x["v"][t] - found, x["k"][t])
    return M, M @ scaled(x["q"][t])


def gated_delta_product(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    """One decay, then n delta steps, then one read."""
    n = len(x["v"]) // len(x["q"])
    M = np.exp(x["log_decay"][t]) * M
    for j in range(t * n, t * n + n):
        M = added(M, x["beta"][j] * (x["v"][j] - M @ x["k"][j]), x["k"][j])
    return M, M @ scaled(x["q"][t])


def comba_decay_before_erase(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    M = np.exp(x["log_decay"][t]) * M
    M = added(M, x["beta"][t] * (x["v"][t] - M @ x["erase_key"][t]), x["k"][t])
    return M, M @ scaled(x["q"][t])


def comba_decay_after_erase(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    """As its op and kernels compute it: the erase reads the memory of before the decay."""
    error = x["v"][t] - M @ x["erase_key"][t]
    M = added(np.exp(x["log_decay"][t]) * M, x["beta"][t] * error, x["k"][t])
    return M, M @ scaled(x["q"][t])


def iplr(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    """M (I + alpha beta^T) + v k^T."""
    M = added(added(M, M @ x["alpha"][t], x["beta"][t]), x["v"][t], x["k"][t])
    return M, M @ scaled(x["q"][t])


def dplr(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    """M (diag(w) + alpha beta^T) + v k^T."""
    erased = added(columns(M, np.exp(x["log_decay"][t])), M @ x["alpha"][t], x["beta"][t])
    M = added(erased, x["v"][t], x["k"][t])
    return M, M @ scaled(x["q"][t])


def rwkv7(x: Inputs, t: int, M: Array) -> tuple[Array, Array]:
    kk = x["kk"][t]
    erased = added(columns(M, np.exp(x["log_decay"][t])), -(M @ kk), kk * x["a"][t])
    M = added(erased, x["v"][t], x["k"][t])
    return M, M @ scaled(x["q"][t], 1.0)


Member = Callable[[Inputs, int, Array], tuple[Array, Array]]
MEMBERS: dict[str, Member] = {
    each.__name__: each
    for each in (
        linear_attn, simple_gla, gla, rwkv6, delta, gated_delta, kda, kimi_linear, gdn2,
        gated_delta_product, comba_decay_before_erase, comba_decay_after_erase, iplr, dplr, rwkv7,
    )
}  # fmt: skip


def run(member: str, inputs: Inputs) -> dict[str, Array]:
    """y (B, HV, T, V) and state (B, HV, K, V) of inputs as the recorded files have them.

    Members with a state beside it are those of `family_states`.
    """
    if member in family_states.MEMBERS:
        return family_states.run(member, inputs)
    step, places = MEMBERS[member], list(_heads(inputs))
    batch, heads, _, d_out = inputs["v"].shape
    T = inputs["q"].shape[2]
    kind = np.result_type(*(np.asarray(value) for value in inputs.values()))
    y = np.zeros((batch, heads, T, d_out), kind)
    state = np.zeros(inputs["state0"].shape, kind)
    for b, h, own in places:
        M = inputs["state0"][b, h].T.astype(kind)
        for t in range(T):
            M, y[b, h, t] = step(own, t, M)
        state[b, h] = M.T
    return {"y": y, "state": state}


def _heads(inputs: Inputs) -> Iterator[tuple[int, int, Inputs]]:
    """Each value head with its own inputs; key head = value head // group."""
    batch, heads = inputs["v"].shape[:2]
    for b in range(batch):
        for h in range(heads):
            own = {}
            for name, value in inputs.items():
                if name == "bonus":
                    own[name] = value[h]
                elif name != "state0":
                    own[name] = value[b, h * value.shape[1] // heads]
            yield b, h, own
