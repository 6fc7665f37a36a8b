"""Drawn parameters and gradients for tests of optimisers, and runs of several steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from atlas_ref.optim import module_of
from atlas_ref.optim.schedule import Schedule

#: A matrix of each orientation, heads of matrices, and what is no matrix.
SHAPES: dict[str, tuple[int, ...]] = {"wide": (3, 5), "tall": (6, 2), "heads": (2, 3, 4), "b": (4,)}
MATRICES = ("wide", "tall", "heads")
FALLS = Schedule(kind="cosine", warmup=2, steps=9, floor=0.1)


def drawn(
    names: Any = tuple(SHAPES), *, steps: int = 7, seed: int = 0, dtype: Any = np.float64
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Parameters, and the gradients of some steps."""
    draw = np.random.default_rng(seed)
    params, *grads = [
        {name: draw.standard_normal(SHAPES[name]).astype(dtype) for name in names}
        for _ in range(steps + 1)
    ]
    return params, grads


def run(config: Any, params: Any, grads: list[Any], state: Any = None, first: int = 0) -> Any:
    """The parameters and the state after a step of each gradient."""
    module = module_of(config)
    state = module.init(config, params) if state is None else state
    for step, g in enumerate(grads, start=first):
        params, state = module.update(config, state, params, g, step)
    return params, state


def rates(config: Any, steps: int) -> list[float]:
    return [config.rate * config.schedule.factor(step) for step in range(steps)]
