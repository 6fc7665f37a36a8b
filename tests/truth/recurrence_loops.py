"""Recurrences beside rule dplr as literal loops, from their equations, entry by entry.

Each function computes one sequence of one head, with states as the rule has them, and shares
nothing with the package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
Inputs = dict[str, Any]


class Own(NamedTuple):
    """Settings of the loops.

    Factor of queries, mini-batch and eps of ttt_linear, tokens before of log_linear; of short_conv
    its activation, the columns of its window and what a reset restores.
    """

    scale: float = 1.0
    mini_batch: int = 16
    norm_eps: float = 1e-6
    position: int = 0
    activation: str = "none"
    columns: str = "W-1"
    reset_to: str = "zero"


def gsa(x: Inputs, own: Own) -> dict[str, Array]:
    """A key and a value of each slot; the value of a read is weighed by softmax over slots."""
    (T, d_in), d_out, m = x["k"].shape, x["v"].shape[-1], x["s"].shape[-1]
    K, M, reads = x["K"], x["M"], []
    for t in range(T):
        k, v, q, s = (x[name][t] for name in ("k", "v", "q", "s"))
        K, M = (x["K"], x["M"]) if x["reset"][t] else (K, M)
        if x["active"][t]:
            w = np.exp(x["log_retain"][t])
            K = np.array([[w[a] * K[a, i] + s[a] * k[i] for i in range(d_in)] for a in range(m)])
            M = np.array([[w[a] * M[o, a] + s[a] * v[o] for a in range(m)] for o in range(d_out)])
        scores = [sum(K[a, i] * own.scale * q[i] for i in range(d_in)) for a in range(m)]
        powers = [np.exp(score) for score in scores]
        reads.append(
            [sum(M[o, a] * powers[a] for a in range(m)) / sum(powers) for o in range(d_out)]
        )
    return {"y": np.array(reads), "K": K, "M": M}


def hgrn(x: Inputs, own: Own) -> dict[str, Array]:
    """One number a channel, which decays and is added to."""
    h, reads = x["h"], []
    for t in range(len(x["x"])):
        h = x["h"] if x["reset"][t] else h
        if x["active"][t]:
            w = np.exp(x["log_retain"][t])
            h = np.array([w[i] * h[i] + x["x"][t, i] for i in range(len(h))])
        reads.append(h)
    return {"y": np.array(reads), "h": h}


def mesa(x: Inputs, own: Own) -> dict[str, Array]:
    """Sums over keys; a read solves its own system by elimination, entry by entry."""
    (T, d_in), d_out = x["k"].shape, x["v"].shape[-1]
    G, M, reads = x["G"], x["M"], []
    for t in range(T):
        k, v, beta, w = x["k"][t], x["v"][t], x["weight"][t], np.exp(x["log_retain"][t])
        G, M = (x["G"], x["M"]) if x["reset"][t] else (G, M)
        if x["active"][t]:
            G = np.array(
                [[w * G[i, j] + beta * k[i] * k[j] for j in range(d_in)] for i in range(d_in)]
            )
            M = np.array(
                [[w * M[o, i] + beta * v[o] * k[i] for i in range(d_in)] for o in range(d_out)]
            )
        system = [
            [G[i, j] + (x["ridge"][i] if i == j else 0.0) for j in range(d_in)] for i in range(d_in)
        ]
        asks = eliminated(system, list(x["q"][t]))
        reads.append([sum(M[o, i] * asks[i] for i in range(d_in)) for o in range(d_out)])
    return {"y": np.array(reads), "G": G, "M": M}


def eliminated(A: list[list[Any]], b: list[Any]) -> list[Any]:
    """The solution of A x = b: Gauss and Jordan, the largest real part of a column first."""
    rows = [[*row, right] for row, right in zip(A, b, strict=True)]
    for i in range(len(rows)):
        best = max(range(i, len(rows)), key=lambda r: abs(np.real(rows[r][i])))
        rows[i], rows[best] = rows[best], rows[i]
        for r in range(len(rows)):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * p for a, p in zip(rows[r], rows[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def ttt_linear(x: Inputs, own: Own) -> dict[str, Array]:
    """Every read sums anew over the mini-batch; a gradient is the whole Jacobian of the norm."""
    T, d = x["k"].shape
    whole = start = (x["M"], x["bias"])
    seen: list[tuple[Array, list[Any]]] = []
    reads = []
    for t in range(T):
        if x["reset"][t]:
            whole, start, seen = (x["M"], x["bias"]), (x["M"], x["bias"]), []
        if x["active"][t]:
            if len(seen) == own.mini_batch:
                start, seen = whole, []
            M, bias = start
            k, v, eta = x["k"][t], x["v"][t], x["step_size"][t]
            z = [sum(M[i, j] * k[j] for j in range(d)) + bias[i] for i in range(d)]
            seen.append((k, _slope(z, v - k, x, own.norm_eps)))
            whole = (
                np.array(
                    [[M[i, j] - eta * sum(u[i] * k[j] for k, u in seen) for j in range(d)]
                     for i in range(d)]
                ),
                np.array([bias[i] - eta * sum(u[i] for _, u in seen) for i in range(d)]),
            )  # fmt: skip
        M, bias = whole
        q = own.scale * x["q"][t]
        o = [sum(M[i, j] * q[j] for j in range(d)) + bias[i] for i in range(d)]
        hat, _ = _standard(o, own.norm_eps)
        reads.append([o[i] + hat[i] * x["gain"][i] + x["shift"][i] for i in range(d)])
    return {"y": np.array(reads), "M": whole[0], "bias": whole[1]}


def _standard(z: list[Any], eps: float) -> tuple[list[Any], Any]:
    """Entries without their mean, over their deviation."""
    mean = sum(z) / len(z)
    deviation = np.sqrt(sum((each - mean) ** 2 for each in z) / len(z) + eps)
    return [(each - mean) / deviation for each in z], deviation


def _slope(z: list[Any], target: Array, x: Inputs, eps: float) -> list[Any]:
    """d/dz_j of 1/2 sum_i (norm(z)_i gain_i + shift_i - target_i)^2."""
    hat, deviation = _standard(z, eps)
    d = len(z)
    return [
        sum(
            (hat[i] * x["gain"][i] + x["shift"][i] - target[i])
            * x["gain"][i]
            * ((i == j) - 1 / d - hat[i] * hat[j] / d)
            / deviation
            for i in range(d)
        )
        for j in range(d)
    ]


def log_linear(x: Inputs, own: Own) -> dict[str, Array]:
    """Every read sums anew over the past; the level of a past token is that of its bits."""
    (T, d_in), d_out, levels = x["k"].shape, x["v"].shape[-1], x["level_scales"].shape[-1]
    last = own.position - 1
    earlier = [(last, x["M"][0])] if own.position else []
    for level in range(1, levels):
        if own.position and last >> (level - 1) & 1:  # one of its tokens stands for all
            earlier.append((last ^ (1 << (level - 1)), x["M"][level]))
    past, here, reads = earlier, last, []
    for t in range(T):
        if x["reset"][t]:
            past, here = earlier, last
        if x["active"][t]:
            k, v, w = x["k"][t], x["v"][t], np.exp(x["log_retain"][t])
            added = np.array([[v[o] * k[i] for i in range(d_in)] for o in range(d_out)])
            here += 1
            past = [(s, w * each) for s, each in past] + [(here, added)]
        q, lev = own.scale * x["q"][t], x["level_scales"][t]
        reads.append([
            sum(lev[(here ^ s).bit_length()] * sum(each[o, i] * q[i] for i in range(d_in))
                for s, each in past) + 0.0
            for o in range(d_out)
        ])  # fmt: skip
    M = np.zeros((levels, d_out, d_in), np.result_type(0.0, *(each for _, each in past)))
    for s, each in past:
        M[(here ^ s).bit_length()] += each
    return {"y": np.array(reads), "M": M}


def short_conv(x: Inputs, own: Own) -> dict[str, Array]:
    """Of each token a list of all inputs of its sequence, zeros far before; sums entry by entry."""
    (T, d), W = x["x"].shape, x["w"].shape[-1]
    count = W if own.columns == "W" else W - 1
    first = [x["window"][:, j] for j in range(count)]
    past, reads = first, []
    for t in range(T):
        if x["reset"][t]:
            past = first if own.reset_to == "first" else [np.zeros(d)] * count
        if not x["active"][t]:
            reads.append([0.0] * d)
            continue
        past = [*past, x["x"][t]]
        sums = [
            sum(x["w"][c, j] * past[len(past) - W + j][c] for j in range(W)) + x["bias"][c]
            for c in range(d)
        ]
        reads.append([z / (1.0 + np.exp(-z)) if own.activation == "silu" else z for z in sums])
    last = past[len(past) - count :]
    return {"y": np.array(reads), "window": np.array(last).T}


MEMBERS = {
    "gsa": gsa,
    "hgrn": hgrn,
    "mesa": mesa,
    "ttt_linear": ttt_linear,
    "log_linear": log_linear,
    "short_conv": short_conv,
}


def run(member: str, x: Inputs, **own: Any) -> dict[str, Array]:
    """Results of every sequence of (B, ...) inputs; masks are shared.

    Args:
        own: settings, as `Own` has them.
    """
    masks = ("active", "reset")
    T = next(iter(x.values())).shape[1]
    shared = {"active": np.ones(T, bool), "reset": np.zeros(T, bool)}
    shared |= {name: x[name] for name in masks if name in x}
    found: dict[str, list[Array]] = {}
    for b in range(len(next(iter(x.values())))):
        one = {name: value[b] for name, value in x.items() if name not in masks}
        for name, value in MEMBERS[member](one | shared, Own(**own)).items():
            found.setdefault(name, []).append(value)
    return {name: np.array(value) for name, value in found.items()}
