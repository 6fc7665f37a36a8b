"""Schedules: the factor of the rate at each outer step, after a warm-up.

Specified in specs/optim.md (OPTIM-6, OPTIM-7).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from atlas_ref.types import Count, Frozen


class Schedule(Frozen):
    """A warm-up, then a factor that stays or falls (OPTIM-6, OPTIM-7).

    Attributes:
        kind: constant; linear or cosine, which fall from 1 to `floor` at `steps`.
        warmup: number of steps before the factor is 1.
        steps: of the whole run; needed where the factor falls.
        floor: the last factor.
        first: the first factor of a warm-up: share, 1/warmup; zero, as public code of Atlas-MAG
            has it, whose first step changes nothing.
    """

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    steps: Count | None = None
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    first: Literal["share", "zero"] = "share"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kind == "constant":
            if self.steps is not None or self.floor:
                raise ValueError("steps and floor belong to a schedule that falls, not to constant")
        elif self.steps is None:
            raise ValueError(f"steps: kind {self.kind} needs the number of steps of the run")
        elif self.steps <= self.warmup:
            raise ValueError(f"warmup: {self.warmup} steps of {self.steps} leave none to fall in")
        return self

    def factor(self, step: int) -> float:
        """The factor of step s, counted from 0 (OPTIM-6, OPTIM-7).

            s < w:    (s + 1) / w, or s / w where the first is zero
            else      1;  1 - (1 - f) x;  f + (1 - f) (1 + cos(pi x)) / 2,
            with      x = min(1, (s - w) / (n - w))

        Raises:
            ValueError: a step below 0.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step: {step!r}, a whole number from 0 is needed")
        if step < self.warmup:
            return (step + (self.first == "share")) / self.warmup
        if self.steps is None:
            return 1.0
        x = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        if self.kind == "linear":
            return 1.0 - (1.0 - self.floor) * x
        return self.floor + (1.0 - self.floor) * (1.0 + math.cos(math.pi * x)) / 2.0
