"""An outer step of AdamW over a language model, on one flat buffer and parameter by parameter.

The model is the MAG of `benchmarks.models`; gradients are drawn. All on one thread.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import tape
from atlas_ref.models import language_model
from atlas_ref.optim import adamw, flat
from benchmarks.measure import Row, Spread, Target, bracketed, relative_error
from benchmarks.models import model

RATE, SAMPLES = 1e-3, 15


def rows() -> list[Row]:
    """The flat step, in place, beside the plain one."""
    with threadpool_limits(1):
        return [_row()]


class Run:
    """Steps in a row of one optimiser, each from the state of the one before."""

    def __init__(self, module: Any, config: Any, kind: Any = np.float32) -> None:
        self.update: Callable[..., Any] = partial(module.update, config)
        params = language_model.init(model("MAG"), 0, dtype=np.float32)
        leaves, names, _ = tape.nested.flatten(params, "params")
        self.params = {n: np.array(x, kind) for n, x in zip(names, leaves, strict=True)}
        draw = np.random.default_rng(0)
        self.grads = {
            name: draw.standard_normal(x.shape, np.float32).astype(kind)
            for name, x in self.params.items()
        }
        self.state, self.steps = module.init(config, self.params), 0

    def __call__(self) -> None:
        self.params, self.state = self.update(self.state, self.params, self.grads, self.steps)
        self.steps += 1


def _row() -> Row:
    ours = Run(flat, flat.Config(rate=RATE, decay=0.1, in_place=True))
    theirs = Run(adamw, adamw.Config(rate=RATE, decay=0.1))
    timing = bracketed(ours, theirs, samples=SAMPLES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ours()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    exact = Run(adamw, adamw.Config(rate=RATE, decay=0.1), np.float64)
    for _ in range(ours.steps):
        exact()
    numbers = sum(x.size for x in ours.params.values())
    return Row(
        f"AdamW on one buffer, {len(ours.params)} tensors, {numbers:,} numbers, float32",
        "ms",
        Spread.of(timing.ours, 1e3),
        "AdamW tensor by tensor",
        Spread.of(timing.theirs, 1e3),
        Spread.of(timing.ratio),
        Target("at most", 0.8),
        relative_error([*ours.params.values()], [*exact.params.values()]),
        note=f"CPU time, one thread; {faults} page faults a step",
    )
