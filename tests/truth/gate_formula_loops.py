"""Log gates as their clauses print them (GATES-17 to GATES-21): with 900 digits, and as complex numbers.

Nothing is shared with the library.
"""

from __future__ import annotations

import cmath
from decimal import Decimal, localcontext
from typing import Any

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


def complex_gate(formula: str, x: Any, rate: Any, bias: Any, **s: Any) -> complex:
    """One log gate of complex numbers of ordinary size."""
    z, A = complex(x) + bias, cmath.exp(rate)
    if formula == "softplus":
        if "threshold" in s and z.real > s["threshold"]:
            return -A * z
        return -A * cmath.log(1 + cmath.exp(z))
    if formula == "bounded":
        return s["lower_bound"] / (1 + cmath.exp(-A * z))
    if formula == "log_sigmoid":
        g = -cmath.log(1 + cmath.exp(-z)) / s.get("normalizer", 1.0)
        return complex(s["least"]) if g.real <= s.get("least", -np.inf) else g
    if formula == "floored_sigmoid":
        return cmath.log(s["floor"] + (1 - s["floor"]) / (1 + cmath.exp(-z)))
    return -cmath.exp(z)


def run(formula: str, x: Any, rate: Any, bias: Any, **settings: Any) -> Any:
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
        found[place] = complex_gate(formula, x[place], np.asarray(rate)[head], bias[own], **of)
    return found
