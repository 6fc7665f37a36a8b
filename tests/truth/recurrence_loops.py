"""Recurrences beside rule dplr as literal loops, from their equations, entry by entry.

Each function computes one sequence of one head, with states as the rule has them, and shares
nothing with the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray
Inputs = dict[str, Any]


def gsa(x: Inputs, scale: float) -> dict[str, Array]:
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
        scores = [sum(K[a, i] * scale * q[i] for i in range(d_in)) for a in range(m)]
        powers = [np.exp(score) for score in scores]
        reads.append(
            [sum(M[o, a] * powers[a] for a in range(m)) / sum(powers) for o in range(d_out)]
        )
    return {"y": np.array(reads), "K": K, "M": M}


def hgrn(x: Inputs, scale: float) -> dict[str, Array]:
    """One number a channel, which decays and is added to."""
    h, reads = x["h"], []
    for t in range(len(x["x"])):
        h = x["h"] if x["reset"][t] else h
        if x["active"][t]:
            w = np.exp(x["log_retain"][t])
            h = np.array([w[i] * h[i] + x["x"][t, i] for i in range(len(h))])
        reads.append(h)
    return {"y": np.array(reads), "h": h}


MEMBERS = {"gsa": gsa, "hgrn": hgrn}


def run(member: str, x: Inputs, scale: float = 1.0) -> dict[str, Array]:
    """Results of every sequence of (B, ...) inputs; masks are shared."""
    masks = ("active", "reset")
    T = next(iter(x.values())).shape[1]
    shared = {"active": np.ones(T, bool), "reset": np.zeros(T, bool)}
    shared |= {name: x[name] for name in masks if name in x}
    found: dict[str, list[Array]] = {}
    for b in range(len(next(iter(x.values())))):
        one = {name: value[b] for name, value in x.items() if name not in masks}
        for name, value in MEMBERS[member](one | shared, scale).items():
            found.setdefault(name, []).append(value)
    return {name: np.array(value) for name, value in found.items()}
