"""Habits of projections: of weights and biases, of gates, of convolutions and of the order of heads.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import convolution
from atlas_ref.oracle.modules.habits.habit import Habit
from atlas_ref.types import Array
from tape import ops


class Linear(NamedTuple):
    """W x + b of tokens."""

    weight: Array
    bias: Array | None

    def product(self, x: Any) -> Any:
        return x @ self.weight.T


def _has_bias(work: Any) -> bool:
    return work.bias is not None


def _cap(size: float) -> Callable[..., Any]:
    return lambda w, x: size * np.tanh(w.product(x) / size)


LINEAR = (
    Habit("leaves out the bias", lambda w, x: w.product(x), _has_bias),
    Habit("subtracts the bias", lambda w, x: w.product(x) - w.bias, _has_bias),
    Habit(
        "multiplies by the transposed weight",
        lambda w, x: x @ w.weight + (0.0 if w.bias is None else w.bias),
        lambda w: w.weight.shape[0] == w.weight.shape[1],
    ),
    *(
        Habit(f"caps its result, {size:g} tanh(y / {size:g})", _cap(size))
        for size in (15.0, 30.0, 50.0)
    ),
)


# -- gates -----------------------------------------------------------------------------------------


class Gate(NamedTuple):
    """The activation of W x + b, one number for each head."""

    linear: Callable[[Any], Any]
    activation: Callable[[Any], Any]
    bias: Array


def _sigmoid(z: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


GATE = (
    Habit("leaves out its activation", lambda w, x: w.linear(x)),
    Habit("returns 1 minus the gate", lambda w, x: 1.0 - w.activation(w.linear(x))),
    Habit("applies its activation twice", lambda w, x: w.activation(w.activation(w.linear(x)))),
    Habit("leaves out the bias", lambda w, x: w.activation(w.linear(x) - w.bias)),
    Habit("subtracts the bias", lambda w, x: w.activation(w.linear(x) - 2.0 * w.bias)),
    Habit("applies softplus", lambda w, x: np.logaddexp(0.0, w.linear(x))),
    Habit("applies tanh", lambda w, x: np.tanh(w.linear(x))),
    Habit("applies exp", lambda w, x: np.exp(w.linear(x))),
    Habit("applies relu", lambda w, x: np.maximum(w.linear(x), 0.0)),
    Habit("applies silu", lambda w, x: w.linear(x) * _sigmoid(w.linear(x))),
    Habit(
        "returns its gates in reverse",
        lambda w, x: w.activation(w.linear(x))[..., ::-1],
        lambda w: len(w.bias) > 1,
    ),
)


# -- convolutions ----------------------------------------------------------------------------------


class Convolution(NamedTuple):
    """A depthwise convolution over time, its tail going on from call to call."""

    run: Callable[[convolution.Config, Any, Any], Any]
    config: convolution.Config
    filters: convolution.Params

    def of(self, x: Any, **changes: Any) -> Any:
        return self.run(self.config, self.filters.replaced(**changes), x)


def _move_taps(by: int) -> Callable[..., Any]:
    """Taps moved by a place: those of the token before, or of the one after."""

    def run(work: Convolution, x: Any) -> Any:
        weight = np.zeros_like(work.filters.weight)
        if by < 0:
            weight[:, :by] = work.filters.weight[:, -by:]
        else:
            weight[:, by:] = work.filters.weight[:, :-by]
        return work.of(x, weight=weight)

    return run


CONVOLUTION = (
    Habit(
        "applies its taps in reverse",
        lambda w, x: w.of(x, weight=w.filters.weight[:, ::-1]),
        lambda w: w.config.kernel > 1,
    ),
    Habit(
        "reads with each tap the token before",
        _move_taps(-1),
        lambda w: w.config.kernel > 1,
    ),
    Habit("adds the token itself", lambda w, x: x + w.of(x)),
    Habit(
        "leaves out the bias",
        lambda w, x: w.run(w.config.replaced(bias=False), w.filters.replaced(bias=None), x),
        lambda w: w.filters.bias is not None,
    ),
    Habit("applies gelu", lambda w, x: _gelu(w.of(x))),
    Habit("passes its input on", lambda w, x: x),
)


def _gelu(z: Any) -> Any:
    return 0.5 * z * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z**3)))


# -- heads -----------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Rows (B, T, parts H d) -> one part of them by heads, (B, H, T, d)."""

    heads: int
    part: int = 0
    parts: int = 1

    def third(self, rows: Any) -> Any:
        width = rows.shape[-1] // self.parts
        return rows[..., self.part * width : (self.part + 1) * width]

    def plain(self, rows: Any) -> Any:
        return split(self.third(rows), self.heads)


def split(x: Any, heads: int) -> Any:
    """(B, T, H d) -> (B, H, T, d)."""
    B, T, rows = x.shape
    return ops.swapaxes(ops.reshape(x, (B, T, heads, rows // heads)), 1, 2)


def merge(x: Any) -> Any:
    """(B, H, T, d) -> (B, T, H d)."""
    B, H, T, d = x.shape
    return ops.reshape(ops.swapaxes(x, 1, 2), (B, T, H * d))


def _alternating(work: Split, rows: Any) -> Any:
    """Row i H + h is entry i of head h."""
    x = work.third(rows)
    B, T, width = x.shape
    return np.moveaxis(np.reshape(x, (B, T, width // work.heads, work.heads)), -1, 1)


def _same_order(work: Split, rows: Any) -> Any:
    """The numbers in their order, as a view without a transposition has them."""
    x = work.third(rows)
    B, T, width = x.shape
    return np.reshape(x, (B, work.heads, T, width // work.heads))


def _by_head(work: Split, rows: Any) -> Any:
    """Rows of each head together: its queries, its keys, its values."""
    B, T, _ = rows.shape
    each = np.reshape(rows, (B, T, work.heads, work.parts, -1))
    return np.swapaxes(each[:, :, :, work.part], 1, 2)


def _several(work: Split) -> bool:
    return work.heads > 1


SPLIT = (
    Habit("takes entry i of head h from row i H + h, not h d + i", _alternating, _several),
    Habit("cuts heads without moving them before the tokens", _same_order, _several),
    Habit("takes the heads in reverse", lambda w, x: w.plain(x)[:, ::-1], _several),
    Habit(
        "takes the head before",
        lambda w, x: np.roll(w.plain(x), 1, axis=1),
        lambda w: w.heads > 2,
    ),
    Habit(
        "takes queries, keys and values of each head as rows next to each other",
        _by_head,
        lambda w: w.heads > 1 and w.parts > 1,
    ),
)


class Merge(NamedTuple):
    """Heads (B, H, T, d) -> rows (B, T, H d)."""

    heads: int


def _raw(work: Merge, x: Any) -> Any:
    B, H, T, d = x.shape
    return np.reshape(x, (B, T, H * d))


MERGE = (
    Habit(
        "puts entry i of head h into row i H + h, not h d + i",
        lambda w, x: np.reshape(np.moveaxis(x, 1, -1), (x.shape[0], x.shape[2], -1)),
        _several,
    ),
    Habit("joins heads without moving them behind the tokens", _raw, _several),
    Habit("joins the heads in reverse", lambda w, x: merge(x[:, ::-1]), _several),
)
