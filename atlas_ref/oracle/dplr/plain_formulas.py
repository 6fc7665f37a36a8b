"""Gates and step sizes of raw numbers in any legal arithmetic (DPLRCASE-16, DPLRCASE-17, TOL-3).

Written from GATES-17 to GATES-21; it shares no code with `parts.gate_formulas`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import add
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.context import GATES, DplrContext
from atlas_ref.oracle.dplr.formulas import MADE, RAW
from atlas_ref.oracle.norms import round_to
from atlas_ref.oracle.program.context import Context, select
from atlas_ref.oracle.program.hook import Hook, same
from atlas_ref.types import Array
from tape import ops, plain

Touch = Callable[[Array], Array]

#: Above it the gate of an exponential is 0 in every format.
_HIGH = 64.0

#: Above it public code has z in place of log(1 + e^z), unless a case says so.
_PRINTED = 20.0


def compute(hook: Hook) -> Context:
    """The context with logs of gates and step sizes in place of raw numbers.

    A reading wraps its points formula/sum, formula/rate, formula/scaled, formula/softplus and
    formula/log_gate (DPLRCASE-18).
    """
    context: Context = hook.context
    own, given = context.settings, context.inputs
    x, touch = dict(given), context.rounding.touch
    if "in/gate_input" in x:
        x["in/log_retain"] = _log_gate(hook)
    if "in/beta_input" in x:
        rate = touch(_share(x["in/beta_input"]))
        x["in/beta"] = 2 * rate if own.beta_formula == "twice_sigmoid" else rate
    made = {each.name: tuple(n for n in each.raw if n in x) for each in MADE.values()}
    return context._replace(
        inputs={name: value for name, value in x.items() if name not in RAW},
        raw={name: value for name, value in given.items() if name in RAW},
        sources={name: raw for name, raw in made.items() if raw},
    )


def _log_gate(hook: Hook) -> Array:
    """The log of every gate by its formula, in the format that the program has it in."""
    dtype = hook.context.settings.gate_dtype if _is_narrow(hook) else None
    return hook.point("formula/log_gate", 0, _in_format, _by_formula(hook), dtype)


def _in_format(g: Array, dtype: str | None) -> Array:
    """A log gate rounded to a format; its slope is that of what is rounded."""
    return g if dtype is None else round_to(g, dtype)


def _is_narrow(hook: Hook) -> bool:
    """Whether arithmetic is not that of the truth, so that declarations count (DPLRCASE-19)."""
    return bool(hook.context.inputs["in/v"].dtype != np.float64)


def _by_formula(hook: Hook) -> Array:
    x, own, touch = hook.context.inputs, hook.context.settings, hook.context.rounding.touch
    raw, kind = x["in/gate_input"], own.gate_formula
    places = 2 if len(raw.shape) == len(x["in/v"].shape) else 1
    rate, bias = _rate(hook, places), _along(x, "in/gate_bias", places)
    z = raw if bias is None else hook.point("formula/sum", 0, add, raw, bias)
    if kind == "softplus":
        size = _size(hook, z)
        return -size if rate is None else -(rate * size)
    if kind == "bounded":
        z = hook.point("formula/scaled", 0, _scale, z, rate, bias)
        return own.gate_lower_bound * touch(_share(z))
    if kind == "log_sigmoid":
        return _of_sigmoid(own, z, touch)
    if kind == "floored_sigmoid":
        return _from_floor(z, _along(x, "in/gate_floor", places), touch)
    return -touch(ops.exp(ops.where(ops.less(z, _HIGH), z, _HIGH)))


def _scale(z: Array, rate: Array, bias: Array) -> Array:
    """The argument under its rate, its bias in it already."""
    return z if rate is None else rate * z


def _rate(hook: Hook, places: int) -> Array:
    """The rate of every head, beside tokens and channels; None for 1."""
    log_rate = hook.context.inputs.get("in/gate_log_rate")
    if log_rate is None:
        return None
    for _ in range(places):
        log_rate = log_rate[..., None]
    touch = hook.context.rounding.touch
    return hook.point("formula/rate", 0, lambda log: touch(ops.exp(log)), log_rate)


def _along(x: Mapping[str, Any], name: str, places: int) -> Array:
    """A tensor of heads, and of channels where gates have them, with an axis of tokens."""
    if name not in x:
        return None
    return x[name][..., None] if places == 1 else x[name][..., None, :]


def _size(hook: Hook, z: Array) -> Array:
    """Softplus as the program has it."""
    own, touch = hook.context.settings, hook.context.rounding.touch
    if own.gate_softplus == "log(1+exp)" and _is_narrow(hook):
        return _softplus(own, z, touch)
    return hook.point("formula/softplus", 0, lambda z: _of_softplus(own, z, touch), z)


def _of_softplus(own: Any, z: Array, touch: Touch) -> Array:
    """log(1 + e^z), which is z + log(1 + e^-z) where z is above 0."""
    above = ops.greater(z, 0.0)
    up, down = ops.where(above, z, 0.0), ops.where(above, 0.0, z)
    small = touch(ops.log1p(ops.exp(-up)))
    size = ops.where(above, z + small, touch(ops.log1p(ops.exp(down))))
    if own.gate_threshold is not None:
        size = ops.where(ops.greater(z, own.gate_threshold), z, size)
    return size


def _softplus(own: Any, z: Array, touch: Touch) -> Array:
    """log(1 + e^z) in the arithmetic of a program, z where e^z would overflow or a threshold is."""
    top = _PRINTED if own.gate_threshold is None else own.gate_threshold
    above = ops.greater(z, top)
    power = touch(ops.exp(ops.where(above, 0.0, z)))
    return ops.where(above, z, touch(ops.log(1 + power)))


def as_printed_in_float32(z: Array, size: Array, top: float = _PRINTED) -> Array:
    """log(1 + e^z) as it is printed, in float32 up to a bound; the slope is that of `size`."""
    wide = np.asarray(plain(z), np.float64)
    one, high = np.float32(1), wide > top
    power = np.exp(np.where(high, 0.0, wide).astype(np.float32))
    narrow = np.where(high, wide, np.log(one + power).astype(np.float64))
    return size + (narrow - plain(size)).astype(size.dtype)


def _of_sigmoid(own: Any, z: Array, touch: Touch) -> Array:
    """log of the sigmoid over the normalizer, no less than the least."""
    below = ops.less(z, 0.0)
    up, down = ops.where(below, 0.0, z), ops.where(below, z, 0.0)
    near = -touch(ops.log1p(ops.exp(-up)))
    far = z - touch(ops.log1p(ops.exp(down)))
    g = ops.where(below, far, near)
    if own.gate_normalizer is not None:
        g = g / own.gate_normalizer
    least = own.gate_least
    return g if least is None else ops.where(ops.greater(g, least), g, least)


def _from_floor(z: Array, floor: Array, touch: Touch) -> Array:
    """log of floor + (1 - floor) sigmoid."""
    above = ops.greater(z, 0.0)
    up, down = ops.where(above, z, 0.0), ops.where(above, 0.0, z)
    near = touch(ops.log1p((floor - 1) * _share(-up)))
    return ops.where(above, near, touch(ops.log(floor + (1 - floor) * _share(down))))


def _share(z: Array) -> Array:
    """1 / (1 + e^-z), by the power that is at most 1."""
    below = ops.less(z, 0.0)
    low = ops.exp(ops.where(below, z, 0.0))
    high = ops.exp(-ops.where(below, 0.0, z))
    return ops.where(below, low / (1 + low), 1 / (1 + high))


# -- gates by their cumulated logs -------------------------------------------------------------------


def with_cumulation(context: DplrContext) -> DplrContext:
    """Gates as of a kernel that cumulates logs over a chunk, where the case declares it (DPLRCASE-15).

        G_t = g_first + ... + g_t,      w_t = exp(G_t - G_{t-1})

    A product of these gates is exp(G_i - G_j), which is what such a kernel multiplies with: the loop
    over them has the errors of its logs, in every result and norm. In float64, the truth, a gate
    stays what it is.
    """
    x, v = context.inputs, context.inputs["in/v"]
    name = next((each for each in GATES if each in x), "")
    chunk = context.settings.log_chunk
    if chunk is None or not name or v.dtype == np.float64:
        return context
    rows = len(x[name].shape) == len(v.shape)
    logs = x[name] if name == GATES[0] else context.rounding.touch(ops.log(x[name]))
    gates = ops.stack(list(_gates(context, chunk, logs, rows)), axis=-2 if rows else -1)
    others = {each: value for each, value in x.items() if each not in GATES}
    return context._replace(inputs={**others, "in/retain": gates})


def _gates(context: DplrContext, chunk: int, logs: Array, rows: bool) -> Iterator[Array]:
    """The gate of each token; a silent one has a log of 0."""
    total, before, mask = None, None, context.mask()
    for t in range(logs.shape[-2 if rows else -1]):
        by_row, first = context.first_tokens(t)
        fresh = (t - first) % chunk == 0
        if fresh.all():
            total = before = None
        elif fresh.any():  # a sum of 0 in the rows where a chunk starts
            anew = fresh.reshape(*by_row, 1)
            total = select(anew, partial(ops.zeros_like, total), total)
            before = select(anew, partial(ops.zeros_like, before), before)
        g = logs[..., t, :] if rows else logs[..., t]
        g = select(mask[t], partial(same, g), 0 * g)
        total = g if total is None else total + g
        seen = context.rounding.touch(total)  # whose sum others round in another order
        yield ops.exp(seen if before is None else seen - before)
        before = seen
