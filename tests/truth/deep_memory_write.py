"""One write of a memory that learns at test time: clip, momentum, update and rates, by loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.truth import deep_memory_functions as functions
from tests.truth import retention_loops

Array = np.ndarray
Tensors = dict[str, Any]

DEFAULTS: Tensors = {
    "fast": "matrices",
    "vectors": "unit",
    "rate": "memory",
    "newton_schulz": 0,
    "coefficients": (3.4445, -4.7750, 2.0315),
    "ns_eps": 1e-7,
    "ns_guard": "add",
    "ns_transpose": "tall",
    "adaptive": False,
    "clip": "none",
    "clip_norm": None,
    "retention": {"kind": "l2"},
    "deep_momentum": None,
}


def of_tokens(gates: Tensors, B: int, T: int) -> Tensors:
    """Gates as (B, T), constants where there are none."""
    unknown = set(gates) - {"retain", "momentum", "step_size", "window_gate"}
    if unknown:
        raise ValueError(f"gates: unknown {sorted(unknown)}")
    every = {"retain": 1.0, "momentum": 0.0, "step_size": 1.0, "window_gate": 1.0} | gates
    return {name: np.broadcast_to(np.asarray(a), (B, T)) for name, a in every.items()}


def fast_names(read: Tensors, fast: Any, vectors: str) -> tuple[str, ...]:
    """Tensors that are written, in the order of the memory's."""
    if fast == "mlp":
        chosen = [n for n in read if n in ("W", "W_in", "W_value", "W_out") or n[2:].isdigit()]
    elif fast in ("matrices", "all"):
        chosen = [n for n, a in read.items() if fast == "all" or np.ndim(a) == 2]
    else:
        unknown = set(fast) - set(read)
        if isinstance(fast, str) or unknown:
            raise ValueError(f"fast: matrices, all, mlp or names of tensors, not {fast!r}")
        chosen = [n for n in read if n in fast]
    return tuple(n for n in chosen if vectors != "frozen" or np.ndim(read[n]) == 2)


def length(*arrays: Any) -> Any:
    """sqrt of the sum of all squares."""
    return np.sqrt(sum(np.sum(a * a) for a in arrays))


def newton_schulz(
    S: Array, steps: int, coefficients: Any, eps: float, guard: str, transpose: str
) -> Array:
    """X <- a X + (b A + c A^2) X with A = X X^T, from S over its norm."""
    tall = transpose == "tall" and S.shape[0] > S.shape[1]
    X, size = (S.T if tall else S), length(S)
    if guard == "return" and np.real(size) < eps:
        return S
    below = guard == "clamp" and np.real(size) < eps
    X = X / (eps if below else size if guard == "clamp" else size + eps)
    rows = [coefficients] if np.ndim(coefficients) == 1 else list(coefficients)
    for step in range(steps):
        a, b, c = rows[min(step, len(rows) - 1)]
        A = X @ X.T
        X = a * X + (b * A + c * (A @ A)) @ X
    return X.T if tall else X


def clipped(g: Tensors, kind: str, bound: Any) -> Tensors:
    if kind == "none":
        return g
    if kind == "hard":
        share = bound / (length(*g.values()) + 1e-8)
        return {n: a * share for n, a in g.items()} if np.real(share) < 1.0 else g
    if kind != "softclamp":
        raise ValueError(f"clip: none, hard or softclamp, not {kind!r}")
    result = {}
    for name, a in g.items():
        size = length(a)
        half = bound / 2.0
        with np.errstate(invalid="ignore"):
            result[name] = a / size * (half * (1.0 + np.tanh(size / half)))
    return result


def update(S: Array, s: Tensors) -> Array:
    """What is subtracted from the memory, but for its rate."""
    if np.ndim(S) == 2:
        if not s["newton_schulz"]:
            return S
        return newton_schulz(
            S,
            s["newton_schulz"],
            s["coefficients"],
            s["ns_eps"],
            s["ns_guard"],
            s["ns_transpose"],
        )
    return S / (length(S) + 1e-8) if s["vectors"] == "unit" else S


def deep_momentum(
    V: Tensors, g: Tensors, momentum: Any, a: Any, function: Tensors, objective: str, sign: str
) -> tuple[Tensors, Tensors]:
    """The network after a write, and what it makes of the gradient: of Nested Learning, Eq 50.

    objective: l2, |m(u) - u|^2 / 2; dot, -<m(u), u>; ones, -<m(u), 1>, as Eq 50 has it for sign
    minus. Under sign minus u and 1 are -u and -1, in the objective alone.
    """
    f = functions.Function(**function)
    u = np.concatenate([np.ravel(each) for each in g.values()])
    p = functions.value(V, u, f)
    bar = []
    for i in range(len(u)):
        target = 1.0 if objective == "ones" else u[i]
        target = -target if sign == "minus" else target
        bar.append(p[i] - target if objective == "l2" else -target)
    slopes, _ = functions.gradient(V, u, np.array(bar), f)
    after = {name: momentum * V[name] - a * slopes[name] for name in V}
    s, found, first = functions.value(after, u, f), {}, 0
    for name, each in g.items():
        found[name] = np.reshape(s[first : first + np.size(each)], np.shape(each))
        first += np.size(each)
    return after, found


def write(
    s: Tensors,
    W: Tensors,
    S: Tensors,
    g: Tensors,
    gates: Tensors,
    constant: Any = None,
    *,
    first: bool = True,
) -> tuple[Tensors, Tensors, Any]:
    """The memory and its momentum after a write, and the updates, divisor and momentum of it.

    Args:
        constant: updates, divisor and momentum to write instead of those of g, or None.
        first: whether it is the first write of its span.
    """
    divisor = 1.0 + length(*g.values()) if s["adaptive"] else 1.0
    if constant is not None:
        U, divisor, after = constant
    step = gates["step_size"] / divisor
    a = step if s["rate"] in ("momentum", "both") else 1.0
    b = step if s["rate"] in ("memory", "both") else 1.0
    if constant is None:
        g = clipped(g, s["clip"], s["clip_norm"])
        if s["deep_momentum"] is None:
            after = {name: gates["momentum"] * S[name] + a * g[name] for name in W}
            moves = after
        else:
            after, moves = deep_momentum(S, g, gates["momentum"], a, **s["deep_momentum"])
            if s["deep_momentum"]["sign"] == "minus":  # which the memory adds
                moves = {name: -each for name, each in moves.items()}
        U = {name: update(moves[name], s) for name in W}
    retention = {n: x for n, x in s["retention"].items() if n != "lag"}
    if s["retention"].get("lag", False) and not first:
        retention = {"kind": "l2"}
    new = {
        name: retention_loops.written(W[name], gates["retain"], b * U[name], **retention)
        if np.ndim(W[name]) == 2
        else gates["retain"] * W[name] - b * U[name]
        for name in W
    }
    return new, after, (U, divisor, after)
