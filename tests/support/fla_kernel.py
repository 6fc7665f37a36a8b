"""A kernel of Kimi Delta Attention in NumPy with the signature of public ones, and its gradients.

Written from specs/dplr.md; nothing of the package is used. It takes what such kernels take: time in
front of the heads or behind them, packed sequences, fewer heads of keys than of values, logs of
gates, states (K, V) or (V, K).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    initial_state: Array | None = None,
    cu_seqlens: Array | None = None,
    *,
    head_first: bool = False,
    state_v_first: bool = False,
) -> tuple[Array, Array]:
    """o (B, T, HV, V) and the last states (N, HV, K, V), N the batch or the packed sequences."""
    if head_first:
        q, k, v, g, beta = (np.swapaxes(x, 1, 2) for x in (q, k, v, g, beta))
    shared = v.shape[2] // k.shape[2]
    q, k = (np.repeat(x, shared, axis=2) for x in (q, k))
    pairs = [*itertools.pairwise([0, v.shape[1]] if cu_seqlens is None else cu_seqlens.tolist())]
    assert len(pairs) == 1 or len(v) == 1, "packed sequences have batch 1"
    shape = (len(v) * len(pairs), v.shape[2], k.shape[3], v.shape[3])
    kind = np.result_type(q, k, v, g, beta, *([] if initial_state is None else [initial_state]))
    states = np.zeros(shape, kind) if initial_state is None else initial_state
    if state_v_first and initial_state is not None:
        states = np.swapaxes(states, -1, -2)
    assert states.shape == shape, (states.shape, shape)
    y, last = np.zeros(v.shape, kind), []
    for n, (start, stop) in enumerate(pairs):
        S = states if len(pairs) == 1 else states[n : n + 1]
        for t in range(start, stop):
            S = S * np.exp(g[:, t])[..., None]
            found = np.einsum("bhk,bhkv->bhv", k[:, t], S)
            change = beta[:, t, :, None] * (v[:, t] - found)
            S = S + k[:, t, :, :, None] * change[:, :, None, :]
            y[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], S) * k.shape[3] ** -0.5
        last.append(S)
    M = np.concatenate(last)
    return (
        np.swapaxes(y, 1, 2) if head_first else y,
        np.swapaxes(M, -1, -2) if state_v_first else M,
    )


def by_complex_step(
    arguments: dict[str, Any], y_bar: Array, M_bar: Array | None, *, kernel: Any = kda
) -> dict[str, Any]:
    """Gradients of a kernel by every floating argument, entry by entry."""
    found = {}
    for name, x in arguments.items():
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            continue
        found[name] = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[place] += 1e-30j
            y, M = kernel(**{**arguments, name: moved})
            change = (y.imag * y_bar).sum() + (0 if M_bar is None else (M.imag * M_bar).sum())
            found[name][place] = change / 1e-30
    return found
