"""AdaMuon: Newton-Schulz of the first moment, over the root of the second.

Specified in specs/optim.md (OPTIM-18, OPTIM-19).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from atlas_ref.optim import tensors
from atlas_ref.optim.adamw import divisor
from atlas_ref.optim.matrices import MatrixSettings, orthogonal, require_matrix, sides
from atlas_ref.optim.tensors import Moment, Number, Share, State, Tensors
from atlas_ref.parts.newton_schulz import NewtonSchulz
from atlas_ref.types import Array

#: What a source computes (OPTIM-19).
PRESETS: dict[str, dict[str, Any]] = {
    "seed": {},
    "paper": {
        "average": "sum",
        "correct": False,
        "second": "update",
        "b2": 0.95,
        "sign": True,
        "align": 0.2,
        "newton_schulz": NewtonSchulz(),
    },
}


class Config(MatrixSettings):
    """Settings (OPTIM-18, OPTIM-19).

    Attributes:
        b1, b2: shares of the first and of the second moment before.
        eps: added to the root.
        average: of the first moment: ema, (1 - b1) g is added; sum, g.
        correct: whether moments are divided by 1 - b^t.
        second: whose squares are the second moment: the gradient's, or those of the update that
            Newton-Schulz made.
        sign: whether Newton-Schulz is given the signs of the first moment alone.
        align: root mean square of the update; None leaves its size.
    """

    kind: Literal["adamuon"] = "adamuon"
    decay: Number = 0.1
    newton_schulz: NewtonSchulz | None = NewtonSchulz(coefficients="cubic", guard="clamp")
    b1: Share = 0.95
    b2: Share = 0.999
    eps: Number = 1e-8
    average: Literal["ema", "sum"] = "ema"
    correct: bool = True
    second: Literal["gradient", "update"] = "gradient"
    sign: bool = False
    align: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def init(config: Config, params: Any) -> State:
    """The state before the first update: both moments 0, as large as AdamW's (OPTIM-18).

    Raises:
        ValueError: names the parameter that cannot be optimised, such as a vector.
    """
    return tensors.start(config, params, _slots)


def update(config: Config, state: State, params: Any, grads: Any, step: int) -> tuple[Any, State]:
    """One outer step (OPTIM-18, OPTIM-19).

        m = b1 m + (1 - b1) g,   U = NS(m / (1 - b1^t)),   v = b2 v + (1 - b2) g^2
        p = (1 - rate decay) p - rate U / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        params, grads: nests of matrices of one structure.
        step: number of the outer step, from 0; t counts the updates of this state, from 1.

    Returns:
        (params, state) after it.

    Raises:
        ValueError: names the tensor, what was found and what is needed.

    Source: the optimiser page that the Omega specification names; Si et al. (2507.11005).
    Reduces to: AdamW without Newton-Schulz; Muon where every |g| is 1 (OPTIM-34).
    """
    return tensors.updated(config, state, params, grads, step, _slots, _one)


def _slots(config: Config, name: str, p: Array) -> tuple[str, ...]:
    """What is kept of a parameter, as much as AdamW keeps (OPTIM-35)."""
    require_matrix("adamuon", config, name, p)
    return ("m", "v")


def _one(config: Config, at: Moment, p: Array, g: Array, held: Tensors) -> tuple[Array, Tensors]:
    first, second = 1.0, 1.0
    if config.correct:
        second = 1.0 - config.b2**at.number
        first = 1.0 - config.b1**at.number if config.average == "ema" else 1.0
    m = config.b1 * held["m"] + ((1.0 - config.b1) * g if config.average == "ema" else g)
    U = orthogonal(config, np.sign(m) if config.sign else m / first)
    squared = U if config.second == "update" else g
    v = config.b2 * held["v"] + (1.0 - config.b2) * (squared * squared)
    direction = U / divisor(np.sqrt(v / second), config.eps)
    if config.align is not None:
        direction = _aligned(config, direction, config.align)
    if config.decay:
        p = (1.0 - at.rate * config.decay) * p
    return p - at.rate * direction, {"m": m, "v": v}


def _aligned(config: Config, x: Array, align: float) -> Array:
    """Each matrix with `align` for its root mean square; 0 where it is 0 (OPTIM-19)."""
    rows, columns = (1, x.size) if x.ndim < 2 else sides(x.shape, config.axes)
    matrices = x.reshape(-1, rows * columns)
    norm = np.sqrt(np.sum(matrices * matrices, axis=-1, keepdims=True))
    factor = align * math.sqrt(rows * columns) / np.where(norm == 0.0, 1.0, norm)
    return (factor * matrices).reshape(x.shape)
