"""Muon: Newton-Schulz of the momentum of each matrix.

Specified in specs/optim.md (OPTIM-15 to OPTIM-17).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from atlas_ref.optim import tensors
from atlas_ref.optim.matrices import MatrixSettings, orthogonal, require_matrix, size_factor
from atlas_ref.optim.tensors import Moment, Share, State, Tensors
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array

#: What a source or an implementation computes (OPTIM-17).
PRESETS: dict[str, dict[str, Any]] = {
    "seed": {"momentum": 0.9},
    "torch": {
        "momentum": 0.95,
        "nesterov": True,
        "decay": 0.1,
        "newton_schulz": NewtonSchulz(guard="clamp", scale="sqrt"),
    },
    "optax": {
        "momentum": 0.95,
        "nesterov": True,
        "correct": True,
        "newton_schulz": NewtonSchulz(eps=1e-8, scale="sqrt"),
    },
}


class Config(MatrixSettings):
    """Settings (OPTIM-15, OPTIM-16).

    Attributes:
        momentum: share of the momentum before.
        average: ema, S = momentum S + (1 - momentum) g; sum, S = momentum S + g.
        nesterov: whether the momentum is applied once more before Newton-Schulz.
        correct: whether moments are divided by 1 - momentum^t, under Nesterov that of the next
            update; of an average alone.
        rms: a factor of sqrt(max(rows, columns)), 0.2 to have the size of AdamW's updates; None
            for the factor that `newton_schulz.scale` says alone.
    """

    kind: Literal["muon"] = "muon"
    momentum: Share = 0.95
    average: Literal["ema", "sum"] = "ema"
    nesterov: bool = False
    correct: bool = False
    rms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def init(config: Config, params: Any) -> State:
    """The state before the first update: momentum 0 (OPTIM-15).

    Raises:
        ValueError: names the parameter that cannot be optimised, such as a vector.
    """
    return tensors.start(config, params, _slots)


def update(config: Config, state: State, params: Any, grads: Any, step: int) -> tuple[Any, State]:
    """One outer step (OPTIM-15, OPTIM-16).

        S = momentum S + c g,   c = 1 - momentum (ema) or 1 (sum)
        p = (1 - rate decay) p - rate f NS(U),   U = S, or c g + momentum S (Nesterov)

    Args:
        params, grads: nests of matrices of one structure.
        step: number of the outer step, from 0.

    Returns:
        (params, state) after it.

    Raises:
        ValueError: names the tensor, what was found and what is needed.

    Source: Jordan et al., Muon; f of Liu et al. (2502.16982). NS-1 to NS-9.
    Reduces to: gradient descent with its momentum, without Newton-Schulz (OPTIM-34).
    """
    return tensors.updated(config, state, params, grads, step, _slots, _one)


def _slots(config: Config, name: str, p: Array) -> tuple[str, ...]:
    """What is kept of a parameter (OPTIM-35)."""
    require_matrix("muon", config, name, p)
    return ("momentum",)


def _one(config: Config, at: Moment, p: Array, g: Array, held: Tensors) -> tuple[Array, Tensors]:
    taken = (1.0 - config.momentum) * g if config.average == "ema" else g
    S = config.momentum * held["momentum"] + taken
    U = argument(config, at.number, S, taken)
    factor = at.rate * size_factor(config, p.shape, config.rms)
    if config.decay:
        p = (1.0 - at.rate * config.decay) * p
    return p - factor * orthogonal(config, U), {"momentum": S}


def argument(config: Config, count: int, S: Array, taken: Array) -> Array:
    """What Newton-Schulz is given: the momentum, or under Nesterov one step ahead (OPTIM-15).

    Args:
        taken: c g, which the momentum of this update has already.
    """
    if not config.correct:
        return taken + config.momentum * S if config.nesterov else S
    own = 1.0 - config.momentum**count
    if not config.nesterov:
        return S / own
    return taken / own + config.momentum * S / (1.0 - config.momentum ** (count + 1))
