"""Mistakes of the outer gradient of a deep memory: values are right, derivatives are not.

Source: DEEPCASE-15, DEEP-18.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.deep.functions import Function, norm_of, share_of, slope_of
from atlas_ref.oracle.deep.readings.conditions import (
    activated,
    again,
    both,
    holds,
    with_norm,
    writes,
)
from atlas_ref.oracle.deep.readings.reading import Inputs, Reading, Seen
from atlas_ref.oracle.deep.settings import Settings, rank
from atlas_ref.types import Array
from tape import opaque, ops


def full(at: Seen) -> bool:
    """A gradient that goes through everything."""
    return at.s.outer_gradient == "full" and writes(at)


def _held(x: Any) -> Any:
    return None if x is None else ops.stop_gradient(x)


def fixed_inputs(*names: str) -> Callable[[Inputs, Settings], Inputs]:
    """A case with tensors that have no gradient."""
    return lambda inputs, s: {n: _held(x) if n in names else x for n, x in inputs.items()}


def _straight(value: Array, source: Array) -> Array:
    """The value, whose cotangent goes to the source as it is."""
    return _PASSED(source, ops.stop_gradient(value))


_PASSED = opaque(
    lambda source, value: source + ops.stop_gradient(value - source),
    lambda source, value: (value, None),
    lambda kept, g: (g, None),
    value=lambda source, value: value,
)


def _statistics_held(m: Function, x: Array) -> tuple[Array, Array]:
    n, r = norm_of(m, x)
    mean = ops.stop_gradient(x) - ops.stop_gradient(n / r)
    return (x - mean) * ops.stop_gradient(r), ops.stop_gradient(r)


BACKWARD: tuple[Reading, ...] = (
    Reading(
        "gradient of a write held fixed",
        "gradients of writes were constants",
        made_in=full,
        grad=True,
        ops={"gradient": lambda compute, g: _held(compute(g))},
    ),
    Reading(
        "residual held fixed",
        "residuals were constants",
        made_in=full,
        grad=True,
        ops={"residual": lambda compute, y, v: _held(compute(y, v))},
    ),
    Reading(
        "prediction held fixed",
        "predictions of writes were constants",
        made_in=full,
        grad=True,
        ops={"residual": lambda compute, y, v: compute(_held(y), v)},
    ),
    Reading(
        "values held fixed",
        "values had no gradient",
        made_in=full,
        grad=True,
        inputs=fixed_inputs("in/v"),
    ),
    Reading(
        "window weights held fixed",
        "weights of the window had no gradient",
        made_in=lambda at: (
            full(at) and ("in/window_gate" in at.inputs or "in/window_weights" in at.inputs)
        ),
        grad=True,
        inputs=fixed_inputs("in/window_gate", "in/window_weights"),
    ),
    Reading(
        "slope held fixed",
        "derivatives of the activation were constants",
        made_in=lambda at: full(at) and activated(at),
        grad=True,
        function={"slope": lambda m, a, G: _held(slope_of(m, a, G))},
    ),
    Reading(
        "share held fixed",
        "the activation a G(a) had the derivative G(a)",
        made_in=lambda at: full(at) and activated(at),
        grad=True,
        function={"share": lambda m, a: _held(share_of(m, a))},
    ),
    Reading(
        "statistics of a norm held fixed",
        "means and variances of layer norms were constants",
        made_in=lambda at: full(at) and with_norm(at),
        grad=True,
        function={"standardised": _statistics_held},
    ),
    Reading(
        "network held fixed",
        "the network of the momentum were a constant at each write",
        made_in=lambda at: full(at) and at.s.deep_momentum is not None,
        grad=True,
        ops={"S": lambda compute, *args: _held(compute(*args))},
    ),
    Reading(
        "momentum not carried back",
        "cotangents of the momentum stopped at each write",
        made_in=both(full, holds("in/momentum"), again),
        grad=True,
        ops={"S": lambda compute, m, S, a, g: compute(m, _held(S), a, g)},
    ),
    Reading(
        "momentum gate held fixed",
        "the momentum gate had no gradient",
        made_in=both(full, holds("in/momentum"), again),
        grad=True,
        inputs=fixed_inputs("in/momentum"),
    ),
    Reading(
        "weights not carried back",
        "cotangents of the weights stopped at each write",
        made_in=full,
        grad=True,
        ops={"W": lambda compute, r, W, b, U: compute(r, _held(W), b, U)},
    ),
    Reading(
        "retain not carried back",
        "cotangents of the weights were not multiplied by the retain gate",
        made_in=lambda at: full(at) and at.s.c.gate != "none",
        grad=True,
        ops={
            "W": lambda compute, r, W, b, U: (
                _straight(compute(r, W, b, U), W)
                + (compute(r, _held(W), b, U) - _held(compute(r, W, b, U)))
            )
        },
    ),
    Reading(
        "retain gate held fixed",
        "the retain gate had no gradient",
        made_in=lambda at: full(at) and at.s.c.gate != "none",
        grad=True,
        inputs=fixed_inputs("in/retain"),
    ),
    Reading(
        "step held fixed",
        "step sizes had no gradient",
        made_in=both(full, holds("in/step_size")),
        grad=True,
        inputs=fixed_inputs("in/step_size"),
    ),
    Reading(
        "Newton-Schulz passed straight through",
        "directions had the derivative of the momentum",
        made_in=lambda at: (
            full(at) and at.s.c.has_newton_schulz and any(rank(each) == 2 for each in at.s.fast)
        ),
        grad=True,
        ops={"U": lambda compute, *args: _straight(compute(*args), args[-1])},
    ),
    Reading(
        "direction held fixed",
        "directions were constants",
        made_in=full,
        grad=True,
        ops={"U": lambda compute, *args: _held(compute(*args))},
    ),
    Reading(
        "norm of the clip held fixed",
        "the norm of a clip were a constant",
        made_in=lambda at: full(at) and at.s.clip == "hard",
        grad=True,
        ops={"clipped": lambda compute, g, size: compute(g, _held(size))},
    ),
    Reading(
        "norm of the step held fixed",
        "the norm of an adaptive step were a constant",
        made_in=lambda at: full(at) and at.s.adaptive and at.s.c.rate != "none",
        grad=True,
        ops={"norm": lambda compute, *g: _held(compute(*g))},
    ),
    Reading(
        "reads not carried back",
        "queries had no gradient",
        grad=True,
        inputs=fixed_inputs("in/q"),
    ),
)
