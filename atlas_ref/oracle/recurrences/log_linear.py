"""Cases of log-linear attention, and its plain loop, which shares no code with the rule (RECUR-12)."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor
from atlas_ref.oracle.cases.values import key_heads
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
from atlas_ref.rules.recurrences import log_linear
from atlas_ref.types import Array
from tape import ops

TENSORS = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_out"),
    "in/q": Tensor("... T d_in"),
    "in/log_retain": Tensor("... T", high=0.0),
    "in/level_scales": Tensor("... T levels"),
    "in/M0": Tensor("... levels d_out d_in", "0"),
    "in/M_bar": Tensor("... levels d_out d_in", "0"),
}


def _shapes(x: Inputs, own: Settings) -> Shapes:
    *lead, T, d_out = x["in/v"].shape
    d_in, levels = x["in/k"].shape[-1], x["in/level_scales"].shape[-1]
    heads = key_heads(tuple(lead), own.groups)
    return {
        **dict.fromkeys(("k", "q"), (*heads, T, d_in)),
        **dict.fromkeys(("v", "y"), (*lead, T, d_out)),
        "log_retain": (*lead, T),
        "level_scales": (*lead, T, levels),
        "M": (*lead, levels, d_out, d_in),
    }


def _tokens(x: Inputs) -> log_linear.Tokens:
    names = ("k", "v", "q", "log_retain", "level_scales")
    return log_linear.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))


def _evaluate(x: Inputs, own: Settings) -> Results:
    tokens = _tokens(x)
    first = {"M": own.matrix(x["in/M0"])} if "in/M0" in x else {}
    state = log_linear.start(tokens, **first, position=own.position)
    after, y = log_linear.run(tokens, state, groups=own.groups, query_scale=own.query_scale)
    return {"out/y": y, "out/M": own.matrix(after.M)}


def _positions(x: Inputs, own: Settings) -> list[int]:
    """Tokens that the memory holds before the first token and after each of them."""
    here = [own.position]
    for t in range(x["in/v"].shape[-2]):
        here.append((own.position if starts(x, t) else here[-1]) + writes(x, t))
    return here


def _check(x: Inputs, own: Settings) -> None:
    """Refuse more tokens than the levels hold, and a first memory in a level that holds none."""
    levels, most = x["in/level_scales"].shape[-1], max(_positions(x, own))
    if most > 2 ** (levels - 1):
        raise ValueError(
            f"in/level_scales: {levels} levels, which hold {2 ** (levels - 1)} tokens, found {most}"
        )
    for level in range(levels if "in/M0" in x else 0):
        if not _holds(level, own.position) and np.any(x["in/M0"][..., level, :, :]):
            raise ValueError(
                f"in/M0: level {level} must be 0, which holds no token at "
                f"parameters.position = {own.position}"
            )


def _holds(level: int, position: int) -> bool:
    """Whether a level holds tokens after this many of them."""
    if position == 0:
        return False
    return level == 0 or (position - 1) // 2 ** (level - 1) % 2 == 1


def _plain(x: Inputs, own: Settings, by: Rounding) -> Results:
    """A binary counter of memories: a new token takes level 0, and what was there is carried on."""
    shapes, reads, way = _shapes(x, own), [], by.way
    levels, given = shapes["M"][-3], own.matrix(x["in/M0"]) if "in/M0" in x else None
    nothing = ops.zeros_like(x["in/v"], shape=(*shapes["v"][:-2], shapes["v"][-1], shapes["k"][-1]))
    first: list[Any] = [
        (nothing if given is None else given[..., level, :, :])
        if _holds(level, own.position)
        else None
        for level in range(levels)
    ]
    held = first
    for t in range(shapes["v"][-2]):
        k, q = (_wide(each, own.groups) for each in at_token(x, t, "k", "q"))
        v, scales = at_token(x, t, "v", "level_scales")
        held = first if starts(x, t) else held
        if writes(x, t):
            w = by.touch(ops.exp(x["in/log_retain"][..., t]))[..., None, None]
            held = _carried([each if each is None else stored(by, w * each) for each in held], by)
            held[0] = stored(by, v[..., :, None] * k[..., None, :])
        asks, y = own.asks(q)[..., None], nothing[..., 0]
        for level, each in enumerate(held):
            if each is not None:
                y = way.scaled_sum(scales[..., level, None], way.matmul(each, asks)[..., 0], y)
        reads.append(y)
    M = ops.stack([nothing if each is None else each for each in held], axis=-3)
    return {"out/y": ops.stack(reads, axis=-2), "out/M": own.matrix(M)}


def _carried(held: list[Any], by: Rounding) -> list[Any]:
    """Memories of levels with level 0 free: joined with each one above up to a level that is free."""
    held, carry, level = list(held), held[0], 1
    held[0] = None
    while carry is not None:
        if held[level] is None:
            held[level], carry = carry, None
        else:
            carry, held[level] = stored(by, held[level] + carry), None
        level += 1
    return held


def _wide(x: Array, groups: int) -> Array:
    """Rows of key heads for value heads: each of them as often as a group has heads."""
    return x if groups == 1 else x[..., np.arange(x.shape[-2] * groups) // groups, :]


def _draw(request: Any, own: Settings, generator: Any) -> dict[str, Array]:
    value, key = ((*leading(request, n), request.tokens) for n in (own.groups, 1))
    levels = (own.position + request.tokens - 1).bit_length() + 1
    return {
        "in/k": generator.standard_normal((*key, request.d_in)) / np.sqrt(request.d_in),
        "in/v": generator.standard_normal((*value, request.d_out)),
        "in/q": generator.standard_normal((*key, request.d_in)),
        "in/log_retain": np.log(generator.uniform(0.8, 1.0, value)),
        "in/level_scales": generator.uniform(0.2, 1.0, (*value, levels)),
    }


def _first(name: str, M: Any, own: Settings) -> Any:
    """First memories, zero in levels that hold no token at the position; None at the first."""
    held = [_holds(level, own.position) for level in range(M.shape[-3])]
    return M * np.array(held, np.float64)[:, None, None] if any(held) else None


MEMBER = Member(
    source="fla-core 0.6.0, ops/log_linear_attn/naive.py",
    tensors=TENSORS,
    states=("M",),
    matrices=("M",),
    settings=("query_scale", "state_layout", "groups", "position"),
    clause="RECUR-12",
    shapes=_shapes,
    evaluate=_evaluate,
    plain=_plain,
    draw=_draw,
    words={"state": "M"},
    counts={"value_heads_per_key_head": "groups"},
    first=_first,
    check=_check,
    continued=lambda x, own: {"position": _positions(x, own)[-1]},
)
