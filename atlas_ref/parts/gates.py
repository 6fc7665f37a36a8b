"""Gates: the factors of the memory and of the momentum, and the size of a step.

Specified in specs/gates.md.

Gates as logarithms, stable evaluation, biases, backward and cost: GATES-5, GATES-9 to GATES-13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops

#: Initial biases (GATES-8): sigmoid(3.0) = 0.953 kept per token, sigmoid(1.5) = 0.818,
#: softplus(-4.6) = 0.010.
INITIAL_BIAS = {"retain": 3.0, "forget": -3.0, "momentum": 1.5, "step_size": -4.6}

GateKind = Literal["retain", "forget", "none"]


class Gates(Frozen):
    """The gates of one token as columns that scale rows (GATES-1, GATES-3, GATES-4).

    Each is (..., 1, 1), one number for the whole memory, or (..., d_out, 1), one per output
    dimension. With a time axis in front they are those of a sequence. `retain` is the factor of M
    also where the convention calls the gate forget.

    Attributes:
        retain: r in M_t = r M_{t-1} - ..., within [0, 1]; None for 1.
        momentum: m in S_t = m S_{t-1} + ..., within [0, 1]; None for 0.
        step_size: the learning rate h, at least 0; with rate split, the rate of the momentum.
        step_size_memory: with rate split, the rate of the memory.
        window_weights (..., c, 1): weight of each window token, oldest first.

    Raises:
        ValueError: names the gate, what was found and its range or shape.
    """

    retain: Any = None
    momentum: Any = None
    step_size: Any = None
    step_size_memory: Any = None
    window_weights: Any = None

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        high = {"retain": 1.0, "momentum": 1.0}
        for name, value in self.__dict__.items():
            if value is None:
                continue
            low = None if name == "window_weights" else 0.0
            check_array(name, value, Dims("...", low=low, high=high.get(name)))
            if len(value.shape) < 2 or value.shape[-1] != 1:
                raise ValueError(
                    f"{name}: shape {value.shape}, expected a column (..., 1, 1) or (..., n, 1)"
                )
        return self


class GateParams(Frozen):
    """One affine map per gate from the token's key and value (GATES-6, GATES-7).

    Attributes:
        W (H, n, d_in + d_out): weights; n = 1 for one gate, n = d_out for one per output dimension.
        b (H, n): biases.
    """

    W: Annotated[Array, Dims("H n d_kv")]
    b: Annotated[Array, Dims("H n")]


class HiddenGateParams(Frozen):
    """Two maps without biases from a token to a gate, silu between them (GATES-14).

    Attributes:
        W_in (n, d_model): to the hidden layer.
        W_out (H, n): to one gate for each head; H = 1 for one that all heads share.
    """

    W_in: Annotated[Array, Dims("n d_model")]
    W_out: Annotated[Array, Dims("H n")]


class GateSet(Frozen):
    """The parameters of the gates that a rule uses; None where it has no such gate."""

    retain: GateParams | None = None
    momentum: GateParams | None = None
    step_size: GateParams | None = None

    @model_validator(mode="after")
    def _heads_agree(self) -> GateSet:
        heads = {name: g.W.shape[0] for name, g in self.__dict__.items() if g is not None}
        if len(set(heads.values())) > 1:
            raise ValueError(f"gates disagree on the number of heads: {heads}")
        return self


def init(
    names: tuple[str, ...],
    *,
    heads: int,
    d_in: int,
    d_out: int,
    per_dimension: bool,
    forget: bool,
    draw: Any,
) -> GateSet:
    """Parameters of gates that start at their initial biases for every token, up to small weights
    (GATES-8).

    Args:
        names: of the gates, of retain, momentum, step_size.
        per_dimension: one gate per output dimension instead of one per head.
        forget: whether the retain gate's value is the share to forget; its bias then is -3.0.
        draw: NumPy generator for the weights, N(0, 0.02^2).
    """
    n = d_out if per_dimension else 1
    maps = {}
    for name in names:
        bias = INITIAL_BIAS["forget" if name == "retain" and forget else name]
        maps[name] = GateParams(
            W=0.02 * draw.standard_normal((heads, n, d_in + d_out)), b=np.full((heads, n), bias)
        )
    return GateSet(**maps)


def init_hidden(*, heads: int, hidden: int, d_model: int, draw: Any) -> HiddenGateParams:
    """Parameters of gates that start at 1/2 for every token (GATES-14).

    Args:
        hidden: n, length of the hidden layer.
        draw: NumPy generator for W_in, N(0, 0.02^2); W_out is 0.
    """
    return HiddenGateParams(
        W_in=0.02 * draw.standard_normal((hidden, d_model)), W_out=np.zeros((heads, hidden))
    )


def compute(params: GateSet, k: Array, v: Array) -> dict[str, Array]:
    """Gate values from the token's key and value (GATES-6, GATES-7).

        retain, momentum = sigmoid(W [k; v] + b),    step_size = softplus(W [k; v] + b)

    Args:
        k (B, H, T, d_in): keys before the feature map.
        v (B, H, T, d_out): values.

    Returns:
        name -> (B, H, T) for scalar gates, (B, H, T, d_out) for one gate per output dimension;
        `retain` is the value of the gate, which the gate axis then takes as the share to keep or to
        forget.
    """
    return from_tokens(params, ops.concatenate([k, v], axis=-1))


def from_tokens(
    params: GateSet, x: Array, *, step_size: Callable[[Array], Array] = ops.softplus
) -> dict[str, Array]:
    """Gate values from one input of all gates, such as [k; v] (GATES-6, GATES-7).

    Args:
        x (B, H or 1, T, d_kv): the input.
        step_size: what makes a rate of W x + b: softplus or sigmoid.

    Returns:
        as `compute`.
    """
    values = {}
    for name, gate in params.__dict__.items():
        if gate is None:
            continue
        pre = x @ ops.transpose(gate.W) + ops.expand_dims(gate.b, -2)  # (B, H, T, n)
        value = step_size(pre) if name == "step_size" else ops.sigmoid(pre)
        values[name] = value[..., 0] if gate.W.shape[-2] == 1 else value
    return values


def bounded(value: Array, bounds: Any) -> Array:
    """The gate's value, or the bound that it reaches, with derivative 0 there (GATES-16).

    Args:
        value: of any shape, or None.
        bounds: (least, greatest), or "none".
    """
    if value is None or bounds == "none":
        return value
    least, greatest = bounds
    return ops.minimum(greatest, ops.maximum(least, value))


def multiplier(value: Array, kind: GateKind) -> Array:
    """The factor r of M from the gate's value: itself for retain, one minus it for forget.

    Source: GATES-2.
    """
    return 1.0 - value if kind == "forget" else value


def as_column(value: Array, per_dimension: bool) -> Array:
    """A gate as a column that scales the rows of M (GATES-3).

    (..., T) becomes (..., T, 1, 1), and (..., T, d_out) becomes (..., T, d_out, 1).
    """
    return ops.reshape(value, (*value.shape, 1) if per_dimension else (*value.shape, 1, 1))
