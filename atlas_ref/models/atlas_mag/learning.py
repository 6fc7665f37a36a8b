"""Learning of Atlas-MAG's memory alone: its loss, and one step with the sizes that it reports.

    loss = mean_i w_i |M(k_i) - v_i|^2,    i in the last c tokens of every row

Specified in specs/layer_cases.md (LAYER-20); the step is that of a deep memory (DEEP-7 to DEEP-13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from atlas_ref.parts import memory_functions, window
from atlas_ref.rules import deep_memory
from atlas_ref.rules.deep_memory import write
from atlas_ref.types import Array
from tape import ops

Tensors = Mapping[str, Array]


class Pairs(NamedTuple):
    """Tokens of all rows: keys, values (B, T, d), and their weights (B, T).

    Weights None are those that the settings of the memory give by lag, a decay or 1 (E-T06).
    """

    keys: Array
    values: Array
    weights: Array | None

    def last(self, config: deep_memory.Config) -> Pairs:
        """Those of the window, each with its weight."""
        first = max(0, self.keys.shape[-2] - config.window)
        keys, values = self.keys[:, first:], self.values[:, first:]
        if self.weights is not None:
            return Pairs(keys, values, self.weights[:, first:])
        ones, count = ops.ones_like(keys, shape=keys.shape[:2]), keys.shape[-2]
        lags = window.by_lag(
            config.window_weights, {}, window=config.window, heads=1, like=keys, first=count
        )
        return Pairs(keys, values, ones if lags is None else ops.flip(lags[0, 0], -1) * ones)


def loss(config: deep_memory.Config, tensors: Tensors, pairs: Pairs) -> Array:
    """The mean over rows and the window of weight |M(key) - value|^2 (LAYER-20).

    Args:
        tensors: of the memory, without axes in front.
    """
    own = pairs.last(config)
    error = memory_functions.apply(config.memory, tensors, own.keys) - own.values
    return ops.mean(own.weights * ops.sum(error * error, axis=-1))


class Step(NamedTuple):
    """One step (LAYER-20).

    Attributes:
        weights, momentum, direction: after it, by name; each (1, ...).
        gradient: before its bound.
        size: |g| of all of them.
        step_size: by which the direction was taken.
    """

    weights: Tensors
    momentum: Tensors
    direction: Tensors
    gradient: Tensors
    size: Array
    step_size: Array


def step(
    config: deep_memory.Config, weights: Tensors, momentum: Tensors, pairs: Pairs, rates: Any
) -> Step:
    """One write of a memory that all rows share, with what it reports (DEEP-7 to DEEP-13).

    Args:
        weights, momentum: of the fast tensors, each (1, ...).
        rates: of `shared_memory.Rates`.
    """
    own, one = pairs.last(config), ops.ones_like(pairs.keys, shape=(1,))
    rows = write.Rows(own.keys, own.values, own.weights, {})
    gates = write.Rates(
        retain=rates.retain * one,
        momentum=rates.momentum * one,
        step_size=rates.step_size * one,
        step_size_memory=None,
    )
    after = write.update(config, weights, momentum, weights, rows, gates)
    gradient = write.gradient(config, weights, rows)[2]
    size = write.norm(config, gradient)
    taken = gates.step_size / (1.0 + size) if config.adaptive else gates.step_size
    return Step(after.weights, after.momentum, after.direction, gradient, size, taken)
