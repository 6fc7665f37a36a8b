"""One op of the trace from its inputs, in any of the legal arithmetics (CASE-15, TOL-9)."""

from __future__ import annotations

from collections.abc import Mapping

from atlas_ref.conventions import Convention
from atlas_ref.oracle.family import steps
from atlas_ref.oracle.family.arithmetic import Arithmetic
from atlas_ref.parts.momentum import faded
from atlas_ref.parts.newton_schulz import NewtonSchulz, coefficient_table
from atlas_ref.types import Array


def evaluate(
    op: str, inputs: Mapping[str, Array], convention: Convention | NewtonSchulz, way: Arithmetic
) -> Array:
    """The result of one op on its inputs.

    It is that of the clause under every sign convention.

    Columns are (..., 1, 1), or (..., d_out, 1) for one number per output dimension; an absent one
    is 1, an absent momentum none. The inputs, by op:

    | op | inputs |
    |---|---|
    | residual | M_ref (..., d_out, d_phi), keys (..., c, d_phi), values (..., c, d_out), retain: column under before_error |
    | gradient | residual (..., c, d_out), keys, weights (..., c, 1), scale and edge included |
    | S | S before, gradient, momentum: column, a: column |
    | X0 | S: the argument of Newton-Schulz |
    | X1, X2, ... | X: the iterate before |
    | U | S: the argument; X: the last iterate, where that is recorded |
    | M | M before, U, retain: column, b: column |
    | y | M, phi_q (..., d_phi) |

    Raises:
        ValueError: the op is none of these.
    """
    c = convention if isinstance(convention, Convention) else None
    optional = inputs.get
    if op == "residual":
        M_ref = steps.times(optional("retain"), inputs["M_ref"])
        return steps.residual(
            way,
            M_ref,
            inputs["keys"],
            inputs["values"],
            plus=c is not None and c.value_sign == "plus",
        )
    if op == "gradient":
        return steps.gradient(way, inputs["weights"], inputs["residual"], inputs["keys"])
    if op == "S":
        a, m, g = optional("a"), optional("momentum"), inputs["gradient"]
        if c is not None and c.momentum_kind == "average" and m is not None:
            a = steps.times(a, 1.0 - m)  # CONV-64
        if c is not None and c.momentum_kind == "delta_momentum" and m is not None:
            m = faded(m, g, way.total)  # CONV-70
        g = -g if c is not None and c.momentum_sign == "minus" else g
        return steps.momentum(way, m, inputs["S"], a, g)
    if op == "M":
        adds = c is not None and (c.momentum_sign == "minus") != (c.direction == "ascent")
        U = -inputs["U"] if adds else inputs["U"]
        M = steps.memory(way, optional("retain"), inputs["M"], optional("b"), U)
        return steps.under_ceiling(way, M, None if c is None else c.memory_ceiling)  # CONV-67
    if op == "y":
        M = inputs["M"]
        if c is not None and c.argument == "accumulated":
            M = steps.newton_schulz(way, M, c.newton_schulz_settings)
        return steps.read(way, M, inputs["phi_q"])
    if isinstance(convention, Convention):
        convention = convention.newton_schulz_settings
    return _newton_schulz(op, inputs, convention, way)


def _newton_schulz(
    op: str, inputs: Mapping[str, Array], settings: NewtonSchulz, way: Arithmetic
) -> Array:
    if op == "X0":
        return steps.normalise(way, inputs["S"], settings)
    if op == "U":
        return steps.newton_schulz(way, inputs["S"], settings, X=inputs.get("X"))
    if op.startswith("X") and op[1:].isdigit() and int(op[1:]) <= settings.steps:
        return steps.polynomial(way, inputs["X"], coefficient_table(settings)[int(op[1:]) - 1])
    raise ValueError(f"{op}: no such op")
