"""Log gates and step sizes of raw numbers on balls (CERT-18).

Written from GATES-17 to GATES-21 and DPLRCASE-16, DPLRCASE-17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flint import arb

from atlas_ref.certify.functions import bounded, exponentials, sigmoids, softpluses
from atlas_ref.certify.inputs import Inputs
from atlas_ref.certify.matrix import Matrix, each, hadamard, scaled

#: Parameters of formulas that a case leaves open.
DEFAULTS: dict[str, Any] = {
    "gate_formula": None,
    "gate_threshold": None,
    "gate_lower_bound": None,
    "gate_normalizer": None,
    "gate_least": None,
    "beta_formula": None,
    # how others round log gates, on which certified results do not depend
    "gate_softplus": None,
    "gate_dtype": None,
}

#: Above it the gate of an exponential is 0 (GATES-21).
LARGEST = 64.0


def log_gate(s: Mapping[str, Any], inputs: Inputs, index: tuple[int, ...], t: int) -> Matrix:
    """The log gate of a token, 1 x 1 or a column of channels (DPLRCASE-16).

    Args:
        s: parameters of the case.
        index: of the value head.
    """
    raw = inputs.get("in/gate_input", *index, t)
    behind = len(inputs.shape("in/gate_input")) - len(index) - 1  # axes of channels
    bias = _of_head(inputs, "in/gate_bias", index, behind)
    rate = _of_head(inputs, "in/gate_log_rate", index, 0)
    floor = _of_head(inputs, "in/gate_floor", index, behind)
    z = raw if bias is None else raw + bias
    kind = s["gate_formula"]
    if kind == "softplus":
        size = _cut(z, s["gate_threshold"])
        return -(size if rate is None else scaled(exponentials(rate), size))
    if kind == "bounded":
        z = z if rate is None else scaled(exponentials(rate), z)
        return sigmoids(z).times(arb(s["gate_lower_bound"]))
    if kind == "log_sigmoid":
        g = softpluses(-z).times(-1 / arb(s["gate_normalizer"] or 1.0))
        return g if s["gate_least"] is None else bounded(g, (s["gate_least"], 1.0))
    if floor is not None:
        lacks = hadamard((-floor).plus(arb(1)), sigmoids(-z))
        return each(lacks, lambda x: (-x).log1p(), lambda x: -1 / (1 - x))
    return -exponentials(bounded(z, (-arb("inf"), LARGEST)))


def rate(s: Mapping[str, Any], raw: Matrix) -> Matrix:
    """A step size of raw numbers (DPLRCASE-17)."""
    share = sigmoids(raw)
    return share.times(arb(2)) if s["beta_formula"] == "twice_sigmoid" else share


def _of_head(inputs: Inputs, name: str, index: tuple[int, ...], behind: int) -> Matrix | None:
    """A tensor of heads at a head, by as many of the last leading axes as it has."""
    if name not in inputs:
        return None
    axes = len(inputs.shape(name)) - behind
    return inputs.get(name, *index[len(index) - axes :])


def _cut(z: Matrix, threshold: float | None) -> Matrix:
    """softplus, or the argument above a threshold; a ball around it has both."""
    if threshold is None:
        return softpluses(z)
    at = arb(threshold)

    def value(x: arb) -> arb:
        size = x if x > at else x.exp().log1p()
        return size if x > at or x <= at else size.union(x)

    def slope(x: arb) -> arb:
        size = arb(1) if x > at else 1 / (1 + (-x).exp())
        return size if x > at or x <= at else size.union(arb(1))

    return each(z, value, slope)
