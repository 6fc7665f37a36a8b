"""Cases of gated slot attention, and its plain loop, which shares no code with the rule (RECUR-2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.recurrences.member import (
    Inputs,
    Member,
    Results,
    Settings,
    Shapes,
    at_token,
    masks,
    starts,
    stored,
    writes,
)
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.rules.recurrences import gsa
from atlas_ref.types import Array
from tape import ops, plain

TENSORS = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_out"),
    "in/q": Tensor("... T d_in"),
    "in/s": Tensor("... T slots"),
    "in/log_retain": Tensor("... T slots", high=0.0),
    "in/K0": Tensor("... slots d_in", "0"),
    "in/M0": Tensor("... d_out slots", "0"),
    "in/K_bar": Tensor("... slots d_in", "0"),
    "in/M_bar": Tensor("... d_out slots", "0"),
}


def _shapes(x: Inputs, own: Settings) -> Shapes:
    *lead, T, d_in = x["in/k"].shape
    d_out, slots = x["in/v"].shape[-1], x["in/s"].shape[-1]
    return {
        "k": (*lead, T, d_in),
        "q": (*lead, T, d_in),
        "v": (*lead, T, d_out),
        "y": (*lead, T, d_out),
        "s": (*lead, T, slots),
        "log_retain": (*lead, T, slots),
        "K": (*lead, slots, d_in),
        "M": (*lead, d_out, slots),
    }


def _evaluate(x: Inputs, own: Settings) -> Results:
    names = ("k", "v", "q", "s", "log_retain")
    tokens = gsa.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))
    first = {name: own.matrix(x[f"in/{name}0"]) for name in ("K", "M") if f"in/{name}0" in x}
    after, y = gsa.run(tokens, gsa.start(tokens, **first), query_scale=own.query_scale)
    return {"out/y": y, "out/K": own.matrix(after.K), "out/M": own.matrix(after.M)}


def _plain(x: Inputs, own: Settings, by: Rounding) -> Results:
    shapes, way = _shapes(x, own), by.way
    K, M = (
        own.matrix(x[f"in/{name}0"])
        if f"in/{name}0" in x
        else ops.zeros_like(x["in/v"], shape=shapes[name])
        for name in ("K", "M")
    )
    first, reads = (K, M), []
    for t in range(shapes["k"][-2]):
        k, v, q, s = at_token(x, t, "k", "v", "q", "s")
        K, M = first if starts(x, t) else (K, M)
        if writes(x, t):
            w = by.touch(ops.exp(x["in/log_retain"][..., t, :]))
            K = stored(by, way.scaled_sum(w[..., :, None], K, s[..., :, None] * k[..., None, :]))
            M = stored(by, way.scaled_sum(w[..., None, :], M, v[..., :, None] * s[..., None, :]))
        weights = _weights(way.matmul(K, own.asks(q)[..., None])[..., 0], by)
        reads.append(way.matmul(M, weights[..., None])[..., 0])
    y = ops.stack(reads, axis=-2)
    return {"out/y": y, "out/K": own.matrix(K), "out/M": own.matrix(M)}


def _weights(scores: Array, by: Rounding) -> Array:
    """Weights of slots: exp of each score over the sum of all."""
    top = np.max(np.real(plain(scores)), axis=-1, keepdims=True)
    powers = by.touch(ops.exp(scores - top))
    column = ops.ones_like(powers, shape=(powers.shape[-1], 1))
    return powers / by.way.matmul(powers[..., None, :], column)[..., 0]


def _draw(request: Any, own: Settings, generator: Any) -> dict[str, Array]:
    lead, slots = (*leading(request), request.tokens), request.d_out + 1
    gates = generator.uniform(0.8, 1.0, (*lead, slots))
    return {
        "in/k": generator.standard_normal((*lead, request.d_in)) / np.sqrt(request.d_in),
        "in/v": generator.standard_normal((*lead, request.d_out)),
        "in/q": generator.standard_normal((*lead, request.d_in)),
        "in/s": 1.0 - gates,
        "in/log_retain": np.log(gates),
    }


MEMBER = Member(
    source="fla-core 0.6.0, ops/gsa/naive.py",
    tensors=TENSORS,
    states=("K", "M"),
    matrices=("K", "M"),
    settings=("query_scale", "state_layout"),
    clause="RECUR-2",
    shapes=_shapes,
    evaluate=_evaluate,
    plain=_plain,
    draw=_draw,
    words={"slots": "s", "stateK": "K", "stateV": "M"},
)
