"""Log gates of Kimi Delta Attention, of a rate for each head and a bias for each channel.

    g = -exp(log_rate) softplus(x + bias),    or lower_bound sigmoid(exp(log_rate) (x + bias))

Specified in specs/gates.md (GATES-22).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from atlas_ref.parts import gate_formulas
from atlas_ref.types import Array, Count, Dims, Frozen, check_kind
from tape import ops

#: Rates and step sizes at the start, drawn evenly and evenly in their logs.
RATES, STEPS = (1.0, 16.0), (1e-3, 0.1)


class Config(Frozen):
    """Settings of the gates of one layer (GATES-22).

    Attributes:
        heads, d_head: heads, and channels of each.
        lower_bound: of the bounded formula; None for softplus.
    """

    heads: Count
    d_head: Count
    lower_bound: Annotated[float, Field(lt=0, allow_inf_nan=False)] | None = None


class Params(Frozen):
    """Parameters of the gates, which the outer loop learns (GATES-22).

    Attributes:
        log_rate (H,): log of the rate of each head.
        bias (H, d_head): of each channel.
    """

    log_rate: Annotated[Array, Dims("H")]
    bias: Annotated[Array, Dims("H d_head")]


class State(Frozen):
    """Nothing: a gate is made of its own token."""


def init(config: Config, seed: int = 0) -> Params:
    """Rates within [1, 16], and biases that give step sizes within [1e-3, 0.1] (GATES-22).

    Under a bound the log of every rate is 0.
    """
    draw = np.random.Generator(np.random.Philox(seed))
    log_rate = np.log(draw.uniform(*RATES, config.heads))
    least, most = np.log(STEPS)
    logs = draw.uniform(least, most, (config.heads, config.d_head))
    bias = np.log(np.expm1(np.exp(logs)))
    return Params(log_rate=log_rate if config.lower_bound is None else 0 * log_rate, bias=bias)


def start(config: Config, batch: int, *, dtype: Any = np.float64) -> State:
    """The state before the first token."""
    return State()


def apply(config: Config, params: Params, state: State, x: Array) -> tuple[State, Array]:
    """Log gates of every token, head and channel (GATES-22).

    Args:
        x (..., T, H, d_head): projections of tokens.

    Returns:
        the state, and g of the shape of x.

    Raises:
        ValueError: x of another shape or kind.
    """
    check_kind("x", x)
    if x.shape[-2:] != (config.heads, config.d_head):
        raise ValueError(
            f"x: shape {tuple(x.shape)}, expected (..., T, {config.heads}, {config.d_head})"
        )
    rate = ops.expand_dims(params.log_rate, -1)
    if config.lower_bound is None:
        return state, gate_formulas.softplus(x, log_rate=rate, bias=params.bias)
    bound = config.lower_bound
    return state, gate_formulas.bounded(x, lower_bound=bound, log_rate=rate, bias=params.bias)
