"""Log gates as their clauses print them (GATES-17 to GATES-21): with 900 digits, and as complex numbers.

Nothing is shared with the library.
"""

from __future__ import annotations

import cmath
from decimal import Decimal, localcontext
from typing import Any

import ml_dtypes
import numpy as np

#: Enough for 1 + e^-1000, which is 1, 434 zeros, and then digits.
DIGITS = 900


def exact(formula: str, x: float, rate: float, bias: float, **settings: float) -> Decimal:
    """One log gate with 900 digits, of numbers that float64 holds."""
    with localcontext() as context:
        context.prec = DIGITS
        context.Emin, context.Emax = -(10**9), 10**9
        z, A = Decimal(x) + Decimal(bias), Decimal(rate).exp()
        s = {name: Decimal(value) for name, value in settings.items()}
        one = Decimal(1)
        if formula == "softplus":
            return -A * (one + z.exp()).ln()
        if formula == "bounded":
            return s["lower_bound"] / (one + (-A * z).exp())
        if formula == "log_sigmoid":
            g = (one / (one + (-z).exp())).ln() / s.get("normalizer", one)
            return max(g, s["least"]) if "least" in s else g
        if formula == "floored_sigmoid":
            return (s["floor"] + (one - s["floor"]) / (one + (-z).exp())).ln()
        return -z.exp()


def complex_gate(
    formula: str, x: Any, rate: Any, bias: Any, mistake: str = "", **s: Any
) -> complex:
    """One log gate of complex numbers of ordinary size, as a program with a mistake has it.

    A part that is held fixed loses its imaginary part.
    """
    x, rate, bias = (
        complex(value).real if mistake == f"{name} held" else complex(value)
        for name, value in (("gate_input", x), ("gate_log_rate", rate), ("gate_bias", bias))
    )
    A = {"rate without exp": rate, "rate forgotten": 1.0}.get(mistake, cmath.exp(rate))
    late = bias if mistake == "bias late" else 0.0
    z = x if mistake in ("bias late", "bias forgotten") else x + bias
    g = _by_formula(formula, z, A, late, mistake, s)
    g = -g if mistake == "sign forgotten" else g
    if mistake == "gate in bfloat16":
        return complex(ml_dtypes.bfloat16(g.real))
    return complex(np.float16(g.real)) if mistake == "gate in float16" else g


def _by_formula(formula: str, z: Any, A: Any, late: Any, mistake: str, s: Any) -> complex:
    if formula == "softplus":
        if mistake == "softplus in float32":
            power = np.float32(1) + np.exp(np.float32(z.real))
            return -A * complex(np.log(power))
        if "threshold" in s and z.real > s["threshold"]:
            return -A * z
        return -A * cmath.log(1 + cmath.exp(z))
    if formula == "bounded":
        return s["lower_bound"] / (1 + cmath.exp(-A * z - late))
    if formula == "log_sigmoid":
        g = -cmath.log(1 + cmath.exp(-z)) / s.get("normalizer", 1.0)
        return complex(s["least"]) if g.real <= s.get("least", -np.inf) else g
    if formula == "floored_sigmoid":
        floor = s["floor"].real if mistake == "gate_floor held" else s["floor"]
        return cmath.log(floor + (1 - floor) / (1 + cmath.exp(-z)))
    return -cmath.exp(z)


def run(formula: str, x: Any, rate: Any, bias: Any, mistake: str = "", **settings: Any) -> Any:
    """Log gates (..., H, T) or (..., H, T, K), one number after another.

    Args:
        rate: (H,); log of the rate.
        bias: (H,) or (H, K).
        settings: numbers; `floor` as the bias.
    """
    x = np.asarray(x)
    channels = np.ndim(bias) == 2
    found = np.zeros(x.shape, complex)
    for place in np.ndindex(x.shape):
        head = place[-3] if channels else place[-2]
        own = (head, place[-1]) if channels else head
        of = {n: v[own] if n == "floor" else v for n, v in settings.items()}
        numbers = (x[place], np.asarray(rate)[head], bias[own])
        found[place] = complex_gate(formula, *numbers, mistake, **of)
    return found
