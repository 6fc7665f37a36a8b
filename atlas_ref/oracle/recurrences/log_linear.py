"""Cases of log-linear attention, and its plain loop, which shares no code with the rule (RECUR-12)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor, masks
from atlas_ref.oracle.cases.values import key_heads
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.program.changes import change_tensor, early, late, ones, without
from atlas_ref.oracle.program.context import Context, Inputs, starts, writes
from atlas_ref.oracle.program.hook import Hook, within
from atlas_ref.oracle.program.mistakes import scale_twice
from atlas_ref.oracle.program.program import Program, Results, Setting, Shapes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.recurrences.member import (
    QUERY_SCALE,
    SHARED,
    STATE_LAYOUT,
    Member,
    in_layout,
)
from atlas_ref.rules.recurrences import log_linear
from atlas_ref.types import Array
from tape import ops, plain

TENSORS = {
    "in/k": Tensor("... T d_in"),
    "in/v": Tensor("... T d_out"),
    "in/q": Tensor("... T d_in"),
    "in/log_retain": Tensor("... T", high=0.0),
    "in/level_scales": Tensor("... T levels"),
    "in/M0": Tensor("... levels d_out d_in", "0"),
    "in/M_bar": Tensor("... levels d_out d_in", "0"),
    **SHARED,
}


def _shapes(x: Inputs, settings: Any) -> Shapes:
    *lead, T, d_out = x["in/v"].shape
    d_in, levels = x["in/k"].shape[-1], x["in/level_scales"].shape[-1]
    heads = key_heads(tuple(lead), settings.groups)
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


def _evaluate(x: Inputs, settings: Any) -> dict[str, Array]:
    tokens = _tokens(x)
    first = {"M": in_layout(settings, x["in/M0"])} if "in/M0" in x else {}
    state = log_linear.start(tokens, **first, position=settings.position)
    after, y = log_linear.run(
        tokens, state, groups=settings.groups, query_scale=settings.query_scale
    )
    return {"out/y": y, "out/M": in_layout(settings, after.M)}


def _positions(x: Inputs, settings: Any) -> list[int]:
    """Tokens that the memory holds before the first token and after each of them."""
    here = [settings.position]
    for t in range(x["in/v"].shape[-2]):
        here.append((settings.position if starts(x, t) else here[-1]) + writes(x, t))
    return here


def _check(x: Inputs, settings: Any) -> None:
    """Refuse more tokens than the levels hold, and a first memory in a level that holds none."""
    levels, most = x["in/level_scales"].shape[-1], max(_positions(x, settings))
    if most > 2 ** (levels - 1):
        raise ValueError(
            f"in/level_scales: {levels} levels, which hold {2 ** (levels - 1)} tokens, found {most}"
        )
    for level in range(levels if "in/M0" in x else 0):
        if not _holds(level, settings.position) and np.any(x["in/M0"][..., level, :, :]):
            raise ValueError(
                f"in/M0: level {level} must be 0, which holds no token at "
                f"parameters.position = {settings.position}"
            )


def _holds(level: int, position: int) -> bool:
    """Whether a level holds tokens after this many of them."""
    if position == 0:
        return False
    return level == 0 or (position - 1) // 2 ** (level - 1) % 2 == 1


def _loop(context: Context, hook: Hook) -> Results:
    """A binary counter of memories: a new token takes level 0, and what was there is carried on."""
    own, reads, position = context.settings, [], context.settings.position
    M = first = context.label(_of_levels(context.first("M"), position), ("M",), -1)
    for t in range(context.tokens):
        k, q, v, scales = context.rows(t, "k", "q", "v", "level_scales")
        position = own.position if context.starts(t) else position
        M = hook.start("M", t, M, first)
        if context.writes(t):
            w = hook("gate", t, ops.exp, context.row(t, "log_retain"))
            decayed, carry = hook("decayed", t, partial(_decay, position), M, w), None
            free = _free(position)
            for level in range(1, free):
                carry = hook(f"joined{level}", t, partial(_join, level), decayed, carry)
            M = hook("M", t, partial(_take, own.groups, position), decayed, carry, v, k)
            position += 1
        else:
            M = hook.keep("M", t, M)
        y = partial(_read, context, position)
        reads.append(hook("y", t, y, hook.read("M", M), scales, q))
    return {"y": ops.stack(reads, axis=-2), "M": M}


def _free(position: int) -> int:
    """The level that takes what is below it when a token comes; 0 for the first token."""
    return 0 if position == 0 else (position & -position).bit_length()


def _of_levels(M: Array, position: int) -> Array:
    """Memories of levels, zero in those that hold none after these tokens."""
    return _stack(M, [level if _holds(level, position) else None for level in _levels(M)])


def _levels(M: Array) -> range:
    return range(M.shape[-3])


def _stack(M: Array, levels: list[Any]) -> Array:
    """Levels of a memory by their number, other matrices, and zero for None."""
    nothing = ops.zeros_like(M, shape=(*M.shape[:-3], *M.shape[-2:]))
    each = [nothing if x is None else M[..., x, :, :] if isinstance(x, int) else x for x in levels]
    return ops.stack(each, axis=-3)


def _decay(position: int, M: Array, w: Array) -> Array:
    w = w[..., None, None]
    held = [w * M[..., x, :, :] if _holds(x, position) else None for x in _levels(M)]
    return _stack(M, held)


def _join(level: int, decayed: Array, carry: Array | None) -> Array:
    """A level, and all below it."""
    return decayed[..., level, :, :] + (decayed[..., 0, :, :] if carry is None else carry)


def _take(
    groups: int, position: int, decayed: Array, carry: Array | None, v: Array, k: Array
) -> Array:
    """Memories of levels after a token: its pair in level 0, what was below in the free one."""
    free, pair = _free(position), v[..., :, None] * _wide(k, groups)[..., None, :]
    levels: list[Any] = [x if x > free and _holds(x, position) else None for x in _levels(decayed)]
    if free:
        levels[free] = 0 if carry is None else carry
    return _stack(decayed, [pair, *levels[1:]])


def _read(context: Context, position: int, M: Array, scales: Array, q: Array) -> Array:
    """The sum of what levels answer, each with its factor."""
    way = context.arithmetic
    asks = context.asks(_wide(q, context.settings.groups))[..., None]
    y = ops.zeros_like(M, shape=M.shape[:-3] + M.shape[-2:-1])
    for level in _levels(M):
        if _holds(level, position):
            found = way.matmul(M[..., level, :, :], asks)[..., 0]
            y = way.scaled_sum(scales[..., level, None], found, y)
    return y


def _wide(x: Array, groups: int) -> Array:
    """Rows of key heads for value heads: each of them as often as a group has heads."""
    return x if groups == 1 else x[..., np.arange(x.shape[-2] * groups) // groups, :]


def _draw(request: Any, settings: Any, generator: Any) -> dict[str, Array]:
    value, key = ((*leading(request, n), request.tokens) for n in (settings.groups, 1))
    levels = (settings.position + request.tokens - 1).bit_length() + 1
    return {
        "in/k": generator.standard_normal((*key, request.d_in)) / np.sqrt(request.d_in),
        "in/v": generator.standard_normal((*value, request.d_out)),
        "in/q": generator.standard_normal((*key, request.d_in)),
        "in/log_retain": np.log(generator.uniform(0.8, 1.0, value)),
        "in/level_scales": generator.uniform(0.2, 1.0, (*value, levels)),
    }


def _first(name: str, M: Any, settings: Any) -> Any:
    """First memories, zero in levels that hold no token at the position; None at the first."""
    held = [_holds(level, settings.position) for level in range(M.shape[-3])]
    return M * np.array(held, np.float64)[:, None, None] if any(held) else None


def _carry(op: Any, decayed: Array, carry: Array | None) -> Array:
    """What is below a level, without the level."""
    below = decayed[..., 0, :, :] if carry is None else carry
    return op(ops.zeros_like(decayed), below)


def _round_robin(context: Context) -> bool:
    groups = context.settings.groups
    return bool(groups > 1 and context.inputs["in/k"].shape[-3] > 1)


def _tile(inputs: dict[str, Any]) -> dict[str, Any]:
    """Keys and queries of value heads, head i that of key head i modulo their number."""
    heads = np.arange(inputs["in/v"].shape[-3]) % inputs["in/k"].shape[-3]
    return inputs | {name: inputs[name][..., heads, :, :] for name in ("in/k", "in/q")}


def _without_first(scales: Array) -> Array:
    return scales * (np.arange(scales.shape[-1]) > 0).astype(plain(scales).dtype)


#: Mistakes of kernels beside those of every program (RECUR-14).
MISTAKES = (
    Reading(
        "factors forgotten", "in/level_scales was 1", inputs=change_tensor("in/level_scales", ones)
    ),
    Reading(
        "factors of the level above",
        "levels had the factor of the one above",
        inputs=change_tensor("in/level_scales", lambda x: early(x, -1)),
    ),
    Reading(
        "factors of the level below",
        "levels had the factor of the one below",
        inputs=change_tensor("in/level_scales", lambda x: late(x, -1)),
    ),
    Reading(
        "factors reversed",
        "levels had their factors in reverse",
        inputs=change_tensor("in/level_scales", lambda x: x[..., ::-1]),
    ),
    Reading(
        "read without itself",
        "a query did not read its own token",
        inputs=change_tensor("in/level_scales", _without_first),
    ),
    Reading(
        "level dropped",
        "a level was lost when it was joined with those below",
        lambda context: context.settings.position + context.tokens > 3,
        ops={"joined": _carry},
    ),
    Reading(
        "levels below dropped",
        "levels below were lost when a level was joined with them",
        lambda context: context.settings.position + context.tokens > 3,
        ops={
            "joined": lambda op, decayed, carry: op(decayed, ops.zeros_like(decayed[..., 0, :, :]))
        },
    ),
    Reading(
        "levels decayed twice",
        "levels that are joined decayed twice",
        ops={"decayed": within(lambda compute, M, w: compute(compute(M, w), w))},
    ),
    Reading(
        "position ignored",
        "levels were counted from the first token of the call",
        lambda context: context.settings.position > 0,
        inputs=without("in/M0"),
        settings={"position": 0},
    ),
    Reading(
        "round robin",
        "value heads took key heads round robin",
        _round_robin,
        inputs=_tile,
        settings={"groups": 1},
    ),
    scale_twice("y", 2),
)

PROGRAM = Program(
    name="log_linear",
    tensors=TENSORS,
    shapes=_shapes,
    states=("M",),
    matrices=("M", "decayed", "joined"),
    settings=(
        QUERY_SCALE,
        STATE_LAYOUT,
        Setting("groups", drawn=(1, 1, 2, 3), heads=True),
        Setting("position", drawn=(0, 0, 3, 6, 8)),
    ),
    loop=_loop,
    rounding={"gate": "touch", "decayed": "store", "joined": "store", "M": "store"},
    clause="RECUR-12",
    draw=_draw,
    first=_first,
    check=_check,
    continued=lambda x, settings: {"position": _positions(x, settings)[-1]},
    mistakes=MISTAKES,
)

MEMBER = Member(
    source="fla-core 0.6.0, ops/log_linear_attn/naive.py",
    program=PROGRAM,
    evaluate=_evaluate,
    words={"state": "M"},
    counts={"value_heads_per_key_head": "groups"},
)
