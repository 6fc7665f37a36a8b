"""Mistakes of the outer gradient of a deep memory: values are right, derivatives are not.

Source: DEEPCASE-15, DEEP-18.
"""

from __future__ import annotations

from typing import Any

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.functions import Function, norm_of
from atlas_ref.oracle.deep.loop import pass_through
from atlas_ref.oracle.deep.readings.conditions import (
    again,
    has_activation,
    holds,
    with_norm,
    writes,
)
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.oracle.program.changes import Change
from atlas_ref.oracle.program.hook import behind, by, within
from atlas_ref.oracle.program.mistakes import both
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops


def full(context: DeepContext) -> bool:
    """A gradient that goes through everything."""
    return context.settings.outer_gradient == "full" and writes(context)


def _constant(x: Any) -> Any:
    return None if x is None else ops.stop_gradient(x)


def fixed_inputs(*names: str) -> Change:
    """A case with tensors that have no gradient."""
    return lambda inputs: {n: _constant(x) if n in names else x for n, x in inputs.items()}


def _straight(value: Array, source: Array) -> Array:
    """The value, whose cotangent goes to the source as it is."""
    return pass_through(source, ops.stop_gradient(value))


def _hold_statistics(m: Function, x: Array) -> tuple[Array, Array]:
    n, r = norm_of(m, x)
    mean = ops.stop_gradient(x) - ops.stop_gradient(n / r)
    return (x - mean) * ops.stop_gradient(r), ops.stop_gradient(r)


BACKWARD: tuple[Reading, ...] = (
    Reading(
        "gradient of a write held fixed",
        "gradients of writes were constants",
        matters=full,
        grad=True,
        ops={"gradient": within(lambda compute, g: _constant(compute(g)))},
    ),
    Reading(
        "residual held fixed",
        "residuals were constants",
        matters=full,
        grad=True,
        ops={"residual": within(lambda compute, y, v: _constant(compute(y, v)))},
    ),
    Reading(
        "prediction held fixed",
        "predictions of writes were constants",
        matters=full,
        grad=True,
        ops={"residual": within(lambda compute, y, v: compute(_constant(y), v))},
    ),
    Reading(
        "values held fixed",
        "values had no gradient",
        matters=full,
        grad=True,
        inputs=fixed_inputs("in/v"),
    ),
    Reading(
        "window weights held fixed",
        "weights of the window had no gradient",
        matters=lambda context: (
            full(context)
            and ("in/window_gate" in context.inputs or "in/window_weights" in context.inputs)
        ),
        grad=True,
        inputs=fixed_inputs("in/window_gate", "in/window_weights"),
    ),
    Reading(
        "slope held fixed",
        "derivatives of the activation were constants",
        matters=lambda context: full(context) and has_activation(context),
        grad=True,
        ops={"function/slope": behind(ops.stop_gradient)},
    ),
    Reading(
        "share held fixed",
        "the activation a G(a) had the derivative G(a)",
        matters=lambda context: full(context) and has_activation(context),
        grad=True,
        ops={"function/share": behind(ops.stop_gradient)},
    ),
    Reading(
        "statistics of a norm held fixed",
        "means and variances of layer norms were constants",
        matters=lambda context: full(context) and with_norm(context),
        grad=True,
        ops={"function/standardised": by(_hold_statistics)},
    ),
    Reading(
        "network held fixed",
        "the network of the momentum were a constant at each write",
        matters=lambda context: full(context) and context.settings.deep_momentum is not None,
        grad=True,
        ops={"S": within(lambda compute, *args: _constant(compute(*args)))},
    ),
    Reading(
        "momentum not carried back",
        "cotangents of the momentum stopped at each write",
        matters=both(full, holds("in/momentum"), again),
        grad=True,
        ops={"S": within(lambda compute, g, S, m, a: compute(g, _constant(S), m, a))},
    ),
    Reading(
        "momentum gate held fixed",
        "the momentum gate had no gradient",
        matters=both(full, holds("in/momentum"), again),
        grad=True,
        inputs=fixed_inputs("in/momentum"),
    ),
    Reading(
        "weights not carried back",
        "cotangents of the weights stopped at each write",
        matters=full,
        grad=True,
        ops={"W": within(lambda compute, W, U, b, r: compute(_constant(W), U, b, r))},
    ),
    Reading(
        "retain not carried back",
        "cotangents of the weights were not multiplied by the retain gate",
        matters=lambda context: full(context) and context.settings.c.gate != "none",
        grad=True,
        ops={
            "W": within(
                lambda compute, W, U, b, r: (
                    _straight(compute(W, U, b, r), W)
                    + (compute(_constant(W), U, b, r) - _constant(compute(W, U, b, r)))
                )
            )
        },
    ),
    Reading(
        "retain gate held fixed",
        "the retain gate had no gradient",
        matters=lambda context: full(context) and context.settings.c.gate != "none",
        grad=True,
        inputs=fixed_inputs("in/retain"),
    ),
    Reading(
        "step held fixed",
        "step sizes had no gradient",
        matters=both(full, holds("in/step_size")),
        grad=True,
        inputs=fixed_inputs("in/step_size"),
    ),
    Reading(
        "Newton-Schulz passed straight through",
        "directions had the derivative of the momentum",
        matters=lambda context: (
            full(context)
            and context.settings.c.has_newton_schulz
            and any(rank(each) == 2 for each in context.settings.fast)
        ),
        grad=True,
        ops={"U": within(lambda compute, *args: _straight(compute(*args), args[-1]))},
    ),
    Reading(
        "direction held fixed",
        "directions were constants",
        matters=full,
        grad=True,
        ops={"U": within(lambda compute, *args: _constant(compute(*args)))},
    ),
    Reading(
        "norm of the clip held fixed",
        "the norm of a clip were a constant",
        matters=lambda context: full(context) and context.settings.clip == "hard",
        grad=True,
        ops={"clipped": within(lambda compute, size, g: compute(_constant(size), g))},
    ),
    Reading(
        "norm of the step held fixed",
        "the norm of an adaptive step were a constant",
        matters=lambda context: (
            full(context) and context.settings.adaptive and context.settings.c.rate != "none"
        ),
        grad=True,
        ops={"norm": within(lambda compute, *g: _constant(compute(*g)))},
    ),
    Reading(
        "reads not carried back",
        "queries had no gradient",
        grad=True,
        inputs=fixed_inputs("in/q"),
    ),
)
