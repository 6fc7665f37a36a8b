"""Cases of linear test-time training, and its plain loop, which shares no code with the rule
(RECUR-11).
"""

from __future__ import annotations

from functools import partial
from operator import truediv
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor, masks
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program.changes import change_tensor, ones
from atlas_ref.oracle.program.context import Context, Inputs, starts, writes
from atlas_ref.oracle.program.hook import Hook, by, same, within
from atlas_ref.oracle.program.mistakes import of_before, scale_twice, several
from atlas_ref.oracle.program.program import Program, Results, Setting, Shapes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.recurrences.member import (
    QUERY_SCALE,
    SHARED,
    STATE_LAYOUT,
    Member,
    in_layout,
)
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
    **SHARED,
}


#: Rows of the tokens of a mini-batch.
Rows = tuple[Array, ...]


def _shapes(x: Inputs, settings: Any) -> Shapes:
    *lead, T, d = x["in/k"].shape
    return {
        **dict.fromkeys(("k", "v", "q", "y"), (*lead, T, d)),
        "step_size": (*lead, T),
        **{name: of_last_axes(x[f"in/{name}"], tuple(lead), d) for name in ("gain", "shift")},
        "M": (*lead, d, d),
        "bias": (*lead, d),
    }


def _evaluate(x: Inputs, settings: Any) -> dict[str, Array]:
    names = ("k", "v", "q", "step_size", "gain", "shift")
    tokens = ttt_linear.Tokens(**{name: x[f"in/{name}"] for name in names}, **masks(x))
    first = {"M": in_layout(settings, x["in/M0"])} if "in/M0" in x else {}
    config = ttt_linear.Config(
        mini_batch=settings.mini_batch, norm_eps=settings.norm_eps, query_scale=settings.query_scale
    )
    state = ttt_linear.start(tokens, bias=x.get("in/bias0"), **first)
    after, y = ttt_linear.run(config, tokens, state)
    memory = ttt_linear.memory(after)
    return {"out/y": y, "out/M": in_layout(settings, memory.M), "out/bias": memory.bias}


def _loop(context: Context, hook: Hook) -> Results:
    """Reads by scores of keys of a mini-batch, whose sums move the memory at its end (RECUR-15)."""
    way, size, reads = context.arithmetic, context.settings.mini_batch, []
    gain, shift = context.whole("gain"), context.whole("shift")
    M, bias = first = context.first("M"), context.first("bias")
    batch = Batch()
    for t in range(context.tokens):
        k, v, q = context.rows(t, "k", "v", "q")
        if context.starts(t):
            batch = Batch()
        M, bias = (
            hook.start(name, t, *each)
            for name, *each in zip(("M", "bias"), (M, bias), first, strict=True)
        )
        if context.writes(t):
            if len(batch.keys) == size:
                (M, bias), batch = _write(hook, way, M, bias, batch), Batch()
            z = hook("found", t, partial(_find, way), M, bias, k)
            hat, deviation = _norm(context, hook, t, "", z)
            e = hook("error", t, partial(_error, way), hat, v, k, gain, shift)
            u = hook("slope", t, partial(_slope, way), e, hat, deviation, gain)
            batch = batch.with_token(t, k, u, context.row(t, "step_size"))
        o = hook("read", t, partial(_read, context), M, bias, q, *batch.values)
        hat, _ = _norm(context, hook, t, "read_", o)
        reads.append(hook("y", t, partial(_finish, way), o, hat, gain, shift))
    if batch.keys:
        M, bias = _write(hook, way, M, bias, batch)
    return {"y": ops.stack(reads, axis=-2), "M": M, "bias": bias}


class Batch(NamedTuple):
    """Tokens of a mini-batch so far: the last one, and of each its key, slope and step size."""

    last: int = -1
    keys: tuple[Array, ...] = ()
    slopes: tuple[Array, ...] = ()
    steps: tuple[Array, ...] = ()

    @property
    def values(self) -> tuple[tuple[Array, ...], ...]:
        return self.keys, self.slopes, self.steps

    def with_token(self, t: int, k: Array, u: Array, step: Array) -> Batch:
        return Batch(t, (*self.keys, k), (*self.slopes, u), (*self.steps, step))


def _write(hook: Hook, way: Arithmetic, M: Array, bias: Array, batch: Batch) -> tuple[Array, Array]:
    """The memory after one step along the sums over a mini-batch, at the last of its tokens."""
    t, (keys, slopes, steps) = batch.last, batch.values
    return (
        hook("M", t, partial(_move, way), M, keys, slopes, steps),
        hook("bias", t, partial(_bias, way), bias, slopes, steps),
    )


def _move(way: Arithmetic, M: Array, keys: Rows, slopes: Rows, steps: Rows) -> Array:
    columns = ops.stack(slopes, axis=-1)  # (..., d, tokens)
    down = -steps[-1][..., None, None]
    return way.scaled_sum(down, way.matmul(columns, ops.stack(keys, axis=-2)), M)


def _bias(way: Arithmetic, bias: Array, slopes: Rows, steps: Rows) -> Array:
    columns = ops.stack(slopes, axis=-1)
    ones = ops.ones_like(columns, shape=(len(slopes), 1))
    return way.scaled_sum(-steps[-1][..., None], way.matmul(columns, ones)[..., 0], bias)


def _find(way: Arithmetic, M: Array, bias: Array, k: Array) -> Array:
    return way.matmul(M, k[..., None])[..., 0] + bias


def _read(
    context: Context, M: Array, bias: Array, q: Array, keys: Rows, slopes: Rows, steps: Rows
) -> Array:
    """What the memory after this token answers, the gradients of its mini-batch by their scores."""
    way, asks = context.arithmetic, context.asks(q)[..., None]
    o = way.matmul(M, asks)[..., 0] + bias
    if not keys:
        return o
    scores = way.matmul(ops.stack(keys, axis=-2), asks) + 1.0  # 1 is of the bias
    found = way.matmul(ops.stack(slopes, axis=-1), scores)[..., 0]
    return way.scaled_sum(-steps[-1][..., None], found, o)


def _norm(context: Context, hook: Hook, t: int, of: str, z: Array) -> tuple[Array, Array]:
    """z without its mean over its deviation, and that."""
    way, eps = context.arithmetic, context.settings.norm_eps
    centred = hook(f"{of}centred", t, partial(_centre, way), z)
    deviation = hook(f"{of}deviation", t, partial(_deviation, way), centred, eps)
    return hook(f"{of}normed", t, truediv, centred, deviation), deviation


def _centre(way: Arithmetic, z: Array) -> Array:
    return z - _total(way, z) / z.shape[-1]


def _deviation(way: Arithmetic, centred: Array, eps: float) -> Array:
    return ops.sqrt(_total(way, centred * centred) / centred.shape[-1] + eps)


def _error(way: Arithmetic, hat: Array, v: Array, k: Array, gain: Array, shift: Array) -> Array:
    return way.scaled_sum(hat, gain, shift) - (v - k)


def _slope(way: Arithmetic, e: Array, hat: Array, deviation: Array, gain: Array) -> Array:
    """The derivative of the loss by z, as kernels write it: all over the width, divided at last."""
    width, g = hat.shape[-1], e * gain
    whole = width * g - _total(way, g) - hat * _total(way, g * hat)
    return whole / (width * deviation)


def _finish(way: Arithmetic, o: Array, hat: Array, gain: Array, shift: Array) -> Array:
    return o + way.scaled_sum(hat, gain, shift)


def _total(way: Arithmetic, x: Array) -> Array:
    """The sum over the last axis, which stays."""
    column = ops.ones_like(x, shape=(x.shape[-1], 1))
    return way.matmul(x[..., None, :], column)[..., 0]


def _cuts(x: Inputs, settings: Any, token: int) -> bool:
    """Whether a mini-batch begins at a token, as a call does (RECUR-13)."""
    count = 0
    for t in range(token):
        count = (0 if starts(x, t) else count) + writes(x, t)
    return bool(count % settings.mini_batch == 0)


def _draw(request: Any, settings: Any, generator: Any) -> dict[str, Array]:
    d, lead = request.d_in, (*leading(request), request.tokens)
    return {
        "in/k": generator.standard_normal((*lead, d)) / np.sqrt(d),
        "in/v": generator.standard_normal((*lead, d)),
        "in/q": generator.standard_normal((*lead, d)),
        "in/step_size": generator.uniform(0.0, 0.1, lead) / settings.mini_batch,
        "in/gain": 1.0 + 0.1 * generator.standard_normal((request.heads, d)),
        "in/shift": 0.1 * generator.standard_normal((request.heads, d)),
        "in/M0": generator.standard_normal((*lead[:-1], d, d)) / np.sqrt(d),
        "in/bias0": generator.standard_normal((*lead[:-1], d)),
    }


MINI_BATCH = Setting(
    "mini_batch",
    (1, 2, 3, 4, 5, 8, 16, 32, 64, 128),
    (16, 16, 1, 2, 4, 5),
    function=lambda context, value: min(value, context.tokens),
)

#: eps of the layer norm, those of public code among them.
NORM_EPS = Setting(
    "norm_eps",
    (1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
    (1e-6, 1e-6, 1e-2, 1e-12),
)


def _of_norms(centred: Any = None, deviation: Any = None) -> dict[str, Any]:
    """A change of both layer norms."""
    found = {"centred": centred, "deviation": deviation}
    return {f"{of}{op}": x for of in ("", "read_") for op, x in found.items() if x is not None}


def _by_own_steps(op: Any, *arguments: Any) -> Array:
    """Gradients that are each at the step size of their token."""
    *before, slopes, steps = arguments
    if not slopes:
        return op(*arguments)
    scaled = tuple(step[..., None] * u for step, u in zip(steps, slopes, strict=True))
    return op(*before, scaled, (ones(steps[-1]),))


def _average(op: Any, *arguments: Any) -> Array:
    *before, slopes, steps = arguments
    return op(*before, tuple(u / len(slopes) for u in slopes), steps)


def _by_first_step(op: Any, *arguments: Any) -> Array:
    return op(*arguments[:-1], arguments[-1][:1])


def _without_ones(
    compute: Any, M: Array, bias: Array, q: Array, keys: Rows, slopes: Rows, steps: Rows
) -> Array:
    o = compute(M, bias, q, keys, slopes, steps)
    return o + steps[-1][..., None] * sum(slopes) if slopes else o


def _without_itself(
    op: Any, M: Array, bias: Array, q: Array, keys: Rows, slopes: Rows, steps: Rows
) -> Array:
    return op(M, bias, q, keys[:-1], slopes[:-1], steps)


def _everywhere(wrap: Any) -> dict[str, Any]:
    """A change of all sums over a mini-batch."""
    return dict.fromkeys(("M", "bias", "read"), wrap)


def _joint(context: Context) -> bool:
    """Whether a mini-batch has tokens beside its first one."""
    return several(context) and context.settings.mini_batch > 1


MISTAKES = (
    Reading(
        "eps outside the root",
        "the eps of a norm was added to the deviation",
        ops=_of_norms(deviation=within(lambda op, x, eps: op(x, 0.0) + eps)),
    ),
    Reading(
        "variance over width - 1",
        "variances were sums over the width minus one",
        lambda context: context.inputs["in/k"].shape[-1] > 1,
        ops=_of_norms(
            deviation=lambda op, x, eps: op(
                x * np.sqrt(x.shape[-1] / (x.shape[-1] - 1)).astype(x.dtype), eps
            )
        ),
    ),
    Reading("mean kept", "norms did not subtract the mean", ops=_of_norms(centred=by(same))),
    Reading(
        "residual forgotten",
        "reads were their norm alone",
        ops={"y": lambda op, o, *rest: op(ops.zeros_like(o), *rest)},
    ),
    Reading("norm of reads forgotten", "reads had no norm", ops={"y": by(same)}),
    Reading(
        "target of values",
        "the target was the value alone",
        ops={"error": lambda op, hat, v, k, *affine: op(hat, v, ops.zeros_like(k), *affine)},
    ),
    Reading(
        "gain left out of the gradient",
        "gradients did not go back through in/gain",
        ops={"slope": lambda op, e, hat, d, gain: op(e, hat, d, ones(gain))},
    ),
    Reading(
        "norm left out of the gradient",
        "gradients did not go back through the norm",
        ops={"slope": by(lambda e, hat, d, gain: e * gain)},
    ),
    Reading("gain forgotten", "in/gain was 1", inputs=change_tensor("in/gain", ones)),
    Reading("shift forgotten", "in/shift was 0", inputs=change_tensor("in/shift", ops.zeros_like)),
    Reading(
        "step of each token",
        "every gradient had the step size of its own token",
        _joint,
        ops=_everywhere(_by_own_steps),
    ),
    Reading(
        "step of the first token",
        "gradients had the step size of the first token of their mini-batch",
        _joint,
        ops=_everywhere(_by_first_step),
    ),
    Reading(
        "mean over the mini-batch",
        "gradients of a mini-batch were averaged",
        _joint,
        ops=_everywhere(_average),
    ),
    Reading("bias not written", "the bias was never moved", ops={"bias": by(same)}),
    Reading(
        "bias left out of reads in a mini-batch",
        "scores had no 1 of the bias",
        ops={"read": within(_without_ones)},
    ),
    Reading(
        "bias left out of the write",
        "gradients were taken without the bias",
        ops={"found": lambda op, M, bias, k: op(M, ops.zeros_like(bias), k)},
    ),
    Reading(
        "read before",
        "queries read the memory before their token",
        ops={"read": _without_itself},
    ),
    Reading(
        "read of the mini-batch's start",
        "queries read the memory before their mini-batch",
        ops={"read": lambda op, M, bias, q, *rows: op(M, bias, q, (), (), ())},
    ),
    Reading(
        "last mini-batch not written",
        "the last mini-batch did not move the memory",
        ops={"out/M": of_before, "out/bias": of_before},
    ),
    scale_twice("read", 2),
)

PROGRAM = Program(
    name="ttt_linear",
    tensors=TENSORS,
    shapes=_shapes,
    states=("M", "bias"),
    matrices=("M",),
    settings=(QUERY_SCALE, STATE_LAYOUT, MINI_BATCH, NORM_EPS),
    loop=_loop,
    rounding={"M": "store", "bias": "store"},
    clause="RECUR-11",
    draw=_draw,
    cuts=_cuts,
    mistakes=MISTAKES,
)

MEMBER = Member(
    source="fla-core 0.6.0, ops/ttt/naive.py",
    program=PROGRAM,
    evaluate=_evaluate,
    words={"w": "gain", "b": "shift", "eta": "step_size", "state": "M", "bias": "bias"},
    counts={"mini_batch": "mini_batch", "eps": "norm_eps"},
    flat={"step_size": -1, "bias": -2, "bias0": -2, "bias_bar": -2},
)
