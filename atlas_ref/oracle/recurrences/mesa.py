"""Cases of the mesa memory, and its plain loop, which shares no code with the rule (RECUR-10)."""

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
    begun,
    masks,
    starts,
    stored,
    writes,
)
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.rules.recurrences import mesa
from atlas_ref.rules.recurrences.checks import of_last_axes
from atlas_ref.types import Array
from tape import ops, plain

TENSORS = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_out"),
    "in/q": Tensor("... T d_in"),
    "in/weight": Tensor("... T"),
    "in/log_retain": Tensor("... T", high=0.0),
    "in/ridge": Tensor("d_in, or heads d_in", low=0.0),
    "in/G0": Tensor("... d_in d_in", "0"),
    "in/M0": Tensor("... d_out d_in", "0"),
    "in/G_bar": Tensor("... d_in d_in", "0"),
    "in/M_bar": Tensor("... d_out d_in", "0"),
}


def _shapes(x: Inputs, own: Settings) -> Shapes:
    *lead, T, d_in = x["in/k"].shape
    d_out = x["in/v"].shape[-1]
    return {
        **dict.fromkeys(("k", "q"), (*lead, T, d_in)),
        **dict.fromkeys(("v", "y"), (*lead, T, d_out)),
        **dict.fromkeys(("weight", "log_retain"), (*lead, T)),
        "ridge": of_last_axes(x["in/ridge"], tuple(lead), d_in),
        "G": (*lead, d_in, d_in),
        "M": (*lead, d_out, d_in),
    }


def _evaluate(x: Inputs, own: Settings) -> Results:
    names = ("k", "v", "q", "weight", "log_retain", "ridge")
    tokens = mesa.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))
    first = {"M": own.matrix(x["in/M0"])} if "in/M0" in x else {}
    after, y = mesa.run(tokens, mesa.start(tokens, G=x.get("in/G0"), **first))
    return {"out/y": y, "out/G": after.G, "out/M": own.matrix(after.M)}


def _plain(x: Inputs, own: Settings, by: Rounding) -> Results:
    shapes, way, reads = _shapes(x, own), by.way, []
    G = begun(x, "G", shapes["G"])
    M = own.matrix(x["in/M0"]) if "in/M0" in x else begun(x, "M", shapes["M"])
    first = (G, M)
    ridge = x["in/ridge"][..., None] * np.eye(G.shape[-1], dtype=plain(G).dtype)
    for t in range(shapes["k"][-2]):
        k, v, q = at_token(x, t, "k", "v", "q")
        G, M = first if starts(x, t) else (G, M)
        if writes(x, t):
            w = by.touch(ops.exp(x["in/log_retain"][..., t]))[..., None, None]
            weight = x["in/weight"][..., t, None, None]
            G = stored(by, way.scaled_sum(w, G, weight * (k[..., :, None] * k[..., None, :])))
            M = stored(by, way.scaled_sum(w, M, weight * (v[..., :, None] * k[..., None, :])))
        reads.append(way.matmul(M, _solved(G + ridge, q[..., None], by))[..., 0])
    return {"out/y": ops.stack(reads, axis=-2), "out/G": G, "out/M": own.matrix(M)}


def _solved(A: Array, b: Array, by: Rounding) -> Array:
    """A^-1 b by elimination downwards, the largest entry of a column first, and substitution up."""
    way, n = by.way, A.shape[-1]
    for i in range(n):
        exchange = _exchange(A, i)
        A, b = exchange @ A, exchange @ b
        below = (np.arange(n) > i).astype(plain(A).dtype)
        factors = (-below * A[..., :, i] / A[..., i, i, None])[..., None]
        A = way.scaled_sum(factors, A[..., i, None, :], A)
        b = way.scaled_sum(factors, b[..., i, None, :], b)
    x: list[Array] = []  # from the last row up
    for i in reversed(range(n)):
        rest = b[..., i, :]
        if x:
            known = ops.stack(x[::-1], axis=-2)
            rest = rest - way.matmul(A[..., i, None, i + 1 :], known)[..., 0, :]
        x.append(rest / A[..., i, i, None])
    return ops.stack(x[::-1], axis=-2)


def _exchange(A: Array, i: int) -> Array:
    """The matrix that exchanges row i with that of the largest entry below it in column i."""
    bare = plain(A)
    best = i + np.argmax(np.abs(np.real(bare[..., i:, i])), axis=-1)
    rows = np.broadcast_to(np.arange(bare.shape[-1]), bare.shape[:-1]).copy()
    np.put_along_axis(rows, best[..., None], i, axis=-1)
    rows[..., i] = best
    return (rows[..., :, None] == np.arange(bare.shape[-1])).astype(bare.dtype)


def _draw(request: Any, own: Settings, generator: Any) -> dict[str, Array]:
    lead = (*leading(request), request.tokens)
    return {
        "in/k": generator.standard_normal((*lead, request.d_in)) / np.sqrt(request.d_in),
        "in/v": generator.standard_normal((*lead, request.d_out)),
        "in/q": generator.standard_normal((*lead, request.d_in)),
        "in/weight": generator.uniform(0.1, 1.0, lead),
        "in/log_retain": np.log(generator.uniform(0.8, 1.0, lead)),
        "in/ridge": generator.uniform(0.5, 1.5, (request.heads, request.d_in)),
    }


def _first(name: str, x: Any, own: Settings) -> Any:
    """A sum of squares of keys for G, so that what is solved keeps its sign."""
    return x @ x.swapaxes(-1, -2) if name == "G" else x


MEMBER = Member(
    source="fla-core 0.6.0, ops/mesa_net/naive.py, exact",
    tensors=TENSORS,
    states=("G", "M"),
    matrices=("M",),
    settings=("state_layout",),
    clause="RECUR-10",
    shapes=_shapes,
    evaluate=_evaluate,
    plain=_plain,
    draw=_draw,
    first=_first,
    words={"lamb": "ridge", "beta": "weight", "G": "G", "state": "M"},
)
