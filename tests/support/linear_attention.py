"""Linear attention token by token, as packages define it, and the cases that kernels of one gate a
head are asked.

Written from specs/dplr.md; nothing of any package is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import atlas_ref
from atlas_ref.oracle.cases.new import Request, new

Array = np.ndarray[Any, Any]


def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    state: Array,
    *,
    scale: float,
    retain: Array | None = None,
    beta: Array | None = None,
    erase: tuple[Array, Array] | None = None,
    bonus: Array | None = None,
) -> tuple[Array, Array]:
    """o (B, T, H, V) and the last state (B, H, K, V), computed in float32.

    q, k, v are (B, T, H, D), the gate (B, T, H) or (B, T, H, K), beta (B, T, H) of the delta rule.
    `erase` has the factors a, b of RWKV-7, S += b (a S); with `bonus` (H, K) reads come before the
    write, as in RWKV-6.
    """
    q, k, v, S = (np.asarray(x, np.float32) for x in (q, k, v, state))
    y = np.zeros(v.shape, np.float32)
    for t in range(v.shape[1]):
        key, value, before = k[:, t, :, :, None], v[:, t, :, None, :], S
        if retain is not None:
            gate = retain[:, t] if retain.ndim == 4 else retain[:, t, :, None]
            S = S * gate[..., None].astype(np.float32)
        if erase is not None:
            a, b = (each[:, t].astype(np.float32) for each in erase)
            S = S + b[..., None] * np.einsum("bhk,bhkv->bhv", a, before)[:, :, None]
        if beta is not None:
            found = np.einsum("bhk,bhkv->bhv", k[:, t], S)[:, :, None]
            value = beta[:, t, :, None, None].astype(np.float32) * (value - found)
        S = S + key * value
        read = S if bonus is None else before + bonus[None, :, :, None] * key * value
        y[:, t] = scale * np.einsum("bhk,bhkv->bhv", q[:, t], read)
    return y, S


#: What a kernel of a layout of its own has to get right; each a request, parameters and leading axes.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "heads": ({}, {}, "heads"),
    "no axes": ({"heads": 1}, {}, "none"),
    "batch": ({}, {}, "batch"),
    "groups": ({}, {"groups": 2}, "batch"),
    "(d_in, d_out)": ({}, {"state_layout": "(d_in, d_out)"}, "heads"),
    "one token": ({"tokens": 1}, {}, "batch"),
}

#: Tensors that the rows of a batch share.
SHARED = ("in/reset", "in/bonus")


def asked(
    member: str, kind: str = "heads", *, channels: bool = False, first: bool = True, **request: Any
) -> Any:
    """A case of a kind with one gate a head, or a channel, and a first memory unless told not."""
    sizes, parameters, axes = KINDS[kind]
    form = {"tokens": 5, "d_in": 4, "d_out": 4, "heads": 2, "seed": 3, "cotangent": False}
    own = {"member": member, **parameters, **request.pop("parameters", {})}
    drawn = new(Request(rule="dplr", parameters=own, **(form | sizes | request)))
    inputs = {n: x for n, x in drawn.inputs.items() if n not in ("in/M0", "in/M_bar")}
    v, k = inputs["in/v"], inputs["in/k"]
    for gate in ("in/retain", "in/log_retain"):
        if gate in inputs and inputs[gate].ndim == v.ndim and not channels:
            inputs[gate] = inputs[gate][..., 0]
    wide, tall = k.shape[-1], v.shape[-1]
    turned = parameters.get("state_layout") == "(d_in, d_out)"
    shape = (*v.shape[:-2], *((wide, tall) if turned else (tall, wide)))
    draw = np.random.default_rng(7)
    if first:
        inputs["in/M0"] = draw.standard_normal(shape)
    if "in/y_bar" in inputs:
        inputs["in/M_bar"] = draw.standard_normal(shape)
    change = {"heads": lambda x: x, "none": lambda x: x[0], "batch": lambda x: np.stack([x, x / 2])}
    inputs = {n: x if n in SHARED else change[axes](x) for n, x in inputs.items()}
    return atlas_ref.make(drawn.header.plain(), inputs, name=f"{member}, {kind}")


def verdicts(case: Any, answer: Any, dtype: str = "float32") -> dict[str, tuple[str, str]]:
    """Tensor -> verdict and why."""
    from atlas_ref.oracle.sources import sources

    rows = atlas_ref.check(case, source=lambda each: sources.respond(answer, each), dtype=dtype)
    return {row.tensor: (row.verdict, row.why) for row in rows}
