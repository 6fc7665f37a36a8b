"""Parameters seen as matrices, and Newton-Schulz of their momentum.

Specified in specs/optim.md (OPTIM-12 to OPTIM-14).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import model_validator

from atlas_ref import backend
from atlas_ref.optim.tensors import Settings
from atlas_ref.parts.newton_schulz import NewtonSchulz, newton_schulz
from atlas_ref.types import Array

Axes = Literal["last", "rows", "columns"]


class MatrixSettings(Settings):
    """What every optimiser of matrices has (OPTIM-12, OPTIM-13).

    Attributes:
        newton_schulz: its settings; None leaves it out, also for parameters that are no matrices.
        axes: how a parameter of more than two axes is a matrix: last, one for each index of the
            other axes; rows, all axes but the last are its rows; columns, all but the first are
            its columns.
    """

    newton_schulz: NewtonSchulz | None = NewtonSchulz()
    axes: Axes = "last"

    @model_validator(mode="after")
    def _no_argument(self) -> Self:
        ns = self.newton_schulz
        if ns is not None and ns.argument != "S":
            raise ValueError(
                f"newton_schulz.argument: {ns.argument} belongs to memories; nesterov is a "
                "setting of the optimiser"
            )
        return self


def require_matrix(rule: str, config: MatrixSettings, name: str, p: Array) -> None:
    """Refuse a parameter of fewer than two axes under Newton-Schulz (OPTIM-12).

    Raises:
        ValueError: names it.
    """
    if config.newton_schulz is not None and p.ndim < 2:
        raise ValueError(
            f"params.{name}: shape {p.shape}, {rule} needs a matrix; give it a group with adamw, "
            "or set newton_schulz to None"
        )


def sides(shape: tuple[int, ...], axes: Axes) -> tuple[int, int]:
    """Rows and columns of a parameter seen as a matrix (OPTIM-12)."""
    if axes == "rows":
        return math.prod(shape[:-1]), shape[-1]
    if axes == "columns":
        return shape[0], math.prod(shape[1:])
    return shape[-2], shape[-1]


def orthogonal(config: MatrixSettings, M: Array) -> Array:
    """Newton-Schulz of a momentum, in its own shape; the momentum itself without (OPTIM-12).

    Args:
        M: of the shape of its parameter.
    """
    if config.newton_schulz is None:
        return M
    if config.axes == "last":
        return newton_schulz(M, config.newton_schulz)
    return newton_schulz(M.reshape(sides(M.shape, config.axes)), config.newton_schulz).reshape(
        M.shape
    )


def size_factor(config: MatrixSettings, shape: tuple[int, ...], rms: float | None) -> float:
    """The factor rms sqrt(max(rows, columns)), 1 without it (OPTIM-13)."""
    return 1.0 if rms is None else rms * math.sqrt(max(sides(shape, config.axes)))


class Band(NamedTuple):
    """Singular values of an update, and how far it is from orthogonal (OPTIM-14).

    Attributes:
        low, high: the smallest and the largest singular value.
        distance: ||U U^T - 1|| over the root of its rows (of its columns, where those are fewer).
    """

    low: float
    high: float
    distance: float

    def within(self, low: float, high: float) -> bool:
        """Whether all singular values lie in a band."""
        return low <= self.low and self.high <= high


def band(config: MatrixSettings, M: Array) -> Band:
    """What Newton-Schulz makes of a momentum: the band of its singular values (OPTIM-14).

    Args:
        M: of the shape of its parameter, with at least two axes.

    Raises:
        ValueError: fewer axes.
    """
    require_matrix("the band", config, "momentum", M)
    U = orthogonal(config, M)
    U = backend.of(U).to_host(U)
    matrices = U if config.axes == "last" else U.reshape(sides(U.shape, config.axes))
    values = np.linalg.svd(matrices, compute_uv=False)
    distance = np.sqrt(np.mean((values**2 - 1.0) ** 2, axis=-1))
    return Band(float(values.min()), float(values.max()), float(distance.max()))
