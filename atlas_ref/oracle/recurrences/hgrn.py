"""Cases of hgrn, and its plain loop, which shares no code with the rule (RECUR-3)."""

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
    masks,
    starts,
    stored,
    writes,
)
from atlas_ref.oracle.subjects.subject import Rounding
from atlas_ref.rules.recurrences import hgrn
from atlas_ref.types import Array
from tape import ops

TENSORS = {
    "in/x": Tensor("... T d_out"),
    "in/log_retain": Tensor("... T d_out", high=0.0),
    "in/h0": Tensor("... d_out", "0"),
    "in/h_bar": Tensor("... d_out", "0"),
}


def _shapes(x: Inputs, own: Settings) -> Shapes:
    *lead, T, d = x["in/x"].shape
    return {**dict.fromkeys(("x", "log_retain", "y"), (*lead, T, d)), "h": (*lead, d)}


def _evaluate(x: Inputs, own: Settings) -> Results:
    tokens = hgrn.Tokens(x=x["in/x"], log_retain=x["in/log_retain"], **masks(x))
    after, y = hgrn.run(tokens, hgrn.start(tokens, h=x.get("in/h0")))
    return {"out/y": y, "out/h": after.h}


def _plain(x: Inputs, own: Settings, by: Rounding) -> Results:
    added = x["in/x"]
    h = first = x.get("in/h0", ops.zeros_like(added, shape=_shapes(x, own)["h"]))
    reads = []
    for t in range(added.shape[-2]):
        h = first if starts(x, t) else h
        if writes(x, t):
            w = by.touch(ops.exp(x["in/log_retain"][..., t, :]))
            h = stored(by, by.way.scaled_sum(w, h, added[..., t, :]))
        reads.append(h)
    return {"out/y": ops.stack(reads, axis=-2), "out/h": h}


def _draw(request: Any, own: Settings, generator: Any) -> dict[str, Array]:
    shape = (*leading(request), request.tokens, request.d_out)
    gates = generator.uniform(0.8, 1.0, shape)
    return {
        "in/x": (1.0 - gates) * generator.standard_normal(shape),
        "in/log_retain": np.log(gates),
    }


MEMBER = Member(
    source="fla-core 0.6.0, ops/hgrn/naive.py",
    tensors=TENSORS,
    states=("h",),
    matrices=(),
    settings=(),
    clause="RECUR-3",
    shapes=_shapes,
    evaluate=_evaluate,
    plain=_plain,
    draw=_draw,
    words={"state": "h"},
)
