"""Cases of gated slot attention, and its plain loop, which shares no code with the rule (RECUR-2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor, masks
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.changes import ones, zero_silent_tokens
from atlas_ref.oracle.program.context import Context, Inputs
from atlas_ref.oracle.program.hook import Hook, by, same, within
from atlas_ref.oracle.program.mistakes import has, is_scaled, of_before, scale_twice, square
from atlas_ref.oracle.program.program import Program, Results, Shapes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.recurrences.member import (
    QUERY_SCALE,
    SHARED,
    STATE_LAYOUT,
    Member,
    in_layout,
)
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
    **SHARED,
}


def _shapes(x: Inputs, settings: Any) -> Shapes:
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


def _evaluate(x: Inputs, settings: Any) -> dict[str, Array]:
    names = ("k", "v", "q", "s", "log_retain")
    tokens = gsa.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))
    first = {
        name: in_layout(settings, x[f"in/{name}0"]) for name in ("K", "M") if f"in/{name}0" in x
    }
    after, y = gsa.run(tokens, gsa.start(tokens, **first), query_scale=settings.query_scale)
    return {
        "out/y": y,
        "out/K": in_layout(settings, after.K),
        "out/M": in_layout(settings, after.M),
    }


def _loop(context: Context, hook: Hook) -> Results:
    """The recurrence, token by token, with its ops (RECUR-15)."""
    way, reads = context.arithmetic, []
    K, M = first = context.first("K"), context.first("M")
    for t in range(context.tokens):
        k, v, q, s = context.rows(t, "k", "v", "q", "s")
        K, M = (hook.start(*each) for each in zip("KM", (t, t), (K, M), first, strict=True))
        if context.writes(t):
            w = hook("gate", t, ops.exp, context.row(t, "log_retain"))
            K = hook("K", t, partial(_keys, way), K, w, s, k)
            M = hook("M", t, partial(_values, way), M, w, v, s)
        else:
            K, M = hook.keep("K", t, K), hook.keep("M", t, M)
        scores = hook("scores", t, partial(_scores, context), hook.read("K", K), q)
        powers = hook("powers", t, _powers, scores)
        weights = hook("weights", t, partial(_weights, way), powers)
        reads.append(hook("y", t, partial(_read, way), hook.read("M", M), weights))
    return {"y": ops.stack(reads, axis=-2), "K": K, "M": M}


def _keys(way: Arithmetic, K: Array, w: Array, s: Array, k: Array) -> Array:
    return way.scaled_sum(w[..., :, None], K, s[..., :, None] * k[..., None, :])


def _values(way: Arithmetic, M: Array, w: Array, v: Array, s: Array) -> Array:
    return way.scaled_sum(w[..., None, :], M, v[..., :, None] * s[..., None, :])


def _scores(context: Context, K: Array, q: Array) -> Array:
    return context.arithmetic.matmul(K, context.asks(q)[..., None])[..., 0]


def _powers(scores: Array) -> Array:
    """exp of each score, the largest of which is subtracted before."""
    return ops.exp(scores - np.max(np.real(plain(scores)), axis=-1, keepdims=True))


def _weights(way: Arithmetic, powers: Array) -> Array:
    """Each power over the sum of all."""
    column = ops.ones_like(powers, shape=(powers.shape[-1], 1))
    return powers / way.matmul(powers[..., None, :], column)[..., 0]


def _read(way: Arithmetic, M: Array, weights: Array) -> Array:
    return way.matmul(M, weights[..., None])[..., 0]


def _draw(request: Any, settings: Any, generator: Any) -> dict[str, Array]:
    lead, slots = (*leading(request), request.tokens), request.d_out + 1
    gates = generator.uniform(0.8, 1.0, (*lead, slots))
    return {
        "in/k": generator.standard_normal((*lead, request.d_in)) / np.sqrt(request.d_in),
        "in/v": generator.standard_normal((*lead, request.d_out)),
        "in/q": generator.standard_normal((*lead, request.d_in)),
        "in/s": 1.0 - gates,
        "in/log_retain": np.log(gates),
    }


def _of_channels(compute: Any, K: Array, w: Array, s: Array, k: Array) -> Array:
    return compute(ops.zeros_like(K), w, s, k) + w[..., None, :] * K


def _late_of_keys(compute: Any, K: Array, w: Array, s: Array, k: Array) -> Array:
    return w[..., :, None] * compute(K, ones(w), s, k)


def _late_of_values(compute: Any, M: Array, w: Array, v: Array, s: Array) -> Array:
    return w[..., None, :] * compute(M, ones(w), v, s)


#: Mistakes of kernels beside those of every program (RECUR-14).
MISTAKES = (
    Reading(
        "K without decay",
        "keys of slots did not decay",
        ops={"K": lambda op, K, w, s, k: op(K, ones(w), s, k)},
    ),
    Reading(
        "M without decay",
        "values of slots did not decay",
        ops={"M": lambda op, M, w, v, s: op(M, ones(w), v, s)},
    ),
    Reading(
        "keys without s",
        "keys were written whole into every slot",
        ops={"K": lambda op, K, w, s, k: op(K, w, ones(s), k)},
    ),
    Reading(
        "values without s",
        "values were written whole into every slot",
        ops={"M": lambda op, M, w, v, s: op(M, w, v, ones(s))},
    ),
    Reading(
        "write of 1 - gate",
        "a token wrote 1 - exp of its log gate in place of in/s",
        ops={
            "K": lambda op, K, w, s, k: op(K, w, 1.0 - w, k),
            "M": lambda op, M, w, v, s: op(M, w, v, 1.0 - w),
        },
    ),
    Reading(
        "gate after write",
        "the gate came after the write",
        ops={
            "K": within(_late_of_keys),
            "M": within(_late_of_values),
        },
    ),
    Reading(
        "gate on key channels",
        "the gate of slots was on channels of keys",
        square("K"),
        ops={"K": within(_of_channels)},
    ),
    Reading(
        "gate when silent",
        "silent tokens decayed",
        has("active"),
        inputs=zero_silent_tokens("in/s"),
    ),
    Reading("no softmax", "reads had no softmax", ops={"powers": by(same), "weights": by(same)}),
    Reading(
        "weights not divided", "weights were not divided by their sum", ops={"weights": by(same)}
    ),
    Reading(
        "sigmoid",
        "reads had a sigmoid in place of the softmax",
        ops={"powers": by(lambda x: 1.0 / (1.0 + ops.exp(-x))), "weights": by(same)},
    ),
    scale_twice("scores", 1),
    Reading(
        "scale of slots",
        "the scale of a query was that of the number of slots",
        is_scaled,
        ops={
            "scores": lambda op, K, q: op(K, q * np.sqrt(K.shape[-1] / K.shape[-2]).astype(q.dtype))
        },
    ),
    Reading(
        "read before",
        "queries read the memory before their token",
        ops={"read/K": of_before, "read/M": of_before},
    ),
    Reading(
        "keys of before", "scores were by the keys of before their token", ops={"read/K": of_before}
    ),
    Reading(
        "values of before",
        "weights were on the values of before their token",
        ops={"read/M": of_before},
    ),
)

PROGRAM = Program(
    name="gsa",
    tensors=TENSORS,
    shapes=_shapes,
    states=("K", "M"),
    matrices=("K", "M"),
    settings=(QUERY_SCALE, STATE_LAYOUT),
    loop=_loop,
    rounding={"gate": "touch", "powers": "touch", "K": "store", "M": "store"},
    clause="RECUR-2",
    draw=_draw,
    mistakes=MISTAKES,
)

MEMBER = Member(
    source="fla-core 0.6.0, ops/gsa/naive.py",
    program=PROGRAM,
    evaluate=_evaluate,
    words={"slots": "s", "stateK": "K", "stateV": "M"},
)
