"""Mistakes in a write, from its residuals to its weights (DEEPCASE-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.conditions import again, holds, writes
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.oracle.deep.steps import factor, root, square
from atlas_ref.oracle.family.arithmetic import PLAIN
from atlas_ref.oracle.program.hook import within
from atlas_ref.oracle.program.mistakes import both
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops

#: Tensors of memory functions that are no matrices.
VECTORS = (
    "norm/gain",
    *(f"{norm}/{part}" for norm in ("feature_norm", "read_norm") for part in ("gain", "bias")),
    "read_scale",
)

#: Far above any norm.
LARGE = 2.0**20


def _square(name: str, context: DeepContext) -> bool:
    shape = context.inputs[f"in/memory/{name}"].shape
    return rank(name) == 2 and shape[-1] == shape[-2] and shape[-1] > 1


def _has_square(context: DeepContext) -> bool:
    return any(_square(name, context) for name in context.settings.fast)


def _transpose_square(x: Array) -> Array:
    shape = x.shape
    return x.swapaxes(-1, -2) if len(shape) > 1 and shape[-1] == shape[-2] else x


def _own_norm(compute: Any, size: Array, g: Array) -> Array:
    axes = len(g.shape) - len(size.shape)
    return compute(root(square(PLAIN, g, axes)), g)


def _clips(kind: str) -> Callable[[DeepContext], bool]:
    return lambda context: context.settings.clip == kind and writes(context)


def _adapts(context: DeepContext) -> bool:
    return context.settings.adaptive and context.settings.c.rate != "none" and writes(context)


def _rows_of_heads(context: DeepContext) -> bool:
    lead = context.inputs["in/k"].shape[:-2]
    return not context.settings.shares_memory and bool(lead) and lead[0] > 1 and writes(context)


def _with_axes(r: Any, x: Array) -> Any:
    return None if r is None else factor(r, len(x.shape) - len(r.shape))


WRITE: tuple[Reading, ...] = (
    Reading(
        "residual divided by d_out",
        "residuals were divided by d_out",
        matters=writes,
        ops={"residual": within(lambda compute, y, v: compute(y, v) / v.shape[-1])},
    ),
    Reading(
        "residual clipped",
        "residuals were clipped to [-1, 1]",
        matters=writes,
        ops={
            "residual": within(
                lambda compute, y, v: ops.minimum(ops.maximum(compute(y, v), -1.0), 1.0)
            )
        },
    ),
    Reading(
        "weights of the window left out",
        "every token of a window counted 1",
        matters=lambda context: (
            writes(context)
            and (
                "in/window_gate" in context.inputs
                or "in/window_weights" in context.inputs
                or context.settings.by_lag != [1.0] * context.settings.window
            )
        ),
        ops={"cotangent": within(lambda compute, e, w, *own: compute(e, ops.ones_like(w), *own))},
    ),
    Reading(
        "weights of the window squared",
        "weights of a window counted twice",
        matters=lambda context: (
            writes(context)
            and (
                "in/window_gate" in context.inputs
                or "in/window_weights" in context.inputs
                or any(each not in (0.0, 1.0) for each in context.settings.by_lag)
            )
        ),
        ops={"cotangent": within(lambda compute, e, w, *own: compute(e, w * w, *own))},
    ),
    Reading(
        "gradient transposed",
        "gradients of square matrices were transposed",
        matters=_has_square,
        ops={"gradient": within(lambda compute, g: _transpose_square(compute(g)))},
    ),
    Reading(
        "gradient of all rows",
        "rows shared the mean of their gradients",
        matters=_rows_of_heads,
        ops={
            "gradient": within(
                lambda compute, g: ops.mean(compute(g), axis=0, keepdims=True) * ops.ones_like(g)
            )
        },
    ),
    Reading(
        "gradient of W_value left out",
        "W_value had no gradient",
        matters=lambda context: "W_value" in context.settings.fast and writes(context),
        ops={"gradient/W_value": within(lambda compute, g: ops.zeros_like(compute(g)))},
    ),
    Reading(
        "clip of each tensor",
        "each tensor were clipped by its own norm",
        matters=lambda context: _clips("hard")(context) and len(context.settings.fast) > 1,
        ops={"clipped": within(_own_norm)},
    ),
    Reading(
        "clip that lengthens",
        "every gradient got the norm of the bound",
        matters=_clips("hard"),
        ops={
            # the bound over a norm far above it, times what that is too much
            "clipped": within(lambda compute, size, g: compute(LARGE * size, g) * LARGE)
        },
    ),
    Reading(
        "squared norm in the step",
        "steps were divided by 1 + |g|^2",
        matters=_adapts,
        ops={"norm": within(lambda compute, *g: compute(*g) * compute(*g))},
    ),
    Reading(
        "norm of the first tensor",
        "steps were divided by 1 + the norm of the first tensor",
        matters=lambda context: _adapts(context) and len(context.settings.fast) > 1,
        ops={"norm": within(lambda compute, *g: compute(g[0], *(0.0 * each for each in g[1:])))},
    ),
    Reading(
        "step of its norm alone",
        "steps were divided by |g|",
        matters=_adapts,
        ops={"norm": within(lambda compute, *g: compute(*g) - 1.0)},
    ),
    Reading(
        "momentum left out",
        "there were no momentum",
        matters=both(holds("in/momentum"), again),
        ops={"S": within(lambda compute, g, S, m, a: compute(g, None, m, a))},
    ),
    Reading(
        "momentum of 1",
        "momentum did not fade",
        matters=both(holds("in/momentum"), again),
        ops={"S": within(lambda compute, g, S, m, a: compute(g, S, ops.ones_like(m), a))},
    ),
    Reading(
        "momentum as an average",
        "gradients were multiplied by one minus the momentum",
        matters=holds("in/momentum"),
        ops={
            "S": within(
                lambda compute, g, S, m, a: compute(
                    g, S, m, (1.0 - m) if a is None else a * (1.0 - m)
                )
            )
        },
    ),
    Reading(
        "rate of the momentum too",
        "the step size multiplied the old momentum too",
        matters=lambda context: (
            context.settings.c.rate in ("momentum", "both", "split")
            and holds("in/momentum")(context)
            and again(context)
        ),
        ops={"S": within(lambda compute, g, S, m, a: compute(g, S, m if a is None else m * a, a))},
    ),
    Reading(
        "direction transposed",
        "directions of square matrices were transposed",
        matters=_has_square,
        ops={"U": within(lambda compute, *args: _transpose_square(compute(*args)))},
    ),
    Reading(
        "direction left as it is",
        "one matrix had no Newton-Schulz",
        matters=lambda context: (
            context.settings.c.has_newton_schulz
            and writes(context)
            and rank(context.settings.fast[0]) == 2
        ),
        ops={
            f"U/{name}": within(lambda compute, *args: args[-1])
            for name in ("W", "W_1", "W_in", "W_down")
        },
    ),
    Reading(
        "retain left out",
        "weights did not decay",
        matters=lambda context: context.settings.c.gate != "none" and writes(context),
        ops={"W": within(lambda compute, W, U, b, r: compute(W, U, b, None))},
    ),
    Reading(
        "retain after the step",
        "the decay came after the write, r (W - b U)",
        matters=lambda context: context.settings.c.gate != "none" and writes(context),
        ops={
            "W": within(lambda compute, W, U, b, r: _with_axes(r, W) * compute(W, U, b, None)),
        },
    ),
    Reading(
        "vectors that do not decay",
        "tensors that are no matrices did not decay",
        matters=lambda context: (
            context.settings.c.gate != "none"
            and writes(context)
            and any(rank(each) < 2 for each in context.settings.fast)
        ),
        ops={
            f"W/{name}": within(lambda compute, W, U, b, r: compute(W, U, b, None))
            for name in VECTORS
        },
    ),
    Reading(
        "write that forgets",
        "weights began anew at each write",
        matters=again,
        ops={"W": within(lambda compute, W, U, b, r: compute(ops.zeros_like(W), U, b, r))},
    ),
)
