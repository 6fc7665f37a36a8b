"""The rules of a token that schedules have, each by a case of another rule (SCHED-8).

z = conv(x), q, k, v = z in parts of every head, norms, positions, then the rule
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.types import Array

#: What is added to the square of a length in a norm.
EPS = 1e-6

#: Base of the angles of positions.
BASE = 10000.0

#: Computes results of a case: (rule, header, inputs) -> out/...
Run = Callable[[str, Mapping[str, Any], Mapping[str, Array]], Mapping[str, Array]]

#: Tensors of some tokens, (n, channels) and gates (heads, n, ...).
Rows = Mapping[str, Array]

#: The state of a request: name -> array, and the number of tokens before it as `position`.
State = dict[str, Any]


class Member(NamedTuple):
    """The rule of a token.

    Attributes:
        rule: of the case that computes it.
        header: of that case.
        gates: tensors of each token beside x -> whether there is one number for each key channel.
        weights: tensors of each head.
        states: names of its states, matrices d_out by d_in.
        tokens: (gates, weights, q, k, v, limits) -> inputs of the case.
        reads: (what the case reads, weights, v) -> what the member reads.
    """

    rule: str
    header: Mapping[str, Any]
    gates: Mapping[str, bool]
    tokens: Callable[..., dict[str, Array]]
    weights: tuple[str, ...] = ()
    states: tuple[str, ...] = ("M",)
    reads: Callable[..., Array] = lambda y, weights, v: y


def norm(x: Array) -> Array:
    """x / sqrt(sum x^2 + 1e-6) over the last axis."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(EPS))


def _of_beta(gates: Rows, weights: Rows, q: Array, k: Array, v: Array, limits: Any) -> Any:
    return {"in/log_retain": gates["g"], "in/beta": gates["beta"]}


def _of_kk(gates: Rows, weights: Rows, q: Array, k: Array, v: Array, limits: Any) -> Any:
    return {"in/log_retain": gates["g"], "in/a": gates["a"], "in/kk": norm(k)}


def _of_momentum(gates: Rows, weights: Rows, q: Array, k: Array, v: Array, limits: Any) -> Any:
    return {"in/log_retain": gates["g"], "in/momentum": gates["mu"], "in/step_size": gates["eta"]}


def _of_step(gates: Rows, weights: Rows, q: Array, k: Array, v: Array, limits: Any) -> Any:
    """Mamba-2: a step dt of each head and token, its decay exp(-exp(A_log) dt), and values dt v."""
    least, greatest = limits
    raw = gates["dt_raw"] + weights["dt_bias"][:, None]
    dt = np.clip(np.logaddexp(raw.dtype.type(0), raw), least, greatest).astype(raw.dtype)
    return {"in/log_retain": -np.exp(weights["A_log"])[:, None] * dt, "in/v": dt[..., None] * v}


def _dplr(member: str) -> dict[str, Any]:
    return {"parameters": {"member": member, "query_scale": 1}}


#: Name of a member -> its row.
MEMBERS: dict[str, Member] = {
    "gated_delta": Member(
        "dplr", _dplr("gated_delta"), {"g": False, "beta": False}, tokens=_of_beta
    ),
    "kda": Member("dplr", _dplr("kda"), {"g": True, "beta": False}, tokens=_of_beta),
    "rwkv7": Member("dplr", _dplr("rwkv7"), {"g": True, "a": True}, tokens=_of_kk),
    "titans": Member(
        "titans_lmm",
        {"convention": {"gate": "retain", "momentum_sign": "minus"}},
        {"g": False, "mu": False, "eta": False},
        tokens=_of_momentum,
        states=("M", "S"),
    ),
    "mamba2": Member(
        "dplr",
        _dplr("simple_gla"),
        {"dt_raw": False},
        tokens=_of_step,
        weights=("A_log", "dt_bias", "D"),
        reads=lambda y, weights, v: y + weights["D"][:, None, None] * v,
    ),
}


def first_state(own: Any, dtype: Any) -> State:
    """The state of a request before its first token: zeros."""
    state: State = {
        name: np.zeros((own.heads, own.d_out, own.d_in), dtype) for name in own.of.states
    }
    if own.conv:
        state["window"] = np.zeros((own.conv - 1, own.channels), dtype)
    return {**state, "position": 0}


def advance(
    own: Any, weights: Rows, state: State, rows: Rows, run: Run, *, limited: bool = True
) -> tuple[Array, State]:
    """Reads of some tokens of one request, (n, heads, d_out), and the state after them (SCHED-8).

    Args:
        own: parameters of the case.
        weights: tensors that all requests share, without `in/`.
        rows: of the tokens, by the names of the case without `in/`.
        run: computes results of a case.
        limited: whether steps have their limits.
    """
    x = rows["x"]
    count, after = len(x), dict(state)
    if not count:
        return np.zeros((0, own.heads, own.d_out), x.dtype), after
    if own.conv:
        x, after["window"] = _convolve(own, weights, state, x, run)
    q, k, v = _parts(own, x)
    if own.qk_norm:
        q, k = norm(q), norm(k)
    if own.rope:
        positions = state["position"] + np.arange(count)
        q, k = _turn(q, positions), _turn(k, positions)
    limits = (own.dt_min, np.inf if own.dt_max is None else own.dt_max)
    gates = {name: rows[name] for name in own.of.gates}
    tokens = own.of.tokens(gates, weights, q, k, v, limits if limited else (0.0, np.inf))
    inputs = {"in/q": q, "in/k": k, "in/v": v, **tokens}
    inputs |= {f"in/{name}0": state[name] for name in own.of.states}
    found = run(own.of.rule, own.of.header, inputs)
    after |= {name: found[f"out/{name}"] for name in own.of.states}
    after["position"] = state["position"] + count
    reads = own.of.reads(found["out/y"], weights, v) * x.dtype.type(own.scale)
    return np.moveaxis(reads, 1, 0), after


def retention(own: Any, weights: Rows, rows: Rows) -> Array:
    """Share of the memory that some tokens leave together, for an outer axis of it."""
    count = len(rows["x"])
    zero = np.zeros((own.heads, count, 1), rows["x"].dtype)
    gates = {name: rows[name] for name in own.of.gates}
    limits = (own.dt_min, np.inf if own.dt_max is None else own.dt_max)
    logs = own.of.tokens(gates, weights, zero, zero, zero, limits)["in/log_retain"]
    total = np.exp(logs.sum(axis=1))
    return total[:, None, None] if total.ndim == 1 else total[:, None, :]


def _convolve(own: Any, weights: Rows, state: State, x: Array, run: Run) -> tuple[Array, Array]:
    """The short convolution of each channel, and its window, the oldest row first (SHORT-1)."""
    activation = "silu" if own.conv_silu else "none"
    header = {"parameters": {"member": "short_conv", "activation": activation}}
    inputs = {"in/x": x, "in/w": weights["conv_w"], "in/window0": state["window"].T}
    found = run("recurrence", header, inputs)
    return found["out/y"], np.ascontiguousarray(found["out/window"].T)


def _parts(own: Any, x: Array) -> tuple[Array, Array, Array]:
    """Queries, keys and values (heads, n, d) of rows in which they stand head by head."""
    widths = np.cumsum([own.heads * own.d_in] * 2)
    q, k, v = (
        np.ascontiguousarray(np.moveaxis(part.reshape(len(x), own.heads, -1), 1, 0))
        for part in np.split(x, widths, axis=1)
    )
    return q, k, v


def _turn(x: Array, positions: Array) -> Array:
    """Pairs (i, i + d/2) turned by position * 10000^(-2i/d)."""
    d = x.shape[-1]
    half = d // 2
    angles = positions[:, None] * BASE ** (-2.0 * np.arange(half) / d)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([one * cos - two * sin, one * sin + two * cos, rest], axis=-1)
