"""Formulas of log gates: what layers of the linear family make of raw numbers.

Specified in specs/gates.md (GATES-17 to GATES-21). A formula gives g with w = exp(g), the factor
of the memory. Rates, biases and floors broadcast against the input.
"""

from __future__ import annotations

from atlas_ref.types import Array
from tape import ops

#: Above it a gate of `exponential` is 0 in every format, and so is its slope.
LARGEST = 64.0


def softplus(
    x: Array,
    *,
    log_rate: Array | None = None,
    bias: Array | None = None,
    threshold: float | None = None,
) -> Array:
    """Log gates of a rate and a step size (GATES-17).

        g = -exp(log_rate) softplus(x + bias)

    Args:
        x: the input, of any shape.
        log_rate: log of the rate, 0 unless given; A_log of public code.
        bias: 0 unless given; dt_bias of public code.
        threshold: argument above which softplus is its argument; None for nowhere.

    Returns:
        g, at most 0.
    """
    z = x if bias is None else x + bias
    size = ops.softplus(z)
    if threshold is not None:
        size = ops.where(ops.greater(z, threshold), z, size)
    return -size if log_rate is None else -ops.exp(log_rate) * size


def bounded(
    x: Array, *, lower_bound: float, log_rate: Array | None = None, bias: Array | None = None
) -> Array:
    """Log gates between a bound and 0 (GATES-18).

        g = lower_bound sigmoid(exp(log_rate) (x + bias))

    Args:
        x: the input, of any shape.
        lower_bound: below 0.
        log_rate, bias: as those of `softplus`.

    Returns:
        g, between the bound and 0.
    """
    z = x if bias is None else x + bias
    return lower_bound * ops.sigmoid(z if log_rate is None else ops.exp(log_rate) * z)


def log_sigmoid(
    x: Array, *, bias: Array | None = None, normalizer: float = 1.0, least: float | None = None
) -> Array:
    """Log gates of a sigmoid, over a number (GATES-19).

        g = max(log sigmoid(x + bias) / normalizer, least)

    A gate at or below the least has no slope.

    Args:
        x: the input, of any shape.
        bias: 0 unless given.
        normalizer: above 0.
        least: at most 0; None for no bound.

    Returns:
        g, at most 0.
    """
    z = x if bias is None else x + bias
    g = -ops.softplus(-z) / normalizer
    return g if least is None else ops.where(ops.greater(g, least), g, least)


def floored_sigmoid(x: Array, *, floor: Array, bias: Array | None = None) -> Array:
    """Log gates of a sigmoid that starts at a floor (GATES-20).

        g = log(floor + (1 - floor) sigmoid(x + bias))

    On the side where the gate nears 1 it is log1p of what it lacks, which keeps its digits.

    Args:
        x: the input, of any shape.
        floor: above 0, at most 1.
        bias: 0 unless given.

    Returns:
        g, between log(floor) and 0.
    """
    z = x if bias is None else x + bias
    rest = 1.0 - floor
    above = ops.greater(z, 0.0)
    near = ops.log1p(-rest * ops.sigmoid(-ops.where(above, z, 0.0)))
    far = ops.log(floor + rest * ops.sigmoid(ops.where(above, 0.0, z)))
    return ops.where(above, near, far)


def exponential(x: Array, *, bias: Array | None = None) -> Array:
    """Log gates of minus an exponential (GATES-21).

        g = -exp(x + bias)

    Args:
        x: the input, of any shape; above 64 the gate is 0 and has no slope.
        bias: 0 unless given.

    Returns:
        g, below 0.
    """
    z = x if bias is None else x + bias
    return -ops.exp(ops.where(ops.less(z, LARGEST), z, LARGEST))
