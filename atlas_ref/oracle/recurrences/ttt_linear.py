"""Cases of linear test-time training, and its plain loop, which shares no code with the rule
(RECUR-11).
"""

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
from atlas_ref.rules.recurrences import ttt_linear
from atlas_ref.rules.recurrences.checks import of_last_axes
from atlas_ref.types import Array
from tape import ops

TENSORS = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_in"),
    "in/q": Tensor("... T d_in"),
    "in/step_size": Tensor("... T"),
    "in/gain": Tensor("d_in, or heads d_in"),
    "in/shift": Tensor("d_in, or heads d_in"),
    "in/M0": Tensor("... d_in d_in", "0"),
    "in/bias0": Tensor("... d_in", "0"),
    "in/M_bar": Tensor("... d_in d_in", "0"),
    "in/bias_bar": Tensor("... d_in", "0"),
}


def _shapes(x: Inputs, own: Settings) -> Shapes:
    *lead, T, d = x["in/k"].shape
    return {
        **dict.fromkeys(("k", "v", "q", "y"), (*lead, T, d)),
        "step_size": (*lead, T),
        **{name: of_last_axes(x[f"in/{name}"], tuple(lead), d) for name in ("gain", "shift")},
        "M": (*lead, d, d),
        "bias": (*lead, d),
    }


def _evaluate(x: Inputs, own: Settings) -> Results:
    names = ("k", "v", "q", "step_size", "gain", "shift")
    tokens = ttt_linear.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))
    first = {"M": own.matrix(x["in/M0"])} if "in/M0" in x else {}
    config = ttt_linear.Config(
        mini_batch=own.mini_batch, norm_eps=own.norm_eps, query_scale=own.query_scale
    )
    state = ttt_linear.start(tokens, bias=x.get("in/bias0"), **first)
    after, y = ttt_linear.run(config, tokens, state)
    memory = ttt_linear.memory(after)
    return {"out/y": y, "out/M": own.matrix(memory.M), "out/bias": memory.bias}


def _plain(x: Inputs, own: Settings, by: Rounding) -> Results:
    """Reads by scores of the keys of a mini-batch; its sums move the memory only at its end."""
    shapes, reads = _shapes(x, own), []
    M = own.matrix(x["in/M0"]) if "in/M0" in x else begun(x, "M", shapes["M"])
    bias = begun(x, "bias", shapes["bias"])
    first, keys, slopes = (M, bias), list[Array](), list[Array]()
    gain, shift, step = x["in/gain"], x["in/shift"], x["in/step_size"][..., 0]
    for t in range(shapes["k"][-2]):
        k, v, q = at_token(x, t, "k", "v", "q")
        if starts(x, t):
            (M, bias), keys, slopes = first, [], []
        if writes(x, t):
            if len(keys) == own.mini_batch:
                M, bias = (stored(by, each) for each in _moved(M, bias, keys, slopes, step, by))
                keys, slopes = [], []
            z = by.way.matmul(M, k[..., None])[..., 0] + bias
            step = x["in/step_size"][..., t]
            keys, slopes = [*keys, k], [*slopes, _slope(z, v - k, gain, shift, own.norm_eps, by)]
        asks = own.asks(q)[..., None]
        o = by.way.matmul(M, asks)[..., 0] + bias
        if keys:
            scores = by.way.matmul(ops.stack(keys, axis=-2), asks) + 1.0  # 1 is of the bias
            found = by.way.matmul(ops.stack(slopes, axis=-1), scores)[..., 0]
            o = by.way.scaled_sum(-step[..., None], found, o)
        hat, _ = _standard(o, own.norm_eps, by)
        reads.append(o + by.way.scaled_sum(hat, gain, shift))
    if keys:
        M, bias = (stored(by, each) for each in _moved(M, bias, keys, slopes, step, by))
    return {"out/y": ops.stack(reads, axis=-2), "out/M": own.matrix(M), "out/bias": bias}


def _moved(
    M: Array, bias: Array, keys: list[Array], slopes: list[Array], step: Array, by: Rounding
) -> tuple[Array, Array]:
    """The memory after one step along the sums over a mini-batch."""
    columns = ops.stack(slopes, axis=-1)  # (..., d, tokens)
    ones = ops.ones_like(columns, shape=(len(keys), 1))
    down = -step[..., None, None]
    M = by.way.scaled_sum(down, by.way.matmul(columns, ops.stack(keys, axis=-2)), M)
    bias = by.way.scaled_sum(down[..., 0], by.way.matmul(columns, ones)[..., 0], bias)
    return M, bias


def _slope(z: Array, target: Array, gain: Array, shift: Array, eps: float, by: Rounding) -> Array:
    """The derivative of the loss by z, as kernels write it: all over the width, divided at last."""
    hat, deviation = _standard(z, eps, by)
    width = z.shape[-1]
    g = (by.way.scaled_sum(hat, gain, shift) - target) * gain
    whole = width * g - _total(g, by) - hat * _total(g * hat, by)
    return whole / (width * deviation)


def _standard(z: Array, eps: float, by: Rounding) -> tuple[Array, Array]:
    """z without its mean over its deviation, and that."""
    width = z.shape[-1]
    centred = z - _total(z, by) / width
    deviation = ops.sqrt(_total(centred * centred, by) / width + eps)
    return centred / deviation, deviation


def _total(x: Array, by: Rounding) -> Array:
    """The sum over the last axis, which stays."""
    column = ops.ones_like(x, shape=(x.shape[-1], 1))
    return by.way.matmul(x[..., None, :], column)[..., 0]


def _draw(request: Any, own: Settings, generator: Any) -> dict[str, Array]:
    d, lead = request.d_in, (*leading(request), request.tokens)
    return {
        "in/k": generator.standard_normal((*lead, d)) / np.sqrt(d),
        "in/v": generator.standard_normal((*lead, d)),
        "in/q": generator.standard_normal((*lead, d)),
        "in/step_size": generator.uniform(0.0, 0.1, lead) / own.mini_batch,
        "in/gain": 1.0 + 0.1 * generator.standard_normal((request.heads, d)),
        "in/shift": 0.1 * generator.standard_normal((request.heads, d)),
        "in/M0": generator.standard_normal((*lead[:-1], d, d)) / np.sqrt(d),
        "in/bias0": generator.standard_normal((*lead[:-1], d)),
    }


MEMBER = Member(
    source="fla-core 0.6.0, ops/ttt/naive.py",
    tensors=TENSORS,
    states=("M", "bias"),
    matrices=("M",),
    settings=("query_scale", "state_layout", "mini_batch", "norm_eps"),
    clause="RECUR-11",
    shapes=_shapes,
    evaluate=_evaluate,
    plain=_plain,
    draw=_draw,
    words={"w": "gain", "b": "shift", "eta": "step_size", "state": "M", "bias": "bias"},
    counts={"mini_batch": "mini_batch", "eps": "norm_eps"},
    flat={"step_size": -1, "bias": -2, "bias0": -2, "bias_bar": -2},
)
