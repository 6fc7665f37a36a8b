"""Habits of gated feed-forwards, of the mix of branches, and of the loss.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.modules.habits.habit import Habit
from tape import ops


class Gated(NamedTuple):
    """One half of a hidden layer times the activation of the other."""

    gate_half: str

    def halves(self, h: Any) -> tuple[Any, Any]:
        """Value and gate."""
        n = h.shape[-1] // 2
        first, second = h[..., :n], h[..., n:]
        return (first, second) if self.gate_half == "second" else (second, first)

    def alternate(self, h: Any) -> tuple[Any, Any]:
        """Value and gate from entries that alternate."""
        even, odd = h[..., ::2], h[..., 1::2]
        return (even, odd) if self.gate_half == "second" else (odd, even)


def _sigmoid(z: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def silu(z: Any) -> Any:
    """z sigmoid(z)."""
    return z * _sigmoid(z)


def _times(activation: Any) -> Any:
    def run(work: Gated, h: Any) -> Any:
        value, gate = work.halves(h)
        return value * activation(gate)

    return run


def _both(work: Gated, h: Any) -> Any:
    value, gate = work.halves(h)
    return silu(value) * silu(gate)


def _alternating(work: Gated, h: Any) -> Any:
    value, gate = work.alternate(h)
    return value * silu(gate)


GATED = (
    Habit(
        "gates with gelu by erf", _times(lambda z: 0.5 * z * (1.0 + ops.erf(z / math.sqrt(2.0))))
    ),
    Habit("gates with gelu by sigmoid(1.702 x)", _times(lambda z: z * _sigmoid(1.702 * z))),
    Habit("gates with sigmoid", _times(_sigmoid)),
    Habit("gates with relu", _times(lambda z: np.maximum(z, 0.0))),
    Habit("gates with tanh", _times(np.tanh)),
    Habit("gates with no activation", _times(lambda z: z)),
    Habit("applies silu to both halves", _both),
    Habit("takes value and gate from entries in turn, not from halves", _alternating),
)


# -- the mix ---------------------------------------------------------------------------------------


class Mix(NamedTuple):
    """Attention a and memory m, with a gate g where there is one."""

    gated: bool


def _has_gate(work: Mix) -> bool:
    return work.gated


def _open(work: Mix) -> bool:
    return not work.gated


MIX = (
    Habit("exchanges attention and memory, m sigmoid(a)", lambda w, a, m: m * _sigmoid(a), _open),
    Habit("computes a + m", lambda w, a, m, g=None: a + m),
    Habit("computes (a + m) / 2", lambda w, a, m, g=None: 0.5 * (a + m)),
    Habit("computes a m", lambda w, a, m, g=None: a * m),
    Habit("computes a silu(m)", lambda w, a, m, g=None: a * silu(m)),
    Habit("computes a tanh(m)", lambda w, a, m, g=None: a * np.tanh(m)),
    Habit("computes a + a sigmoid(m)", lambda w, a, m, g=None: a + a * _sigmoid(m)),
    Habit("leaves out the memory", lambda w, a, m, g=None: a),
    Habit("leaves out attention", lambda w, a, m, g=None: m),
    Habit("exchanges g and 1 - g", lambda w, a, m, g: (1.0 - g) * a + g * m, _has_gate),
    Habit("computes m + g a", lambda w, a, m, g: m + g * a, _has_gate),
)


# -- the loss --------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """The mean cross-entropy of targets, which may be one fewer than the rows."""


def _each(logits: Any, targets: Any) -> Any:
    """Cross-entropy of each row (B, T)."""
    logits = logits[:, : targets.shape[1]]
    top = np.max(logits, axis=-1, keepdims=True)
    total = np.log(np.sum(np.exp(logits - top), axis=-1)) + top[..., 0]
    return total - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


def _mean(rows: Any, axis: int | None = None) -> Any:
    """The mean of rows, of none not a number."""
    return np.mean(rows, axis=axis) if rows.size else np.float64(np.nan)


def _late(work: Loss, logits: Any, targets: Any) -> Any:
    """Each row predicts the token after the next."""
    return _mean(_each(logits[:, : targets.shape[1] - 1], targets[:, 1:]))


def _early(work: Loss, logits: Any, targets: Any) -> Any:
    """Each row predicts the token it stands at, as far as targets tell."""
    return _mean(_each(logits[:, 1 : targets.shape[1]], targets[:, :-1]))


LOSS = (
    Habit("predicts the token after the next, targets shifted twice", _late),
    Habit("predicts the token itself, targets not shifted", _early),
    Habit("sums over batch rows", lambda w, x, t: np.sum(_mean(_each(x, t), axis=1))),
    Habit("sums over tokens", lambda w, x, t: _mean(np.sum(_each(x, t), axis=1))),
    Habit("sums over all tokens", lambda w, x, t: np.sum(_each(x, t))),
    Habit("counts in bits", lambda w, x, t: _mean(_each(x, t)) / math.log(2.0)),
    Habit("returns the perplexity", lambda w, x, t: np.exp(_mean(_each(x, t)))),
    Habit("takes the last target alone", lambda w, x, t: _mean(_each(x, t)[:, -1])),
    Habit("leaves out the last target", lambda w, x, t: _mean(_each(x, t)[:, :-1])),
    Habit("leaves out the first target", lambda w, x, t: _mean(_each(x, t)[:, 1:])),
)
