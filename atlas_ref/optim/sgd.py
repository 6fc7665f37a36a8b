"""Gradient descent with momentum, the plain rule that the others reduce to.

Specified in specs/optim.md (OPTIM-8, OPTIM-9).
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from atlas_ref.optim import tensors
from atlas_ref.optim.tensors import Moment, Settings, Share, State, Tensors
from atlas_ref.types import Array


class Config(Settings):
    """Settings (OPTIM-8, OPTIM-9).

    Attributes:
        momentum: share of the momentum before.
        average: sum, S = momentum S + g; ema, S = momentum S + (1 - momentum) g.
        nesterov: whether the momentum is applied once more before the step.
        decoupled: whether the decay acts on the parameters, not through the gradient.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: Share = 0.0
    average: Literal["sum", "ema"] = "sum"
    nesterov: bool = False
    decoupled: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: needs a momentum above 0")
        return self


def init(config: Config, params: Any) -> State:
    """The state before the first update: momentum 0 of every parameter (OPTIM-8).

    Raises:
        ValueError: names the parameter that cannot be optimised.
    """
    return tensors.start(config, params, _slots)


def update(config: Config, state: State, params: Any, grads: Any, step: int) -> tuple[Any, State]:
    """One outer step (OPTIM-8, OPTIM-9).

        S = momentum S + c g,   c = 1 (sum) or 1 - momentum (ema)
        p = p - rate u,   u = S, or c g + momentum S (Nesterov)

    Args:
        params, grads: nests of arrays of one structure.
        step: number of the outer step, from 0.

    Returns:
        (params, state) after it.

    Raises:
        ValueError: names the tensor, what was found and what is needed.

    Source: Sutskever et al. (2013); the sum as in PyTorch.
    Reduces to: p - rate g for momentum 0 (OPTIM-34).
    """
    return tensors.updated(config, state, params, grads, step, _slots, _one)


def _slots(config: Config, name: str, p: Array) -> tuple[str, ...]:
    """What is kept of a parameter: nothing without a momentum (OPTIM-35)."""
    return ("momentum",) if config.momentum else ()


def _one(config: Config, at: Moment, p: Array, g: Array, held: Tensors) -> tuple[Array, Tensors]:
    if not config.decoupled and config.decay:
        g = g + config.decay * p
    direction, kept = g, {}
    if config.momentum:
        taken = g if config.average == "sum" else (1.0 - config.momentum) * g
        S = config.momentum * held["momentum"] + taken
        direction = taken + config.momentum * S if config.nesterov else S
        kept = {"momentum": S}
    if config.decoupled and config.decay:
        p = (1.0 - at.rate * config.decay) * p
    return p - at.rate * direction, kept
