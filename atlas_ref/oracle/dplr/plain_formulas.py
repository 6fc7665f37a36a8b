"""Gates and step sizes of raw numbers in any legal arithmetic (DPLRCASE-16, DPLRCASE-17, TOL-3).

Written from GATES-17 to GATES-21; it shares no code with `parts.gate_formulas`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.oracle.dplr.context import Inputs
from atlas_ref.oracle.dplr.formulas import RAW
from atlas_ref.oracle.norms import rounded
from atlas_ref.types import Array
from tape import ops, plain

Touch = Callable[[Array], Array]

#: Above it the gate of an exponential is 0 in every format.
_HIGH = 64.0

#: Above it public code has z in place of log(1 + e^z), unless a case says so.
_PRINTED = 20.0

#: Formats that a mistaken program has its log gates in, by the name of the mistake.
NARROW = {"gate in bfloat16": "bfloat16", "gate in float16": "float16"}


def computed(own: Any, inputs: Inputs, touch: Touch, mistake: str = "") -> dict[str, Array]:
    """The inputs with logs of gates and step sizes in place of raw numbers.

    Args:
        touch: rounding of the value of a function.
        mistake: of a program with a formula (DPLRCASE-18).
    """
    x = dict(inputs)
    if "in/gate_input" in x:
        x["in/log_retain"] = _log_gate(own, x, touch, mistake)
    if "in/beta_input" in x:
        rate = touch(_share(x["in/beta_input"]))
        x["in/beta"] = 2 * rate if own.beta_formula == "twice_sigmoid" else rate
    return {name: value for name, value in x.items() if name not in RAW}


def _log_gate(own: Any, x: Inputs, touch: Touch, mistake: str) -> Array:
    """The log of every gate by its formula, as a program with a mistake has it."""
    g = _by_formula(own, x, touch, mistake)
    g = -g if mistake == "sign forgotten" else g
    narrow = NARROW.get(mistake) or (own.gate_dtype if _is_narrow(x) else None)
    return g if narrow is None else rounded(g, narrow)  # the slope is that of what is rounded


def _is_narrow(x: Inputs) -> bool:
    """Whether arithmetic is not that of the truth, so that declarations count (DPLRCASE-19)."""
    return bool(x["in/v"].dtype != np.float64)


def _by_formula(own: Any, x: Inputs, touch: Touch, mistake: str) -> Array:
    raw, kind = x["in/gate_input"], own.gate_formula
    places = 2 if len(raw.shape) == len(x["in/v"].shape) else 1
    rate, bias = _rate(x, places, touch, mistake), _along(x, "in/gate_bias", places)
    late = mistake == "bias late"
    z = raw if bias is None or late or mistake == "bias forgotten" else raw + bias
    if kind == "softplus":
        printed = own.gate_softplus == "log(1+exp)" and _is_narrow(x)
        size = (_as_printed if printed else _of_softplus)(own, z, touch, mistake)
        return -size if rate is None else -(rate * size)
    if kind == "bounded":
        z = z if rate is None else rate * z
        return own.gate_lower_bound * touch(_share(z + bias if late else z))
    if kind == "log_sigmoid":
        return _of_sigmoid(own, z, touch)
    if kind == "floored_sigmoid":
        return _from_floor(z, _along(x, "in/gate_floor", places), touch)
    return -touch(ops.exp(ops.where(ops.less(z, _HIGH), z, _HIGH)))


def _rate(x: Inputs, places: int, touch: Touch, mistake: str) -> Array:
    """The rate of every head, beside tokens and channels; None for 1."""
    log_rate = x.get("in/gate_log_rate")
    if log_rate is None or mistake == "rate forgotten":
        return None
    for _ in range(places):
        log_rate = log_rate[..., None]
    return log_rate if mistake == "rate without exp" else touch(ops.exp(log_rate))


def _along(x: Inputs, name: str, places: int) -> Array:
    """A tensor of heads, and of channels where gates have them, with an axis of tokens."""
    if name not in x:
        return None
    return x[name][..., None] if places == 1 else x[name][..., None, :]


def _of_softplus(own: Any, z: Array, touch: Touch, mistake: str) -> Array:
    """log(1 + e^z), which is z + log(1 + e^-z) where z is above 0."""
    above = ops.greater(z, 0.0)
    up, down = ops.where(above, z, 0.0), ops.where(above, 0.0, z)
    small = touch(ops.log1p(ops.exp(-up)))
    size = ops.where(above, z + small, touch(ops.log1p(ops.exp(down))))
    if own.gate_threshold is not None:
        size = ops.where(ops.greater(z, own.gate_threshold), z, size)
    if mistake == "softplus without a bound":
        return _printed(z, size, top=np.inf)
    return _printed(z, size) if mistake == "softplus in float32" else size


def _as_printed(own: Any, z: Array, touch: Touch, mistake: str) -> Array:
    """log(1 + e^z) in the arithmetic of a program, z where e^z would overflow or a threshold is."""
    top = _PRINTED if own.gate_threshold is None else own.gate_threshold
    above = ops.greater(z, top)
    power = touch(ops.exp(ops.where(above, 0.0, z)))
    return ops.where(above, z, touch(ops.log(1 + power)))


def _printed(z: Array, size: Array, top: float = _PRINTED) -> Array:
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
