"""Gated feed-forward: one half of a hidden layer gates the other.

    [a; b] = W_in norm(x) + b_in,    y = W_out (a * activation(b)) + b_out

Specified in specs/feed_forward.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref.engine.layers import swiglu
from atlas_ref.layers import checks, norm
from atlas_ref.layers.convention import LayerConvention
from atlas_ref.layers.projection import cast, linear, plain_linear
from atlas_ref.rules.checks import check_count, generator, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Settings of a gated feed-forward (FEED-1, FEED-2).

    Attributes:
        d_model: length of a token.
        d_inner: n, length of each half; `inner` computes that of public code.
        norm: of the tokens before the first projection.
        gate_half: which half of W_in norm(x) + b_in the activation gates with.
        activation: silu; gelu, its tanh form.
        bias: whether both projections have one.
    """

    d_model: Count
    d_inner: Count
    norm: norm.Config
    gate_half: Literal["second", "first"] = "second"
    activation: Literal["silu", "gelu"] = "silu"
    bias: bool = True

    @model_validator(mode="after")
    def _same_tokens(self) -> Self:
        check_norm(self.norm, self.d_model)
        return self


class Params(Frozen):
    """Parameters of a gated feed-forward, which the outer loop learns (FEED-1).

    Attributes:
        norm: of the norm.
        W_in (2n, d_model), b_in (2n,): the first half of the rows, then the second.
        W_out (d_model, n), b_out (d_model,): back to a token.
    """

    norm: norm.Params
    W_in: Annotated[Array, Dims("rows d_model")]
    W_out: Annotated[Array, Dims("d_model n")]
    b_in: Annotated[Array | None, Dims("rows", optional=True)] = None
    b_out: Annotated[Array | None, Dims("d_model", optional=True)] = None


class State(Frozen):
    """Nothing: a token is computed alone (FEED-4)."""


#: Public code and its reading of the axes, by name: settings of `Config` (FEED-6).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-rnn": {"gate_half": "second", "activation": "silu", "bias": True},
    "atlas-mag": {"gate_half": "first", "activation": "silu", "bias": False},
}


def check_norm(settings: norm.Config, d_model: int) -> None:
    """Refuse the norm of heads, or of another length than a token (NORM-2).

    Raises:
        ValueError: what was found and what is needed.
    """
    if settings.heads is not None or settings.d != d_model:
        of = "" if settings.heads is None else f" of {settings.heads} heads"
        raise ValueError(f"norm: d {settings.d}{of}, expected a norm of tokens, d {d_model}")


def inner(d_model: int, mult: float) -> int:
    """The length of a half in public code: d_model * mult * 2 / 3, cut to a whole number (FEED-2)."""
    return int(d_model * mult * 2 / 3)


def configured(convention: LayerConvention, *, d_model: int, d_inner: int) -> Config:
    """The feed-forward of a convention (LAYERS-3)."""
    return Config(
        d_model=d_model,
        d_inner=d_inner,
        norm=norm.configured("rms", d_model, convention.norm_eps),
        gate_half=convention.ff_gate_half,
        activation=convention.ff_activation,
    )


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Weights and biases drawn from uniform(-r, r), r = 1/sqrt(columns of the weight) (FEED-5)."""
    require_floating(dtype)
    draw, D, n = generator(seed), config.d_model, config.d_inner

    def uniform(columns: int, *shape: int) -> Array:
        return draw.uniform(-1.0, 1.0, shape) / np.sqrt(columns)

    W_in, b_in = uniform(D, 2 * n, D), uniform(D, 2 * n)
    W_out, b_out = uniform(n, D, n), uniform(n, D)
    params = Params(
        norm=norm.init(config.norm),
        W_in=W_in,
        W_out=W_out,
        b_in=b_in if config.bias else None,
        b_out=b_out if config.bias else None,
    )
    return cast(params, dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token: nothing (FEED-4)."""
    check_count("batch", batch)
    require_floating(dtype)
    return State()


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Norm, expand, gate and project back each token (FEED-1).

    Args:
        x (B, T, d_model): tokens.
        reset (T,): starts of documents, which change nothing here.

    Returns:
        state, y (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    checks.check_reset(reset, x.shape[-2])
    _check_params(config, params, x)
    n, bias = norm.normed(config.norm, params.norm, x), [params.b_in][: config.bias]
    y = _block(config.gate_half, config.activation)(n, params.W_in, *bias)
    return state, linear(y, params.W_out, params.b_out)


def plain_gated(gate_half: str, activation: str, x: Array, W: Array, *b: Array) -> Array:
    """One half of W x + b times the activation of the other, in tape ops (FEED-1 to FEED-3)."""
    h = plain_linear(x, W, *b)
    n = W.shape[0] // 2
    first, second = h[..., :n], h[..., n:]
    value, gate = (first, second) if gate_half == "second" else (second, first)
    return activated(activation, gate) * value


@functools.cache
def _block(gate_half: str, activation: str) -> Callable[..., Array]:
    def gated(x: Array, W: Array, *b: Array) -> Array:
        return plain_gated(gate_half, activation, x, W, *b)

    return swiglu.block(gated, gate_half == "second") if activation == "silu" else gated


def activated(kind: str, x: Array) -> Array:
    """silu: x sigmoid(x); gelu: its tanh form (FEED-3)."""
    return ops.silu(x) if kind == "silu" else ops.gelu(x)


def _check_params(config: Config, params: Params, x: Array) -> None:
    D, n = config.d_model, config.d_inner
    norm.check_params(config.norm, params.norm, x, "params.norm")
    shapes = {
        "W_in": ((2 * n, D), "2 d_inner, d_model"),
        "W_out": ((D, n), "d_model, d_inner"),
        "b_in": ((2 * n,), "2 d_inner"),
        "b_out": ((D,), "d_model"),
    }
    for name, (shape, axes) in shapes.items():
        array = getattr(params, name)
        if name.startswith("b_"):
            but = f"bias {config.bias} {'needs it' if config.bias else 'has none'}"
            checks.check_presence(f"params.{name}", array, config.bias, but)
        if array is not None:
            checks.check_shape(f"params.{name}", array, shape, axes)
        checks.check_precision(x, {f"params.{name}": array})
