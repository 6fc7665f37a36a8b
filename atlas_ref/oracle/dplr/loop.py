"""The rule dplr as a plain loop in any legal arithmetic (DPLR-2 to DPLR-7, TOL-3).

Written from the clauses; it shares no code with `rules.dplr`. Everything takes arrays and tape
variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.parameters import Parameters, parsed
from atlas_ref.types import Array
from tape import ops

Inputs = Mapping[str, Array]


def run(inputs: Inputs, case: Any, rounding: Any) -> dict[str, Array]:
    """Results of a case, every head, token and step one after the other."""
    own = parsed(case.header)
    x = _of_value_heads(own, inputs, rounding)
    *lead, rows, d_out = x["in/v"].shape
    d_in, T = x["in/k"].shape[-1], rows // own.steps
    M = x.get("in/M0")
    if M is None:
        M = ops.zeros_like(x["in/v"], shape=(*lead, d_out, d_in))
    elif own.state_layout == "(d_in, d_out)":
        M = M.swapaxes(-1, -2)
    first, reads = M, []
    for t in range(T):
        if "in/reset" in inputs and inputs["in/reset"][t]:
            M = first
        writes = "in/active" not in inputs or bool(inputs["in/active"][t])
        seen = M
        if writes:
            for j in range(t * own.steps, (t + 1) * own.steps):
                gate = _gate(own, x, t, rounding) if j == t * own.steps else None
                M = _written(own, x, j, gate, M, rounding.way)
            M = M if rounding.store is None else rounding.store(M)
        if "in/bonus" not in x:
            seen = M
        elif writes:
            u = x["in/bonus"] * x["in/k"][..., t, :]
            seen = rounding.way.scaled_sum(x["in/v"][..., t, :, None], u[..., None, :], seen)
        y = rounding.way.matmul(seen, x["in/q"][..., t, :, None])[..., 0]
        reads.append(y if own.scale == 1 else y / np.sqrt(d_in).astype(y.dtype))
    last = M if own.state_layout == "(d_out, d_in)" else M.swapaxes(-1, -2)
    return {"out/y": ops.stack(reads, axis=-2), "out/M": last}


def _of_value_heads(own: Parameters, inputs: Inputs, rounding: Any) -> dict[str, Array]:
    """Inputs with keys and queries under their norm, one for each value head."""
    x = dict(inputs)
    for name in ("in/k", "in/q"):
        z = x[name]
        if own.norm(name) == "l2":
            square = rounding.way.matmul(z[..., None, :], z[..., :, None])[..., 0]
            z = z / rounding.touch(ops.sqrt(square + own.norm_eps))
        if own.groups > 1:
            heads = z.shape[-3] * own.groups
            z = ops.stack([z[..., i // own.groups, :, :] for i in range(heads)], axis=-3)
        x[name] = z
    return x


def _gate(own: Parameters, x: Inputs, t: int, rounding: Any) -> Array:
    """The gate of a token as (..., 1, d_in or 1), None for 1."""
    v = x["in/v"]
    if own.of.gated == "heads":
        heads = 1.0 - 0.5 ** (5.0 + np.arange(v.shape[-3] if len(v.shape) > 2 else 1))
        return heads.astype(v.dtype)[:, None, None] if len(v.shape) > 2 else heads.astype(v.dtype)
    if "in/log_retain" in x:
        w = x["in/log_retain"]
        each = rounding.touch(ops.exp(w[..., t] if len(w.shape) < len(v.shape) else w[..., t, :]))
    elif "in/retain" in x:
        w = x["in/retain"]
        each = w[..., t] if len(w.shape) < len(v.shape) else w[..., t, :]
    else:
        return None
    return each[..., None, None] if len(w.shape) < len(v.shape) else each[..., None, :]


def _written(own: Parameters, x: Inputs, j: int, gate: Array, M: Array, way: Any) -> Array:
    """The memory after one erase and write."""
    k, v = x["in/k"][..., j, :], x["in/v"][..., j, :]
    pair = _erase(own, x, j)
    decayed = M if gate is None else gate * M
    kind = own.of.erase
    if kind == "error":  # one write of beta (v - found)
        found = way.matmul(M if own.order == "after_error" else decayed, pair[0][..., None])[..., 0]
        error = x["in/beta"][..., j, None] * (v - found)
        return way.scaled_sum(error[..., :, None], k[..., None, :], decayed)
    if kind == "gates":
        v = x["in/write_gate"][..., j, :] * v
    if pair is not None:
        found = way.matmul(M if own.order == "after_error" else decayed, pair[0][..., None])[..., 0]
        decayed = way.scaled_sum(-found[..., :, None], pair[1][..., None, :], decayed)
    return way.scaled_sum(v[..., :, None], k[..., None, :], decayed)


def _erase(own: Parameters, x: Inputs, j: int) -> Any:
    """What the erase reads, and along which vector it takes that away; None for no erase."""
    kind = own.of.erase
    if kind == "error":
        return x[own.of.read][..., j, :], None
    if kind == "gates":
        k = x["in/k"][..., j, :]
        return x["in/erase_gate"][..., j, :] * k, k
    if kind == "alpha":
        return -x["in/alpha"][..., j, :], x["in/beta"][..., j, :]
    if kind == "kk":
        return x["in/kk"][..., j, :], x["in/kk"][..., j, :] * x["in/a"][..., j, :]
    if "in/erase_read" in x:
        return x["in/erase_read"][..., j, :], x["in/erase_write"][..., j, :]
    return None
