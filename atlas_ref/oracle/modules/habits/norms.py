"""Habits of norms: of eps, of the gain and of what is averaged.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import norm
from atlas_ref.oracle.modules.habits.habit import Habit


class Norm(NamedTuple):
    """A norm of tokens or heads, whose source is x."""

    config: norm.Config
    params: norm.Params

    @property
    def eps(self) -> float:
        """The number that is added; an eps of the machine was resolved before."""
        return float(self.config.eps or 0.0)

    def centre(self, x: Any) -> Any:
        """x, under kind layer without its mean."""
        return x - np.mean(x, axis=-1, keepdims=True) if self.config.kind == "layer" else x

    def mean(self, x: Any, axes: Any = -1) -> Any:
        """The mean of squares, or their sum under kind l2."""
        total = np.sum if self.config.kind == "l2" else np.mean
        return total(x * x, axis=axes, keepdims=True)

    def divide(self, x: Any, squares: Any) -> Any:
        """x over the root of its squares, guarded as the norm is."""
        if self.config.guard == "clamp":
            return x / np.maximum(np.sqrt(squares), self.eps)
        return x / np.sqrt(squares + self.eps)

    def plain(self, x: Any) -> Any:
        """The norm without gain and bias."""
        x = self.centre(x)
        return self.divide(x, self.mean(x))

    def weigh(self, y: Any, *, gain: Any = None, bias: bool = True) -> Any:
        """A normed x with gain and bias."""
        gain = self.gain if gain is None else gain
        own = self.params.bias if bias else None
        return y * gain if own is None else y * gain + own

    @property
    def gain(self) -> Any:
        weight = self.params.weight
        if weight is None:
            return 1.0
        return weight if self.config.heads is None else weight[:, None]


def _is(*kinds: str) -> Any:
    return lambda work: work.config.kind in kinds


def _has_gain(work: Norm) -> bool:
    return work.params.weight is not None


def _has_heads(work: Norm) -> bool:
    return _has_gain(work) and (work.config.heads or 1) > 1


def _outside(work: Norm, x: Any) -> Any:
    x = work.centre(x)
    return work.weigh(x / (np.sqrt(work.mean(x)) + work.eps))


def _no_eps(work: Norm, x: Any) -> Any:
    x = work.centre(x)
    return work.weigh(x / np.sqrt(work.mean(x)))


def _without_root(work: Norm, x: Any) -> Any:
    x = work.centre(x)
    return work.weigh(x / (work.mean(x) + work.eps))


def _unbias(work: Norm, x: Any) -> Any:
    x, n = work.centre(x), x.shape[-1]
    return work.weigh(work.divide(x, work.mean(x) * (n / (n - 1.0))))


def _sum_squares(work: Norm, x: Any) -> Any:
    x = work.centre(x)
    return work.weigh(work.divide(x, work.mean(x) * x.shape[-1]))


def _together(work: Norm, x: Any) -> Any:
    return work.weigh(work.divide(x, work.mean(x, (1, -1))))


def _without_mean(work: Norm, x: Any) -> Any:
    x = x - np.mean(x, axis=-1, keepdims=True)
    return work.weigh(work.divide(x, work.mean(x)))


HABITS = (
    Habit("adds eps to the root, not under it", _outside),
    Habit("has no eps", _no_eps, lambda w: w.config.guard == "add"),
    Habit("leaves out the root", _without_root),
    Habit("leaves out the gain", lambda w, x: w.weigh(w.plain(x), gain=1.0), _has_gain),
    Habit("multiplies by 1 + gain", lambda w, x: w.weigh(w.plain(x), gain=1.0 + w.gain), _has_gain),
    Habit(
        "multiplies by the gain before the norm",
        lambda w, x: w.weigh(w.plain(x * w.gain), gain=1.0),
        _has_gain,
    ),
    Habit(
        "takes the gains of the heads in reverse",
        lambda w, x: w.weigh(w.plain(x), gain=w.gain[::-1]),
        _has_heads,
    ),
    Habit("leaves out the bias", lambda w, x: w.weigh(w.plain(x), bias=False), _is("layer")),
    Habit(
        "divides the sum for the variance by n - 1",
        _unbias,
        lambda w: w.config.kind == "layer" and w.config.d > 1,
    ),
    Habit("divides by the root of the sum of squares, not of their mean", _sum_squares, _is("rms")),
    Habit("subtracts the mean first", _without_mean, _is("rms")),
    Habit("norms all heads together", _together, lambda w: w.config.heads is not None),
    Habit("passes its input on", lambda w, x: x),
)
