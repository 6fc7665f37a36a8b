"""Clipping of gradients by the norm over all of them.

Specified in specs/optim.md (OPTIM-23).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from atlas_ref import backend
from atlas_ref.optim.tensors import Number, Tensors, named, require_finite
from atlas_ref.types import Array, Frozen


class Config(Frozen):
    """Settings (OPTIM-23).

    Attributes:
        limit: of the norm.
        eps: added to the norm that divides, 1e-6 in PyTorch.
    """

    limit: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    eps: Number = 0.0


def clipped(config: Config, grads: Any) -> tuple[Any, float]:
    """Gradients whose norm is at most the limit, and the norm that they had (OPTIM-23).

        g = g min(1, limit / (||g|| + eps)),   ||g||^2 = sum over all tensors of all squares

    Args:
        grads: a nest of arrays.

    Returns:
        (grads, norm); the arrays themselves where nothing is clipped.

    Raises:
        ValueError: names the gradient that is not finite, or no plain array.
    """
    own = named(grads, "grads")
    require_finite(own.tensors, "grads")
    found, norm = scaled(config, own.tensors)
    return own.build(found), norm


def scaled(config: Config, grads: Tensors) -> tuple[Tensors, float]:
    """`clipped` of named tensors that were checked."""
    norm = norm_of(grads)
    size = norm + config.eps
    if size <= config.limit:
        return grads, norm
    factor = config.limit / size
    return {name: factor * g for name, g in grads.items()}, norm


def norm_of(tensors: Mapping[str, Array]) -> float:
    """The Euclidean norm over all tensors, at any scale, with one wait for a device (OPTIM-23).

    Squares are summed in the precision of each tensor; only those that overflow or vanish are
    summed again, over the largest entry.
    """
    arrays = [x for x in tensors.values() if x.size]
    if not arrays:
        return 0.0
    with np.errstate(over="ignore", under="ignore"):
        squares = _numbers([np.sum(x * x) for x in arrays])
    total = sum(squares)
    small = min(float(np.finfo(x.dtype).tiny / np.finfo(x.dtype).eps) for x in arrays)
    if math.isfinite(total) and total > small:
        return math.sqrt(total)
    top = max(_numbers([np.max(np.abs(x)) for x in arrays]))
    if top == 0.0:
        return 0.0
    return top * math.sqrt(sum(_numbers([np.sum((x / top) ** 2) for x in arrays])))


def _numbers(found: list[Array]) -> list[float]:
    """0-d arrays as numbers of the host, in one copy for each dtype."""
    kinds = {x.dtype for x in found}
    numbers: list[float] = []
    for kind in sorted(kinds, key=str):
        same = np.stack([x for x in found if x.dtype == kind])
        numbers += [float(x) for x in backend.of(same).to_host(same)]
    return numbers
