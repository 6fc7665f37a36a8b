"""AdamW: each entry moves by its mean gradient over the root of its mean square.

Specified in specs/optim.md (OPTIM-10, OPTIM-11). `flat` computes the same on one buffer.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from atlas_ref.optim import tensors
from atlas_ref.optim.tensors import Moment, Number, Settings, Share, State, Tensors
from atlas_ref.types import Array


class Config(Settings):
    """Settings (OPTIM-10, OPTIM-11).

    Attributes:
        b1, b2: shares of the first and of the second moment before.
        eps: added to the root.
        correct: whether moments are divided by 1 - b^t, which makes them means from the start.
        decoupled: whether the decay acts on the parameters (AdamW), not through the gradient
            (Adam with an l2 penalty).
    """

    kind: Literal["adamw"] = "adamw"
    b1: Share = 0.9
    b2: Share = 0.999
    eps: Number = 1e-8
    correct: bool = True
    decoupled: bool = True


def init(config: Config, params: Any) -> State:
    """The state before the first update: both moments 0 (OPTIM-10).

    Raises:
        ValueError: names the parameter that cannot be optimised.
    """
    return tensors.start(config, params, _slots)


def update(config: Config, state: State, params: Any, grads: Any, step: int) -> tuple[Any, State]:
    """One outer step (OPTIM-10, OPTIM-11).

        m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2
        p = (1 - rate decay) p - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        params, grads: nests of arrays of one structure.
        step: number of the outer step, from 0; t counts the updates of this state, from 1.

    Returns:
        (params, state) after it.

    Raises:
        ValueError: names the tensor, what was found and what is needed.

    Source: Kingma and Ba (1412.6980); Loshchilov and Hutter (1711.05101).
    Reduces to: p - rate sign(g) for b1 = b2 = eps = decay = 0 (OPTIM-34).
    """
    return tensors.updated(config, state, params, grads, step, _slots, _one)


def _slots(config: Config, name: str, p: Array) -> tuple[str, ...]:
    """What is kept of a parameter (OPTIM-35)."""
    return ("m", "v")


def corrections(config: Config, count: int) -> tuple[float, float]:
    """The divisors of the moments, 1 - b1^t and 1 - b2^t, or 1 (OPTIM-10)."""
    return (1.0 - config.b1**count, 1.0 - config.b2**count) if config.correct else (1.0, 1.0)


def _one(config: Config, at: Moment, p: Array, g: Array, held: Tensors) -> tuple[Array, Tensors]:
    first, second = corrections(config, at.number)
    if not config.decoupled and config.decay:
        g = g + config.decay * p
    m = config.b1 * held["m"] + (1.0 - config.b1) * g
    v = config.b2 * held["v"] + (1.0 - config.b2) * (g * g)
    direction = (m / first) / divisor(np.sqrt(v / second), config.eps)
    if config.decoupled and config.decay:
        p = (1.0 - at.rate * config.decay) * p
    return p - at.rate * direction, {"m": m, "v": v}


def divisor(root: Array, eps: float) -> Array:
    """The root with eps added; 1 where both are 0, so that 0 / 0 is 0 (OPTIM-10)."""
    return root + eps if eps else np.where(root == 0.0, 1.0, root)
