"""Error buffers: the gradients of a frozen level, accumulated by the outer loop.

The gradients of a frozen level are added up and applied when the level is active again: a sum of
stale gradients, each taken at parameters that have not moved since the last application. Specified
in specs/cms.md (CMS-11, CMS-12).
"""

from __future__ import annotations

import math
import warnings
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import Field

from atlas_ref import backend
from atlas_ref.levels.pulse import Conductor, Period
from atlas_ref.types import Array, Frozen, Pulse
from tape import TapeError
from tape.nested import flatten, matched

GradientT = TypeVar("GradientT")

#: A buffer is healthy up to so many gradients times the square root of its period (CMS-12).
THRESHOLD = 10.0


class Buffer(Frozen):
    """Gradients of one level that wait (CMS-11).

    Attributes:
        period: of the level.
        total: their sum, of the shape of one gradient; None while there is none.
        count: number of gradients in it.
        threshold: of the health ratio, in square roots of the period.
        clip: whether a sum beyond that bound is scaled down to it when it is applied.
    """

    period: Period
    total: Any = None
    count: Annotated[int, Field(ge=0)] = 0
    threshold: Annotated[float, Field(gt=0)] = THRESHOLD
    clip: bool = False

    @property
    def bound(self) -> float:
        """The largest healthy ratio: independent gradients of one size alone make sqrt(period)."""
        return self.threshold * math.sqrt(self.period)

    def cleared(self) -> Self:
        return self.replaced(total=None, count=0)


class BufferWarning(UserWarning):
    """A sum of gradients that is larger than gradients of this number and size explain (CMS-12)."""


class Health(NamedTuple):
    """The size of the sum relative to the last gradient (CMS-12).

    Attributes:
        ratio: ||sum|| / ||gradient||, infinite where the gradient is 0 and the sum is not, 1 where
            both are 0.
        bound: up to which it is healthy.
    """

    ratio: float
    bound: float

    @property
    def healthy(self) -> bool:
        return self.ratio <= self.bound


class Pending(NamedTuple):
    """The outcome of one outer step for one level.

    Attributes:
        buffer: after it.
        applied: the gradient to apply now; None while the level is frozen, and outside phase build.
        health: of the sum before any clipping.
    """

    buffer: Buffer
    applied: Any
    health: Health


def buffers(
    conductor: Conductor, *, threshold: float = THRESHOLD, clip: bool = False
) -> tuple[Buffer, ...]:
    """An empty buffer for every level of a conductor."""
    return tuple(
        Buffer(period=period, threshold=threshold, clip=clip) for period in conductor.periods
    )


def add(buffer: Buffer, gradient: Any, pulse: Pulse, level: int) -> Pending:
    """One outer step of one level: add its gradient, and apply the sum where the pulse says so
    (CMS-11, CMS-12).

    Args:
        gradient: of the level's parameters, in their shape.
        pulse: of this outer step.
        level: whose buffer it is, counted from 0.

    Raises:
        TapeError: a gradient of another shape than those before.

    Warns:
        BufferWarning: a sum beyond its bound.
    """
    if not pulse.learns:
        return Pending(buffer, None, Health(1.0, buffer.bound))
    total = _copied(gradient) if buffer.total is None else _sum(buffer.total, gradient)
    health = Health(_ratio(norm(total), norm(gradient)), buffer.bound)
    if not health.healthy:
        words = (
            f"level {level}: the sum of {buffer.count + 1} gradients is {health.ratio:.3g} times "
            f"the last, healthy is {health.bound:.3g}"
        )
        warnings.warn(words, BufferWarning, stacklevel=2)
    if not pulse.is_active(level):
        return Pending(buffer.replaced(total=total, count=buffer.count + 1), None, health)
    if buffer.clip and not health.healthy and math.isfinite(health.ratio):
        total = _scaled(total, health.bound / health.ratio)
    return Pending(buffer.cleared(), total, health)


def norm(gradient: Any) -> float:
    """The Euclidean norm over all arrays of a gradient, at any scale."""
    leaves, _, _ = flatten(gradient, "gradient")
    top = max((_number(np.max(np.abs(leaf))) for leaf in leaves if np.size(leaf)), default=0.0)
    if top == 0.0 or not math.isfinite(top):
        return top
    return top * math.sqrt(
        sum(_number(np.sum((np.abs(leaf).astype(float) / top) ** 2)) for leaf in leaves)
    )


def _number(x: Array) -> float:
    """One number as a float of the host."""
    return float(backend.of(x).to_host(x))


def _ratio(total: float, single: float) -> float:
    if single == 0.0:
        return 1.0 if total == 0.0 else math.inf
    return total / single


def _copied(gradient: GradientT) -> GradientT:
    """A copy of a gradient: a training loop may write its next gradient into the old arrays."""
    leaves, _, build = flatten(gradient, "gradient")
    copies: GradientT = build([np.copy(leaf) for leaf in leaves])
    return copies


def _sum(total: GradientT, gradient: GradientT) -> GradientT:
    leaves, paths, build = flatten(total, "gradient")
    new = matched(gradient, paths, "gradient")
    for path, old, leaf in zip(paths, leaves, new, strict=True):
        if np.shape(old) != np.shape(leaf):  # which a sum would stretch to one shape where it can
            raise TapeError(
                f"gradient{path}: shape {np.shape(leaf)}, expected {np.shape(old)} as before"
            )
    result: GradientT = build([a + b for a, b in zip(leaves, new, strict=True)])
    return result


def _scaled(total: GradientT, factor: float) -> GradientT:
    leaves, _, build = flatten(total, "gradient")
    result: GradientT = build([leaf * leaf.dtype.type(factor) for leaf in leaves])
    return result
