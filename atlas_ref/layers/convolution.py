"""Depthwise convolution over time: a short filter for each channel, with its tail in the state.

    y[t, ch] = activation(sum_j w[ch, j] x[t + j - (K - 1), ch])

Specified in specs/convolution.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import model_validator

from atlas_ref import backend
from atlas_ref.engine.layers import convolution as engine
from atlas_ref.layers import checks
from atlas_ref.layers.projection import cast
from atlas_ref.rules.checks import check_count, generator, require_floating
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Settings of a convolution (CONVOLUTION-1 to CONVOLUTION-5).

    Attributes:
        d_model: number of channels.
        kernel: K, number of taps; at 1 a token sees itself alone.
        padding: causal, taps t - K + 1 .. t; centred, taps t - K//2 .. t - K//2 + K - 1, of which
            K - 1 - K//2 lie in the future.
        activation: none or silu, of the sum.
        bias: whether a number for each channel is added to its sum.
        state: carried, the tail of a call goes on to the next; zero_per_call, each call starts with
            zeros.
    """

    d_model: Count
    kernel: Count
    padding: Literal["causal", "centred"] = "causal"
    activation: Literal["none", "silu"] = "none"
    bias: bool = False
    state: Literal["carried", "zero_per_call"] = "carried"

    @model_validator(mode="after")
    def _past_alone(self) -> Self:
        if self.state == "carried" and self.look_ahead:
            raise ValueError(
                f"state: carried needs padding causal; centred at kernel {self.kernel} reads "
                f"{self.look_ahead} token{'s' if self.look_ahead > 1 else ''} of the future"
            )
        return self

    @property
    def earlier(self) -> int:
        """Tokens before its own that a token reads."""
        return self.kernel - 1 if self.padding == "causal" else self.kernel // 2

    @property
    def look_ahead(self) -> int:
        """Tokens after its own that a token reads (CONVOLUTION-3)."""
        return self.kernel - 1 - self.earlier

    @property
    def rows(self) -> int:
        """Rows of the tail that a state holds."""
        return self.earlier if self.state == "carried" else 0


class Params(Frozen):
    """Filters, which the outer loop learns (CONVOLUTION-1).

    Attributes:
        weight (d_model, K): the last tap is that of the newest token.
        bias (d_model,): None where there is none.
    """

    weight: Annotated[Array, Dims("d_model K")]
    bias: Annotated[Array | None, Dims("d_model", optional=True)] = None


class State(Frozen):
    """The last tokens before the next one, oldest first, zeros before the first (CONVOLUTION-4).

    Attributes:
        tail (B, K - 1, d_model): under zero_per_call no row.
    """

    tail: Annotated[Array, Dims("B rows d_model")]


#: Public code and its reading of the axes, by name: settings of `Config` (CONVOLUTION-8).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-rnn": {"padding": "centred", "activation": "none", "state": "zero_per_call"},
    "atlas-rnn causal": {"padding": "causal", "activation": "none", "state": "zero_per_call"},
    "atlas-mag": {"padding": "causal", "bias": True, "state": "zero_per_call"},
    "titans": {"padding": "causal", "activation": "silu", "state": "carried"},
}


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """Filters and biases drawn from uniform(-1/sqrt(K), 1/sqrt(K)) (CONVOLUTION-7)."""
    require_floating(dtype)
    draw, bound = generator(seed), 1.0 / np.sqrt(config.kernel)
    weight = draw.uniform(-bound, bound, (config.d_model, config.kernel))
    bias = draw.uniform(-bound, bound, config.d_model) if config.bias else None
    return cast(Params(weight=weight, bias=bias), dtype)


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64) -> State:
    """The state before the first token: a tail of zeros (CONVOLUTION-4)."""
    check_count("batch", batch)
    require_floating(dtype)
    return State(tail=backend.current().zeros((batch, config.rows, config.d_model), dtype))


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Convolve each channel over time (CONVOLUTION-1).

    Args:
        x (B, T, d_model): tokens.
        reset (T,): True where a document starts; no token reads over it.

    Returns:
        state with the tail after x, y (B, T, d_model).

    Raises:
        ValueError: arguments that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    checks.check_tokens(x, config.d_model)
    check_params(config, params, x)
    tail = (x.shape[0], config.rows, config.d_model)
    checks.check_shape("state.tail", state.tail, tail, "batch, rows, d_model")
    checks.check_precision(x, {"state.tail": state.tail})
    return convolved(config, params, state, x, checks.check_reset(reset, x.shape[-2]))


def check_params(config: Config, params: Params, x: Array, name: str = "params") -> None:
    """Refuse filters that contradict the settings or the tokens (NORM-2).

    Raises:
        ValueError: names the parameter, what was found and what is needed.
    """
    shape = (config.d_model, config.kernel)
    checks.check_shape(f"{name}.weight", params.weight, shape, "channels, kernel")
    but = f"bias {config.bias} {'needs it' if config.bias else 'has none'}"
    checks.check_presence(f"{name}.bias", params.bias, config.bias, but)
    if params.bias is not None:
        checks.check_shape(f"{name}.bias", params.bias, (config.d_model,), "channels")
    checks.check_precision(x, {f"{name}.weight": params.weight, f"{name}.bias": params.bias})


def convolved(
    config: Config, params: Params, state: State, x: Array, reset: Any
) -> tuple[State, Array]:
    """The convolution itself, on arguments that were checked (CONVOLUTION-1 to CONVOLUTION-6)."""
    B, T, d = x.shape
    before, after = config.earlier, config.look_ahead
    bias = [] if params.bias is None else [params.bias]
    zeros = ops.zeros_like(x, shape=(B, before - config.rows, d))
    end = ops.zeros_like(x, shape=(B, after, d))
    if reset is None and after == 0:
        earlier = state.tail if config.rows == before else zeros
        total = _taps(earlier, x, params.weight, *bias)
        last = ops.concatenate([earlier, x[:, max(0, T - before) :]], axis=-2)
    else:
        rows = ops.concatenate([zeros, state.tail, x, end], axis=-2)  # (B, before + T + after, d)
        total = summed_taps(rows, _within_documents(config, reset, T), params.weight, *bias)
        last = rows[:, : before + T]
    y = ops.silu(total) if config.activation == "silu" else total
    return _advanced(config, state, last, reset), y


def plain_taps(earlier: Array, x: Array, weight: Array, *bias: Array) -> Array:
    """The sum over all taps for each token of x after earlier rows, in tape ops (CONVOLUTION-1)."""
    rows = ops.concatenate([earlier, x], axis=-2)
    return summed_taps(rows, [None] * weight.shape[-1], weight, *bias)


def summed_taps(rows: Array, seen: list[Any], weight: Array, *bias: Array) -> Array:
    """The sum over taps, each for the tokens that may see it; None for all of them."""
    T = rows.shape[-2] - len(seen) + 1
    total: Any = None
    for j, tokens in enumerate(seen):
        term = weight[:, j] * rows[:, j : j + T]
        term = term if tokens is None else ops.where(tokens[:, None], term, 0.0)
        total = term if total is None else total + term
    return total + bias[0] if bias else total


_taps = engine.block(plain_taps)


def _within_documents(config: Config, reset: Any, T: int) -> list[Any]:
    """For each tap the tokens t (T,) whose tap lies in the document of t; None for all (CONVOLUTION-5)."""
    if reset is None:
        return [None] * config.kernel
    document = np.cumsum(reset)  # 0 for tokens that go on with the document before the call
    padded = np.concatenate(
        [np.zeros(config.earlier, int), document, np.full(config.look_ahead, document[-1])]
    )
    return [padded[j : j + T] == document for j in range(config.kernel)]


def _advanced(config: Config, state: State, rows: Array, reset: Any) -> State:
    """The state after a call: the last rows, zero where another document has them (CONVOLUTION-4)."""
    if config.rows == 0:
        return state
    count = rows.shape[-2]
    tail = rows[:, count - config.rows :]
    if reset is not None:
        document = np.concatenate([np.zeros(config.earlier, int), np.cumsum(reset)])
        same = document[count - config.rows :] == document[-1]
        tail = ops.where(same[:, None], tail, 0.0)
    return state.replaced(tail=tail)
