"""Gradients of large systems against the complex step, one random direction for each leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tape
from tape.nested import flatten

STEP = 1e-30


def check_directions(
    loss: Callable[[Any], Any],
    at: Any,
    *,
    tolerance: float,
    seed: int = 0,
    loops: Callable[[Any], Any] | None = None,
) -> None:
    """Assert that each leaf's gradient along a random direction is the loss's complex step.

    The step goes through `loops` where given: the same loss by a definition that is not ours.

    The size of a leaf's gradient is the scale, so that a small entry is not lost beside others.
    """
    leaves, paths, build = flatten(at, "at")
    draw = np.random.default_rng(seed)
    got = flatten(tape.grad(loss)(at), "gradient")[0]
    for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        along = draw.standard_normal(np.shape(leaf))
        moved = [*leaves[:i], np.asarray(leaf) + 1j * STEP * along, *leaves[i + 1 :]]
        want = float(np.imag((loops or loss)(build(moved)))) / STEP
        scale = max(float(np.linalg.norm(got[i])), 1e-3)
        error = abs(float(np.sum(got[i] * along)) - want) / scale
        assert error <= tolerance, f"{path}: {error:.1e} of its gradient's size"
