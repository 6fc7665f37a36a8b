"""M3: momenta of several time scales, each through Newton-Schulz.

Specified in specs/optim.md (OPTIM-20 to OPTIM-22).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from atlas_ref.optim import tensors
from atlas_ref.optim.adamw import divisor
from atlas_ref.optim.matrices import MatrixSettings, orthogonal
from atlas_ref.optim.tensors import Moment, Number, State, Tensors
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array, Count, Frozen


class Scale(Frozen):
    """A momentum of one time scale (OPTIM-20).

    Attributes:
        keep: share of the momentum before; 1 forgets nothing.
        take: factor of the gradient that is added.
        period: number of updates after which it takes a gradient.
        weight: of its direction in the update.
    """

    keep: Annotated[float, Field(ge=0, le=1)]
    take: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    period: Count = 1
    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class Second(Frozen):
    """A second moment, V = keep V + take g^2, whose root divides the update (OPTIM-22).

    Attributes:
        of: all parameters, or vectors, those of fewer than two axes, alone.
        eps: added to the root.
    """

    keep: Annotated[float, Field(ge=0, le=1)]
    take: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    of: Literal["all", "vectors"] = "all"
    eps: Number = 1e-8


class Config(MatrixSettings):
    """Settings (OPTIM-20 to OPTIM-22); by default those of the public M3 with averages.

    Attributes:
        scales: from the fastest to the slowest; the weight of the slow one is 1 where nothing says
            another.
        takes: what a scale with a period takes: sum, of the gradients since the last time; last,
            the gradient of that update alone.
        second: None for no second moment.
    """

    kind: Literal["m3"] = "m3"
    newton_schulz: NewtonSchulz | None = NewtonSchulz(scale="norm")
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)] = (
        Scale(keep=0.9, take=0.1),
        Scale(keep=0.99, take=0.01, period=8),
    )
    takes: Literal["sum", "last"] = "sum"
    second: Second | None = Second(keep=0.999, take=0.001, of="vectors")


def paper(
    *,
    rate: float,
    take: tuple[float, float],
    period: int,
    weight: float,
    second: float,
    eps: float = 1e-8,
) -> Config:
    """The algorithm as Nested Learning prints it: sums that forget nothing (OPTIM-21).

    Args:
        take: of the fast and of the slow momentum.
        period: of the slow one.
        weight: of the slow one's direction.
        second: factor of g^2 in V.
    """
    return Config(
        rate=rate,
        newton_schulz=NewtonSchulz(),
        scales=(
            Scale(keep=1.0, take=take[0]),
            Scale(keep=1.0, take=take[1], period=period, weight=weight),
        ),
        second=Second(keep=1.0, take=second, eps=eps),
    )


def init(config: Config, params: Any) -> State:
    """The state before the first update: momenta, sums that wait and second moments 0 (OPTIM-20).

    Raises:
        ValueError: names the parameter that cannot be optimised.
    """
    return tensors.start(config, params, _slots)


def update(config: Config, state: State, params: Any, grads: Any, step: int) -> tuple[Any, State]:
    """One outer step (OPTIM-20 to OPTIM-22).

        M_i = keep_i M_i + take_i (sum of g since the last time)   at updates t = 0 mod period_i
        U = sum_i weight_i NS(M_i)   for matrices,   sum_i weight_i M_i   for vectors
        p = (1 - rate decay) p - rate U / (sqrt(V) + eps),   V = keep V + take g^2

    Args:
        params, grads: nests of arrays of one structure.
        step: number of the outer step, from 0; t counts the updates of this state, from 1.

    Returns:
        (params, state) after it.

    Raises:
        ValueError: names the tensor, what was found and what is needed.

    Source: Nested Learning, Algorithm 1, with its readings.
    Reduces to: Muon for one scale and no second moment (OPTIM-34).
    """
    return tensors.updated(config, state, params, grads, step, _slots, _one)


def _slots(config: Config, name: str, p: Array) -> tuple[str, ...]:
    """What is kept of a parameter: each scale, its sum, the second moment (OPTIM-35)."""
    found = [f"momentum.{i}" for i in range(len(config.scales))]
    if config.takes == "sum":
        found += [f"waiting.{i}" for i, scale in enumerate(config.scales) if scale.period > 1]
    return (*found, "v") if _divided(config, p) else tuple(found)


def _divided(config: Config, p: Array) -> bool:
    return config.second is not None and (config.second.of == "all" or p.ndim < 2)


def _one(config: Config, at: Moment, p: Array, g: Array, held: Tensors) -> tuple[Array, Tensors]:
    kept: Tensors = {}
    direction: Any = 0.0
    for i, scale in enumerate(config.scales):
        M = _momentum(config, at.number, i, g, held, kept)
        U = orthogonal(config, M) if p.ndim >= 2 else M
        direction = direction + scale.weight * U
    if config.second is not None and _divided(config, p):
        kept["v"] = config.second.keep * held["v"] + config.second.take * (g * g)
        direction = direction / divisor(np.sqrt(kept["v"]), config.second.eps)
    return tensors.decayed(config, at, p) - at.rate * direction, kept


def _momentum(config: Config, count: int, i: int, g: Array, held: Tensors, kept: Tensors) -> Array:
    """The momentum of one scale after an update; it and what waits go into `kept` (OPTIM-20)."""
    scale, M = config.scales[i], held[f"momentum.{i}"]
    fires, waits = count % scale.period == 0, f"waiting.{i}"
    taken = g
    if scale.period > 1 and config.takes == "sum":
        taken = held[waits] + g
        kept[waits] = np.zeros_like(g) if fires else taken
    if fires:
        M = scale.keep * M + scale.take * taken
    kept[f"momentum.{i}"] = M
    return M
