"""The window: the last c pairs of Omega's gradient, and their weights.

Rows run from the oldest token to the newest. A missing token is a row of zeros, which contributes
nothing to any gradient. Weights are indexed by lag where users see them, [t, j] for token t - j.

Specified in specs/window.md.

Contents at the start, order, size, edges and pullbacks: WINDOW-15, WINDOW-18 to WINDOW-24.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from atlas_ref.backend import as_strided
from atlas_ref.types import Array, Frozen
from tape import opaque, ops
from tape.constants import beside


class Uniform(Frozen):
    """gamma[t, j] = 1 / c."""

    kind: Literal["uniform"] = "uniform"


class Ones(Frozen):
    """gamma[t, j] = 1."""

    kind: Literal["ones"] = "ones"


class Decay(Frozen):
    """gamma[t, j] = base^j."""

    kind: Literal["decay"] = "decay"
    base: Annotated[float, Field(gt=0, le=1)] = 0.95


class Softmax(Frozen):
    """gamma[t, j] = softmax(window_logits)[j], learned."""

    kind: Literal["softmax"] = "softmax"


class Gate(Frozen):
    """gamma[t, j] = u[t - j], where each token brings its own weight u.

    u = sigmoid(W2 silu(W1 x + b1) + b2).
    """

    kind: Literal["gate"] = "gate"


class Product(Frozen):
    """The product of other kinds, lag by lag."""

    kind: Literal["product"] = "product"
    of: tuple[WindowWeights, ...]

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("of"), list):
            return {**data, "of": tuple(data["of"])}
        return data

    @model_validator(mode="after")
    def _not_empty(self) -> Product:
        if not self.of:
            raise ValueError("of: a product needs at least one kind")
        return self


WindowWeights = Annotated[
    Uniform | Ones | Decay | Softmax | Gate | Product, Field(discriminator="kind")
]
Product.model_rebuild()

#: Parameters that each kind needs and their axes; in a case file they are in/param/NAME.
TENSORS: dict[str, dict[str, str]] = {
    "softmax": {"window_logits": "H c"},
    "gate": {
        "window_W1": "H gate_hidden d_model",
        "window_b1": "H gate_hidden",
        "window_W2": "H gate_hidden",
        "window_b2": "H",
    },
}


def tensors(weights: WindowWeights) -> dict[str, str]:
    """Names and axes of the parameters that a kind, or a product of kinds, needs."""
    if weights.kind == "product":
        return {name: axes for each in weights.of for name, axes in tensors(each).items()}
    return TENSORS.get(weights.kind, {})


def uses_gate(weights: WindowWeights) -> bool:
    """Whether tokens bring their own weight, so that initial window tokens need theirs."""
    return weights.kind == "gate" or (
        weights.kind == "product" and any(uses_gate(each) for each in weights.of)
    )


def init(
    weights: WindowWeights, *, heads: int, window: int, d_model: int, draw: Any, hidden: int = 16
) -> dict[str, Array]:
    """Parameters of a kind: logits 0, gates that start at 0.5 for every token.

    Source: WINDOW-5, WINDOW-6.
    """
    shapes = {"H": heads, "c": window, "gate_hidden": hidden, "d_model": d_model}
    parameters: dict[str, Array] = {}
    for name, axes in tensors(weights).items():
        size = tuple(shapes[axis] for axis in axes.split())
        parameters[name] = (
            draw.standard_normal(size) / np.sqrt(d_model) if name == "window_W1" else np.zeros(size)
        )
    return parameters


def by_lag(
    weights: WindowWeights,
    parameters: Mapping[str, Array],
    *,
    window: int,
    heads: int,
    like: Array = None,
    first: int | None = None,
) -> Array | None:
    """Weights by lag: the product of all kinds but gate, None where there is none (WINDOW-3 to
    WINDOW-5).

    Args:
        first: how many lags of constant weights are needed, from 0 on; all c unless given.

    Returns:
        (1, 1, 1, c), or with learned logits (1, H, 1, c); constant rows are of the dtype and the
        backend of `like`, else NumPy's float64.
    """
    if weights.kind == "product":
        factors = [
            by_lag(each, parameters, window=window, heads=heads, like=like, first=first)
            for each in weights.of
        ]
        return _product([each for each in factors if each is not None])
    if weights.kind == "gate":
        return None
    if weights.kind == "softmax":
        return ops.reshape(ops.softmax(parameters["window_logits"]), (1, heads, 1, window))
    count = window if first is None else first
    if weights.kind == "decay":
        row = weights.base ** np.arange(count, dtype=float)
    else:
        row = np.full(count, 1.0 / window if weights.kind == "uniform" else 1.0)
    row = row.reshape(1, 1, 1, count)
    return row if like is None else beside(row.astype(like.dtype), like)


def by_token(weights: WindowWeights, parameters: Mapping[str, Array], x: Array) -> Array | None:
    """Weights by token: the product of all gates, (B, H, T); None where there is no gate.

    Source: WINDOW-6.
    """
    if weights.kind == "product":
        factors = [by_token(each, parameters, x) for each in weights.of]
        return _product([each for each in factors if each is not None])
    return token_gates(parameters, x) if weights.kind == "gate" else None


def _product(factors: list[Array]) -> Array | None:
    if not factors:
        return None
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product


def token_gates(parameters: Mapping[str, Array], x: Array) -> Array:
    """u = sigmoid(W2 silu(W1 x + b1) + b2), (B, T, d_model) -> (B, H, T) (WINDOW-6)."""
    W1, b1 = parameters["window_W1"], parameters["window_b1"]
    W2, b2 = parameters["window_W2"], parameters["window_b2"]
    # hidden has shape (B, H, T, hidden units)
    hidden = ops.silu(ops.expand_dims(x, 1) @ ops.transpose(W1) + ops.expand_dims(b1, -2))
    return ops.sigmoid((hidden @ ops.expand_dims(W2, -1))[..., 0] + ops.expand_dims(b2, -1))


def gate_by_lag(gate: Array, *, window: int, before: Array | None = None) -> Array:
    """gamma[t, j] = u[t - j], 0 for a missing token: each has its gate at every lag (WINDOW-6).

    Args:
        gate (..., T): one weight per token.
        before (..., n): weights of the initial window tokens, oldest first, n <= c - 1.

    Returns:
        (..., T, c), of NumPy read-only.
    """
    history = [] if before is None else [before]
    missing = window - 1 - (before.shape[-1] if before is not None else 0)
    empty = [ops.zeros_like(gate, shape=(*gate.shape[:-1], missing))] if missing else []
    padded = ops.concatenate([*empty, *history, gate], axis=-1) if window > 1 else gate
    return _lags(window)(padded)


@functools.cache
def _lags(window: int) -> Callable[[Array], Array]:
    """The function of padded rows (..., window - 1 + T) that returns lags (..., T, window).

    Entry [t, j] is padded[window - 1 + t - j]; on raw arrays the result is a view.
    """

    def plain(padded: Array) -> Array:
        T = padded.shape[-1] - window + 1
        return ops.stack(
            [padded[..., window - 1 - j : window - 1 - j + T] for j in range(window)], axis=-1
        )

    def forward(padded: Array) -> tuple[Array, tuple[int, ...]]:
        T, right = padded.shape[-1] - window + 1, padded.strides[-1]
        oldest_first = as_strided(padded, (*padded.shape[:-1], T, window), (*padded.strides, right))
        lags = np.flip(oldest_first, -1)
        if isinstance(lags, np.ndarray):
            lags.flags.writeable = False  # one number stands in several places
        return lags, padded.shape

    def backward(shape: tuple[int, ...], g: Array) -> tuple[Array]:
        T = g.shape[-2]
        padded_bar = np.zeros_like(g, shape=shape)
        for j in range(window):
            padded_bar[..., window - 1 - j : window - 1 - j + T] += g[..., j]
        return (padded_bar,)

    return opaque(plain, forward, backward)


def slid(held: Array, rows: Array) -> list[Array]:
    """The window after each push of a row, as views of one array without a copy per token
    (WINDOW-1).

    The last one is an array of its own, since a state must not keep a whole sequence.

    Args:
        held (..., c, d): the window before, oldest row first.
        rows (..., T, d): the rows of the tokens.

    Returns:
        T windows (..., c, d).
    """
    c, T = held.shape[-2], rows.shape[-2]
    whole = ops.concatenate([held, rows], axis=-2)
    last = ops.concatenate([held[..., T:, :], rows[..., -c:, :]], axis=-2)
    return [*[whole[..., t : t + c, :] for t in range(1, T)], last]


def renormalised(weights: Array, exists: Array) -> Array:
    """Weights times (sum over all lags) / (sum over the lags that exist) (WINDOW-9, CONV-15).

    The factor is 1 where the latter sum is 0.

    Args:
        weights (..., T, c): by lag.
        exists (T, c): plain booleans.
    """
    present = ops.sum(ops.where(exists, weights, 0.0), axis=-1, keepdims=True)
    empty = ops.equal(present, 0.0)
    whole = ops.sum(weights, axis=-1, keepdims=True)
    return weights * ops.where(empty, 1.0, whole / ops.where(empty, 1.0, present))
