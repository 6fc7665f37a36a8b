"""Cases of the short causal convolution, and its plain loop, which shares no code with the rule
(SHORT-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import add
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.tensor_spec import Tensor, masks
from atlas_ref.oracle.drawing import leading
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.oracle.program import mistakes
from atlas_ref.oracle.program.changes import change_tensor, without, zero_silent_tokens
from atlas_ref.oracle.program.context import Context, Inputs, writes
from atlas_ref.oracle.program.hook import Hook, by, same
from atlas_ref.oracle.program.mistakes import both, has, of_before, several
from atlas_ref.oracle.program.program import Program, Results, Setting, Shapes
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.recurrences.member import SHARED, STATE_LAYOUT, Member, in_layout
from atlas_ref.rules.recurrences import short_conv
from atlas_ref.types import Array
from tape import ops

TENSORS = {
    "in/x": Tensor("... T d_out"),
    "in/w": Tensor("d_out taps, or heads d_out taps"),
    "in/bias": Tensor("d_out, or heads d_out", "0"),
    "in/window0": Tensor("... d_out columns", "0"),
    "in/window_bar": Tensor("... d_out columns", "0"),
    **SHARED,
}


def _columns(settings: Any, taps: int) -> int:
    """Inputs that the window holds."""
    return taps if settings.columns == "W" else taps - 1


def _shapes(x: Inputs, settings: Any) -> Shapes:
    *lead, T, d = x["in/x"].shape
    w = x["in/w"].shape
    own = min(max(len(w) - 2, 0), len(lead))
    heads = tuple(lead[len(lead) - own :])
    return {
        **dict.fromkeys(("x", "y"), (*lead, T, d)),
        "w": (*heads, d, w[-1]),
        "bias": (*heads, d),
        "window": (*lead, d, _columns(settings, w[-1])),
    }


def _check(x: Inputs, settings: Any) -> None:
    """Refuse taps of which no window is left (SHORT-1).

    Raises:
        ValueError: fewer than two taps.
    """
    if x["in/w"].shape[-1] < 2:
        found = tuple(x["in/w"].shape)
        raise ValueError(f"in/w: shape {found}, one tap leaves no window; 2 are needed")


def _evaluate(x: Inputs, settings: Any) -> dict[str, Array]:
    """Results by the rule (SHORT-6)."""
    tokens = short_conv.Tokens(x=x["in/x"], w=x["in/w"], bias=x.get("in/bias"), **masks(x))
    config = short_conv.Config(
        activation=settings.activation, columns=settings.columns, reset_to=settings.reset_to
    )
    first = {"window": in_layout(settings, x["in/window0"])} if "in/window0" in x else {}
    after, y = short_conv.run(config, tokens, short_conv.start(config, tokens, **first))
    return {"out/y": y, "out/window": in_layout(settings, after.window)}


def _loop(context: Context, hook: Hook) -> Results:
    """The convolution, token by token, with its ops (SHORT-5)."""
    reads, w = [], context.whole("w")
    bias = context.whole("bias") if context.has("bias") else None
    window = context.first("window")
    fresh = window if context.settings.reset_to == "first" else _zero(context)
    for t in range(context.tokens):
        x = context.row(t, "x")
        window = hook.start("window", t, window, fresh)
        if not context.writes(t):
            window = hook.keep("window", t, window)
            reads.append(ops.zeros_like(x))
            continue
        rows = hook("rows", t, partial(_rows, w.shape[-1]), hook.read("window", window), x)
        total = hook("total", t, partial(_total, context.arithmetic), rows, w)
        total = total if bias is None else hook("biased", t, add, total, bias)
        reads.append(hook("y", t, partial(_activate, context.settings.activation), total))
        window = hook("window", t, _shift, window, x)
    return {"y": ops.stack(reads, axis=-2), "window": window}


def _zero(context: Context) -> Array:
    """The window of a sequence that starts from zero."""
    return context._replace(inputs=without("in/window0")(dict(context.inputs))).first("window")


def _rows(taps: int, window: Array, x: Array) -> Array:
    """Inputs under the taps, the oldest first."""
    return ops.concatenate([window, x[..., None]], axis=-1)[..., -taps:]


def _total(way: Arithmetic, rows: Array, w: Array) -> Array:
    return way.matmul(rows[..., None, :], w[..., None])[..., 0, 0]


def _activate(kind: str, total: Array) -> Array:
    return total / (1.0 + ops.exp(-total)) if kind == "silu" else total


def _shift(window: Array, x: Array) -> Array:
    return ops.concatenate([window[..., 1:], x[..., None]], axis=-1)


def _draw(request: Any, settings: Any, generator: Any) -> dict[str, Array]:
    """Inputs of d_out channels under d_in taps, of which there are two at least (SHORT-6)."""
    taps, heads = max(2, request.d_in), (request.heads, request.d_out)
    return {
        "in/x": generator.standard_normal((*leading(request), request.tokens, request.d_out)),
        "in/w": generator.standard_normal((*heads, taps)) / np.sqrt(taps),
        "in/bias": 0.3 * generator.standard_normal(heads),
    }


# -- mistakes ------------------------------------------------------------------------------------------


def _silu(context: Context) -> bool:
    return bool(context.settings.activation == "silu")


def _older(context: Context) -> int:
    """Inputs of before the call that its last window holds."""
    if any(context.starts(t) for t in range(context.tokens)):
        return 0
    count = sum(bool(writes(context.inputs, t)) for t in range(context.tokens))
    return max(0, context.shapes["window"][-1] - count)


def _short(context: Context) -> bool:
    """Whether the call has fewer tokens than its window, and at least one."""
    return context.has("window0") and 0 < _older(context) < context.shapes["window"][-1]


def _behind_zeros(op: Any, after: Array, before: Array) -> Array:
    n = _older(op.context)
    return ops.concatenate([ops.zeros_like(after[..., :n]), after[..., n:]], axis=-1)


def _in_place(op: Any, after: Array, before: Array) -> Array:
    n = _older(op.context)
    return ops.concatenate([op.context.first("window")[..., :n], after[..., n:]], axis=-1)


def _around(op: Any, window: Array, x: Array) -> Array:
    """Inputs around the token, zeros behind the last one."""
    context, t = op.context, op.t
    taps = context.inputs["in/w"].shape[-1]
    ahead = taps - 1 - taps // 2
    later = [
        context.entry(i, "in/x") if i < context.tokens else ops.zeros_like(x)
        for i in range(t + 1, t + 1 + ahead)
    ]

    def around(window: Array, x: Array) -> Array:
        each = [window, *(row[..., None] for row in (x, *later))]
        return ops.concatenate(each, axis=-1)[..., -taps:]

    return op.by(around, window, x)


def _flat(w: Array) -> Array:
    """Taps that lie in memory tap by tap, read channel by channel."""
    return ops.reshape(w.swapaxes(-1, -2), w.shape)


def _of_row(context: Context) -> bool:
    """Whether there are several first windows."""
    return (
        context.has("window0")
        and context.inputs["in/window0"].shape[0] > 1 < len(context.shapes["window"]) - 1
    )


#: Mistakes of kernels beside those of every program (SHORT-7).
MISTAKES = (
    Reading(
        "taps reversed",
        "taps were in reverse order, the first one on the token itself",
        inputs=change_tensor("in/w", lambda w: ops.flip(w, -1)),
    ),
    Reading(
        "taps transposed",
        "taps were read with channels and taps exchanged",
        lambda context: min(context.shapes["w"][-2:]) > 1,
        inputs=change_tensor("in/w", _flat),
    ),
    Reading(
        "window of before",
        "taps read the window of one token earlier",
        several,
        ops={"read/window": of_before},
    ),
    Reading(
        "token under two taps",
        "the token was in the window that it reads, and so under two taps",
        ops={"rows": lambda op, window, x: op(_shift(window, x), x)},
    ),
    Reading(
        "centred",
        "taps lay around the token and read tokens behind it",
        both(several, lambda context: context.shapes["w"][-1] > 2),
        ops={"rows": _around},
        whole=True,
    ),
    Reading("bias forgotten", "in/bias was absent", has("bias"), inputs=without("in/bias")),
    Reading(
        "activation before bias",
        "in/bias was added behind the activation",
        both(has("bias"), _silu),
        ops={"biased": by(lambda total, bias: _activate("silu", total) + bias), "y": by(same)},
    ),
    Reading(
        "activation twice",
        "the activation came twice",
        _silu,
        ops={"y": by(lambda total: _activate("silu", _activate("silu", total)))},
    ),
    Reading(
        "window of outputs",
        "the window held outputs in place of raw inputs",
        ops={"window": lambda op, window, x: op(window, op.values["y"])},
    ),
    Reading(
        "short call behind zeros",
        "a call shorter than the window left zeros in front of its tokens",
        _short,
        ops={"out/window": _behind_zeros},
        short=True,
    ),
    Reading(
        "short call not shifted",
        "a call shorter than the window left older inputs where they were",
        _short,
        ops={"out/window": _in_place},
        short=True,
    ),
    Reading(
        "window of row 0",
        "all rows went on from the window of the first",
        _of_row,
        inputs=change_tensor("in/window0", lambda x: ops.broadcast_to(x[:1], x.shape)),
    ),
    Reading(
        "silent tokens as zeros",
        "silent tokens entered the window as zeros",
        has("active"),
        inputs=zero_silent_tokens("in/x"),
    ),
)

#: Mistakes of every program that none is where a reset starts from zero.
OF_FIRST = ("reset to zero", "no gradient of first state at resets")


def _mistakes(context: Context) -> Iterator[Reading]:
    """Its own mistakes, and those of every program that the case can have (SHORT-7)."""
    for each in mistakes.of_program(PROGRAM._replace(mistakes=MISTAKES), context):
        if context.settings.reset_to == "first" or each.name not in OF_FIRST:
            yield each


def _lacks(*ends: str) -> Callable[[Context], bool]:
    """Whether a case has no window whose shape decides a setting."""
    return lambda context: not any(context.has(f"window{end}") for end in ends)


PROGRAM = Program(
    name="short_conv",
    tensors=TENSORS,
    shapes=_shapes,
    states=("window",),
    matrices=("window",),
    settings=(
        STATE_LAYOUT,
        Setting("activation", ("none", "silu"), ("none", "silu")),
        Setting("columns", ("W-1", "W"), ("W-1", "W"), matters=_lacks("0", "_bar")),
        Setting("reset_to", ("zero", "first"), ("zero", "first"), matters=has("reset", "window0")),
    ),
    loop=_loop,
    rounding={"y": "touch", "window": "store"},
    clause="SHORT-1",
    clauses=lambda settings, x: {"window": "SHORT-2"},
    draw=_draw,
    check=_check,
    mistakes=_mistakes,
    later=True,
    resets_to_zero=lambda settings: bool(settings.reset_to == "zero"),
)

MEMBER = Member(
    source="fla-core 0.6.0, modules/causal_conv1d; ONNX 1.23.2, CausalConvWithState",
    program=PROGRAM,
    evaluate=_evaluate,
    words={},
)
