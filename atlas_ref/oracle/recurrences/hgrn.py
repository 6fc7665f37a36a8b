"""Cases of hgrn, and its plain loop, which shares no code with the rule (RECUR-3)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor, masks
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.changes import ones, zero_silent_tokens
from atlas_ref.oracle.program.context import Context, Inputs
from atlas_ref.oracle.program.hook import Hook, within
from atlas_ref.oracle.program.mistakes import has, of_before
from atlas_ref.oracle.program.program import Program, Results, Shapes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.recurrences.member import SHARED, Member
from atlas_ref.rules.recurrences import hgrn
from atlas_ref.types import Array
from tape import ops

TENSORS = {
    "in/x": Tensor("... T d_out"),
    "in/log_retain": Tensor("... T d_out", high=0.0),
    "in/h0": Tensor("... d_out", "0"),
    "in/h_bar": Tensor("... d_out", "0"),
    **SHARED,
}


def _shapes(x: Inputs, settings: Any) -> Shapes:
    *lead, T, d = x["in/x"].shape
    return {**dict.fromkeys(("x", "log_retain", "y"), (*lead, T, d)), "h": (*lead, d)}


def _evaluate(x: Inputs, settings: Any) -> dict[str, Array]:
    tokens = hgrn.Tokens(x=x["in/x"], log_retain=x["in/log_retain"], **masks(x))
    after, y = hgrn.run(tokens, hgrn.start(tokens, h=x.get("in/h0")))
    return {"out/y": y, "out/h": after.h}


def _loop(context: Context, hook: Hook) -> Results:
    """The recurrence, token by token, with its ops (RECUR-15)."""
    way, reads = context.arithmetic, []
    h = first = context.first("h")
    for t in range(context.tokens):
        h = hook.start("h", t, h, first)
        if context.writes(t):
            w = hook("gate", t, ops.exp, context.row(t, "log_retain"))
            h = hook("h", t, partial(_move, way), h, w, context.row(t, "x"))
        else:
            h = hook.keep("h", t, h)
        reads.append(hook("y", t, _read, hook.read("h", h)))
    return {"y": ops.stack(reads, axis=-2), "h": h}


def _move(way: Arithmetic, h: Array, w: Array, x: Array) -> Array:
    return way.scaled_sum(w, h, x)


def _read(h: Array) -> Array:
    return h


def _draw(request: Any, settings: Any, generator: Any) -> dict[str, Array]:
    shape = (*leading(request), request.tokens, request.d_out)
    gates = generator.uniform(0.8, 1.0, shape)
    return {
        "in/x": (1.0 - gates) * generator.standard_normal(shape),
        "in/log_retain": np.log(gates),
    }


#: Mistakes of kernels beside those of every program (RECUR-14).
MISTAKES = (
    Reading(
        "gate after write",
        "the gate came after the write",
        ops={"h": within(lambda compute, h, w, x: w * compute(h, ones(w), x))},
    ),
    Reading(
        "input times 1 - gate",
        "inputs were multiplied by one minus the gate",
        ops={"h": lambda op, h, w, x: op(h, w, (1.0 - w) * x)},
    ),
    Reading(
        "input times gate",
        "inputs were multiplied by the gate in place of the state",
        ops={"h": lambda op, h, w, x: op(h, ones(w), w * x)},
    ),
    Reading(
        "gate when silent",
        "silent tokens decayed",
        has("active"),
        inputs=zero_silent_tokens("in/x"),
    ),
    Reading(
        "read before",
        "reads were of the state before their token",
        ops={"read/h": of_before},
    ),
)

PROGRAM = Program(
    name="hgrn",
    tensors=TENSORS,
    shapes=_shapes,
    states=("h",),
    matrices=(),
    settings=(),
    loop=_loop,
    rounding={"gate": "touch", "h": "store"},
    clause="RECUR-3",
    draw=_draw,
    mistakes=MISTAKES,
)

MEMBER = Member(
    source="fla-core 0.6.0, ops/hgrn/naive.py",
    program=PROGRAM,
    evaluate=_evaluate,
    words={"state": "h"},
)
