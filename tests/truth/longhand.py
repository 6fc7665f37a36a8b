"""One Omega sequence longhand: each token's step and its backward, one index at a time, as the
specs write.

The forward loop (OMEGA-2 to OMEGA-13, WINDOW-8 to WINDOW-17) takes float64 or complex128, so that a
complex step passes; the backward loop (OMEGA-23 to OMEGA-26, WINDOW-22 to WINDOW-24) visits the
tokens from the last to the first. Inputs are mapped keys and queries of one sequence. Nothing is
shared with the package under test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

STEP = 1e-30
CUBIC = {"coefficients": "cubic", "steps": 2, "eps": 0.01}


@dataclass(frozen=True)
class Setting:
    """Settings of the cases; read after, momentum_sign plus and direction descent throughout."""

    c: int = 1
    rate: str = "momentum"
    decay: str = "after_error"
    reference: str = "running"
    span: int | None = None
    boundary: str = "recompute"
    edge: str = "truncate"
    order: str = "window_then_momentum"
    argument: str | None = None  # None: no Newton-Schulz
    s: float = 1.0
    phase: int | None = None

    @property
    def convention(self) -> dict[str, Any]:
        newton_schulz = "none" if self.argument is None else {**CUBIC, "argument": self.argument}
        axes = {
            "rate": self.rate,
            "decay": self.decay,
            "reference": self.reference,
            "window_at_boundary": self.boundary,
        }
        axes |= {
            "window_edge": self.edge,
            "order": self.order,
            "newton_schulz": newton_schulz,
            "gradient_scale": self.s,
        }
        return {**axes, "gate": "retain"}

    @property
    def header(self) -> dict[str, Any]:
        optional = {"span": self.span, "phase": self.phase}
        return {"window": self.c} | {
            key: value for key, value in optional.items() if value is not None
        }

    @property
    def frozen(self) -> bool:
        return self.reference in ("chunk_start", "call_start")

    @property
    def momentum_first(self) -> bool:
        return self.order == "momentum_then_window"


def rows(gate: Any, matrix: np.ndarray) -> np.ndarray:
    """The product diag(gate) matrix, or a number times the matrix."""
    return np.reshape(gate, (-1, 1)) * matrix


def inner(gate: Any, X: np.ndarray, Y: np.ndarray) -> Any:
    """The inner product <X, Y>, row by row for a gate per output dimension."""
    return np.sum(X * Y, axis=1) if np.ndim(gate) else np.sum(X * Y)


def newton_schulz(S: np.ndarray) -> np.ndarray:
    """Two cubic steps from S / (||S|| + 0.01)."""
    X = S / (np.sqrt(np.sum(S * S)) + 0.01)
    for _ in range(2):
        X = 1.5 * X - 0.5 * X @ X.T @ X
    return X


def newton_schulz_backward(S: np.ndarray, bar: np.ndarray) -> np.ndarray:
    """The backward NS* of `newton_schulz` at S, from its Jacobian by complex step."""
    cotangent = np.zeros(S.shape)
    for place in np.ndindex(*S.shape):
        moved = S.astype(complex)
        moved[place] += 1j * STEP
        cotangent[place] = np.sum(bar * newton_schulz(moved).imag / STEP)
    return cotangent


@dataclass
class Token:
    """The record of one token in the forward loop, for the backward loop."""

    active: bool
    reset: bool
    refreshed: bool
    M_before: np.ndarray
    S_before: np.ndarray
    reference: np.ndarray
    R: np.ndarray
    # lag, token, residual, whether it is the stored one
    members: list[tuple[int, int, np.ndarray, bool]]
    momenta: list[tuple[int, int, np.ndarray]]  # lag, token, Z (momentum_then_window)
    present: list[int]  # lags whose token exists
    weights: np.ndarray  # after the edge
    g: Any = None
    S: Any = None
    P: Any = None
    U: Any = None
    M: Any = None


def forward(p: dict[str, np.ndarray], o: Setting) -> tuple[dict[str, np.ndarray], list[Token]]:
    """The forward loop: y, M_T, S_T and the record of every token."""
    T, n = len(p["k"]), len(p.get("window_k", ()))
    phi = np.concatenate([p["window_k"], p["k"]]) if n else p["k"]
    v = np.concatenate([p["window_v"], p["v"]]) if n else p["v"]
    stored = dict(enumerate(p.get("window_residual", ())))
    given_momenta = list(p.get("window_momentum", ()))
    # by token number, initial ones below n
    Z = {n - len(given_momenta) + i: z for i, z in enumerate(given_momenta)}
    M, S = p["M0"], p["S0"]
    reference = p.get("M_ref")
    position, first = o.phase or 0, 0  # first: oldest token of the packed sequence
    record, reads = [], []
    for t in range(T):
        i = n + t
        reset = bool(p["reset"][t]) if "reset" in p else False
        if reset:
            M, S, reference, position, first, stored, Z = p["M0"], p["S0"], None, 0, i, {}, {}
        refreshed = o.frozen and (
            reference is None or (o.reference == "chunk_start" and position == 0)
        )
        if refreshed:
            reference = M
        active = bool(p["active"][t]) if "active" in p else True
        retain, momentum = p["retain"][t], p["momentum"][t]
        base = {"running": M, "zero": 0 * M}.get(o.reference, reference)
        R = rows(retain, base) if o.decay == "before_error" and active else base
        stored[i] = R @ phi[i] - v[i]
        lags = [j for j in range(o.c) if i - j >= first]
        weights = p["window_weights"][t]
        if o.edge == "renormalise" and not o.momentum_first:
            weights = weights * sum(weights) / sum(weights[j] for j in lags)
        members = []
        for j in lags:
            older = o.frozen and j > position
            if older and o.boundary == "cut":
                continue
            carried = older and o.boundary == "carry"
            members.append(
                (j, i - j, stored[i - j] if carried else R @ phi[i - j] - v[i - j], carried)
            )
        token = Token(active, reset, refreshed, M, S, base, R, members, [], lags, weights)
        if active:
            h = p["step_size"][t]
            a = h if o.rate in ("momentum", "both", "split") else 1.0
            b = (
                p["step_size_memory"][t]
                if o.rate == "split"
                else h
                if o.rate in ("memory", "both")
                else 1.0
            )
            if o.momentum_first:
                token.g = o.s * np.outer(stored[i], phi[i])
            else:
                token.g = o.s * sum(
                    (weights[j] * np.outer(e, phi[u]) for j, u, e, _ in members), 0 * M
                )
            token.S = S = rows(momentum, S) + rows(a, token.g)
            token.P = S
            Z[i] = S
            if o.momentum_first:
                token.momenta = [(j, i - j, Z[i - j]) for j in range(o.c) if i - j in Z]
                token.P = sum(weights[j] * z for j, _, z in token.momenta)
            N = token.g + rows(momentum, token.P) if o.argument == "nesterov" else token.P
            token.U = N if o.argument in (None, "accumulated") else newton_schulz(N)
            if o.argument == "written_back":
                S = token.U
            M = rows(retain, M) - rows(b, token.U)
        Z[i] = S
        token.M = M
        record.append(token)
        reads.append((newton_schulz(M) if o.argument == "accumulated" else M) @ p["q"][t])
        position = (position + 1) % o.span if o.reference == "chunk_start" else position + 1
    return {"y": np.array(reads), "M": M, "S": S}, record


def backward(p: dict[str, np.ndarray], o: Setting) -> dict[str, np.ndarray]:
    """Derivatives of <y, y_bar> + <M, M_bar> + <S, S_bar> by every input, clause by clause."""
    _, record = forward(p, o)
    T, n = len(p["k"]), len(p.get("window_k", ()))
    phi = np.concatenate([p["window_k"], p["k"]]) if n else p["k"]
    d_out = p["v"].shape[1]
    bar = {
        name: np.zeros(value.shape)
        for name, value in p.items()
        if name not in ("y_bar", "M_bar", "S_bar", "active", "reset")
    }
    phi_bar, v_bar, e_bar_stored = (
        np.zeros(phi.shape),
        np.zeros((n + T, d_out)),
        np.zeros((n + T, d_out)),
    )
    Z_bar = {i: np.zeros(p["M0"].shape) for i in range(-o.c, n + T)}
    M_bar, S_bar, reference_bar = p["M_bar"], p["S_bar"], np.zeros(p["M0"].shape)
    for t in reversed(range(T)):
        token, i = record[t], n + t
        retain, momentum, h = p["retain"][t], p["momentum"][t], p["step_size"][t]
        a = h if o.rate in ("momentum", "both", "split") else 1.0
        b = (
            p["step_size_memory"][t]
            if o.rate == "split"
            else h
            if o.rate in ("memory", "both")
            else 1.0
        )
        # OMEGA-23
        read_bar = np.outer(p["y_bar"][t], p["q"][t])
        if o.argument == "accumulated":
            M_bar = M_bar + newton_schulz_backward(token.M, read_bar)
            bar["q"][t] = newton_schulz(token.M).T @ p["y_bar"][t]
        else:
            M_bar = M_bar + read_bar
            bar["q"][t] = token.M.T @ p["y_bar"][t]
        R_bar = np.zeros(p["M0"].shape)
        if token.active:
            bar["retain"][t] += inner(retain, M_bar, token.M_before)
            U_bar = -rows(b, M_bar)
            b_bar = -inner(h, M_bar, token.U)
            M_bar = rows(retain, M_bar)
            # OMEGA-24
            g_bar = np.zeros(p["M0"].shape)
            if o.argument == "written_back":
                S_bar = newton_schulz_backward(token.P, U_bar + S_bar)
                P_bar = np.zeros(p["M0"].shape)
            elif o.argument == "nesterov":
                N_bar = newton_schulz_backward(token.g + rows(momentum, token.P), U_bar)
                P_bar = rows(momentum, N_bar)
                g_bar = g_bar + N_bar
                bar["momentum"][t] += inner(momentum, N_bar, token.P)
            else:
                P_bar = newton_schulz_backward(token.P, U_bar) if o.argument == "S" else U_bar
            weights_bar = np.zeros(o.c)
            if o.momentum_first:
                for j, u, z in token.momenta:
                    Z_bar[u] = Z_bar[u] + token.weights[j] * P_bar
                    weights_bar[j] = np.sum(P_bar * z)
                S_bar = S_bar + Z_bar[i]
            else:
                S_bar = S_bar + P_bar
            g_bar = g_bar + rows(a, S_bar)
            a_bar = inner(h, S_bar, token.g)
            bar["momentum"][t] += inner(momentum, S_bar, token.S_before)
            S_bar = rows(momentum, S_bar)
            bar["step_size"][t] += a_bar * (o.rate in ("momentum", "both", "split")) + b_bar * (
                o.rate in ("memory", "both")
            )
            if o.rate == "split":
                bar["step_size_memory"][t] += b_bar
            # OMEGA-25
            members = (
                [(0, i, token.R @ phi[i] - _value(p, i), False)]
                if o.momentum_first
                else token.members
            )
            for j, u, e, carried in members:
                weight = 1.0 if o.momentum_first else token.weights[j]
                e_bar = o.s * weight * g_bar @ phi[u]
                phi_bar[u] += o.s * weight * g_bar.T @ e
                if not o.momentum_first:
                    weights_bar[j] = o.s * e @ g_bar @ phi[u]
                if carried:
                    e_bar_stored[u] += e_bar
                else:
                    v_bar[u] -= e_bar
                    phi_bar[u] += token.R.T @ e_bar
                    R_bar = R_bar + np.outer(e_bar, phi[u])
            bar["window_weights"][t] = _before_the_edge(
                p["window_weights"][t], weights_bar, token.present, o
            )
        else:
            S_bar = S_bar + Z_bar[i]
        # WINDOW-24: what later windows asked of the stored residual
        v_bar[i] -= e_bar_stored[i]
        phi_bar[i] += token.R.T @ e_bar_stored[i]
        R_bar = R_bar + np.outer(e_bar_stored[i], phi[i])
        # OMEGA-26
        if o.decay == "before_error" and token.active:
            bar["retain"][t] += inner(retain, R_bar, token.reference)
            R_bar = rows(retain, R_bar)
        if o.reference == "running":
            M_bar = M_bar + R_bar
        elif o.frozen:
            reference_bar = reference_bar + R_bar
            if token.refreshed:
                M_bar, reference_bar = M_bar + reference_bar, np.zeros(p["M0"].shape)
        if token.reset:
            bar["M0"] += M_bar
            bar["S0"] += S_bar
            M_bar, S_bar = np.zeros(p["M0"].shape), np.zeros(p["M0"].shape)
    bar["M0"] += M_bar
    bar["S0"] += S_bar
    bar["k"], bar["v"] = phi_bar[n:], v_bar[n:]
    if n:
        bar["window_k"], bar["window_v"] = phi_bar[:n], v_bar[:n]
    if "window_residual" in p:
        bar["window_residual"] = e_bar_stored[:n]
    if "M_ref" in p:
        bar["M_ref"] = reference_bar
    if "window_momentum" in p:
        m = len(p["window_momentum"])
        bar["window_momentum"] = np.array([Z_bar[n - m + i] for i in range(m)])
    return bar


def _value(p: dict[str, np.ndarray], i: int) -> np.ndarray:
    n = len(p.get("window_k", ()))
    return p["window_v"][i] if i < n else p["v"][i - n]


def _before_the_edge(
    weights: np.ndarray, bar: np.ndarray, present: list[int], o: Setting
) -> np.ndarray:
    """The backward of WINDOW-23, from the renormalised weights to the inputs."""
    if o.edge == "truncate" or o.momentum_first:
        return bar
    N, D = sum(weights), sum(weights[j] for j in present)
    along = sum(weights[i] * bar[i] for i in present)
    return np.array(
        [
            (j in present) * N / D * bar[j] + (1 / D - (j in present) * N / D**2) * along
            for j in range(o.c)
        ]
    )


def complex_step(p: dict[str, np.ndarray], o: Setting, name: str) -> np.ndarray:
    """The derivative of the same number by complex step through the forward loop."""
    gradient = np.zeros(p[name].shape)
    for place in np.ndindex(*p[name].shape):
        moved = p[name].astype(complex)
        moved[place] += 1j * STEP
        out, _ = forward({**p, name: moved}, o)
        gradient[place] = (
            sum(np.sum(out[key] * p[f"{key}_bar"]).imag for key in ("y", "M", "S")) / STEP
        )
    return gradient
