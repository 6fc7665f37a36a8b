"""A block around a deep memory that learns per row, in chunks, with attention's projections: loops.

The axes of `atlas_ref.layers.shared_memory` in words of its own; positions, documents and calls are
those of one call. Parameters by the names of the public code, float64. Nothing here is shared with
the package under test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.truth import atlas_mag_loops as mag
from tests.truth import atlas_mag_parts as parts
from tests.truth import deep_memory_loops as deep

Array = np.ndarray
Tensors = dict[str, Any]


class Axes(NamedTuple):
    """Readings of a block.

    Attributes:
        keys: persistent rows, or None for a multiple of the unit matrix.
        deep: settings of `deep_memory_loops.run`, without those of windows.
    """

    heads: int
    attention: int
    window: int
    decay: float
    deep: Tensors
    memory_input: str = "q_projected"
    write_key: str = "k"
    with_residual: bool = False
    weights: str = "decay_times_gate"
    rotated: bool = True
    inclusive: bool = False
    keys: Any = None
    mix: str = "attention_times_gate"
    rates: tuple[float, float, float] = (0.999, 0.9, 0.01)
    training: bool = True


class Result(NamedTuple):
    """Results of a block, what its memory returned, and its state."""

    y: Array
    m: Array
    state: Tensors


def block(x: Array, p: Tensors, a: Axes) -> Result:
    """The block on x (B, T, d) from its beginning, values alone."""
    h, _ = parts.rms_norm(x, p["norm1.weight"])
    (q, k, v), _ = parts.qkv(h, mag.below(p, "qkv."), a.heads)
    turned = [parts.rotary(each) for each in (q, k)]
    reads, _ = parts.attention(*turned, v, a.attention, None)
    attended, _ = parts.linear(parts.merge(reads), p["w_o.weight"])
    own = [parts.merge(each) for each in (turned if a.rotated else (q, k))]
    m, state = memory(h, own[0], own[1], parts.merge(v), p, a)
    middle = (
        x
        + {
            "attention_times_gate": lambda: attended * parts.sigmoid(m),
            "sum": lambda: attended + parts.sigmoid(x @ p["mix.W"].T + p["mix.b"]) * m,
        }[a.mix]()
    )
    n, _ = parts.rms_norm(middle, p["norm2.weight"])
    z, _ = parts.swiglu(n, *(p[f"ffn.w{i}.weight"] for i in (1, 2, 3)))
    return Result(middle + z, m, state)


def memory(h: Array, q: Array, k: Array, v: Array, p: Tensors, a: Axes) -> tuple[Array, Tensors]:
    """What the memory returns, and its state; rows (B, T, d)."""
    gate, _ = parts.gamma_gate(h, p["gamma_gate.gate.0.weight"], p["gamma_gate.gate.2.weight"])
    u, known = gate[:, :, 0], {"q": q, "k": k, "h": h}
    if "q_projected" in (a.memory_input, a.write_key):
        known["q_projected"] = projected(q, k, u, a)
    key, query = known[a.write_key], known[a.memory_input]
    value = np.array(v)
    settings = a.deep | {
        "window": a.window,
        "window_decay": 1.0 if a.weights == "gate" else a.decay,
    }
    if a.with_residual:
        value = value - key  # the loss is of M(key) + key; what is read is M
    retain, momentum, step = a.rates
    gates: Tensors = {"retain": retain, "momentum": momentum, "step_size": step}
    if a.weights != "decay":
        gates["window_gate"] = u
    tensors = {mag.NAMES[name]: each for name, each in mag.below(p, "memory.").items()}
    return deep.run(settings, tensors, key, value, query, gates, training=a.training)


def projected(q: Array, k: Array, u: Array, a: Axes) -> Array:
    """Queries projected onto the keys of their windows, token by token."""
    B, T, d = q.shape
    y = np.zeros(q.shape)
    for b, t in np.ndindex(B, T):
        if a.keys is None:
            above, under = 0.1 * q[b, t], 0.01 * d + 1e-6
        else:
            above, under = np.zeros(d), 1e-6
            for row in a.keys:
                above, under = above + row * sum(row * q[b, t]), under + sum(row**2)
        last = t if a.inclusive else t - 1
        for j in range(max(0, last - a.window + 1), last + 1):
            w = a.decay ** (last - j) * u[b, j]
            above, under = (
                above + w * k[b, j] * sum(k[b, j] * q[b, t]),
                under + w * sum(k[b, j] ** 2),
            )
        y[b, t] = above / under
    return y
