"""A linear memory trained by mini-batches through a layer norm, as in test-time training.

    z_s = M k_s + bias,    u_s = d/dz 1/2 |norm(z) gain + shift - (v_s - k_s)|^2 at z_s
    M_t = M - step_size_t sum_{s <= t} u_s k_s^T,    bias_t = bias - step_size_t sum_{s <= t} u_s
    o_t = M_t q_t + bias_t,    y_t = o_t + norm(o_t) gain + shift

M and bias are those of the start of the mini-batch, and s runs over its tokens. The step size of a
token scales the gradients of all tokens before it. Specified in specs/recurrences.md (RECUR-11).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from atlas_ref.rules.recurrences.checks import (
    check_call,
    check_finite,
    check_masks,
    events,
    of_last_axes,
)
from atlas_ref.rules.sequence import initial
from atlas_ref.types import Array, Count, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Choices of a memory that is trained by mini-batches (RECUR-11).

    Attributes:
        mini_batch: tokens whose gradients are taken at one memory.
        norm_eps: what is added to the variance, at least 1e-15.
        query_scale: what a query is multiplied by.
    """

    mini_batch: Count = 16
    norm_eps: Annotated[float, Field(ge=1e-15, allow_inf_nan=False)] = 1e-6
    query_scale: Literal[1, "1/sqrt(d_in)"] = "1/sqrt(d_in)"


class State(Frozen):
    """Everything that a split between two tokens must carry (RECUR-11).

    Attributes:
        M (..., d, d), bias (..., d): memory at the start of the mini-batch.
        sum_M (..., d, d), sum_bias (..., d): sums of the gradients of its tokens so far.
        step_size (...): that of the last of them.
        filled: how many they are.
    """

    M: Annotated[Array, Dims("... d d")]
    bias: Annotated[Array, Dims("... d")]
    sum_M: Annotated[Array, Dims("... d d")]
    sum_bias: Annotated[Array, Dims("... d")]
    step_size: Annotated[Array, Dims("...")]
    filled: Annotated[int, Field(ge=0)] = 0


class Memory(NamedTuple):
    """The memory after a token: M (..., d, d) and bias (..., d)."""

    M: Array
    bias: Array


class Tokens(Frozen):
    """T tokens with any leading axes L (RECUR-11).

    Attributes:
        k, v, q (L, T, d): keys, values and queries.
        step_size (L, T): scales all gradients of the mini-batch up to a token.
        gain, shift (d,): factor and summand after the norm; or with last axes of L in front.
        active (T,): False where nothing is learned; None for all True.
        reset (T,): True where a packed sequence starts; None for nowhere.
    """

    k: Any
    v: Any
    q: Any
    step_size: Any
    gain: Any
    shift: Any
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        check_finite(self, ("k", "v", "q", "step_size", "gain", "shift"))
        check_masks(self)
        return self


def start(tokens: Tokens, *, M: Array = None, bias: Array = None) -> State:
    """The state before a mini-batch: M_0 and bias_0, zero unless given (RECUR-11)."""
    k, d = tokens.k, tokens.k.shape[-1]
    lead = k.shape[:-2]

    def zeros(*shape: int) -> Array:
        return ops.zeros_like(k, shape=(*lead, *shape))

    return State.trusted(
        M=initial("M", M, (*lead, d, d), zeros=lambda: zeros(d, d), exact=True),
        bias=initial("bias", bias, (*lead, d), zeros=lambda: zeros(d), exact=True),
        sum_M=zeros(d, d),
        sum_bias=zeros(d),
        step_size=ops.zeros_like(k[..., 0, 0]),  # a shape of () is none for CuPy
        filled=0,
    )


def run(config: Config, tokens: Tokens, state: State) -> tuple[State, Array]:
    """Drive the rule over a sequence (RECUR-11).

    Returns:
        state after the last token, y (L, T, d).

    Raises:
        ValueError: an array whose shape or precision contradicts another one, or a state of more
            tokens than a mini-batch has.

    Every floating input has a gradient (RECUR-4).

    Source: fla-core 0.6.0, ops/ttt/naive.py; RECUR-11.
    """
    _check(config, tokens, state)
    T, now, reads = tokens.q.shape[-2], state, []
    writes = events(tokens, T)
    scale = 1.0 if config.query_scale == 1 else 1.0 / math.sqrt(tokens.q.shape[-1])
    for t in range(T):
        now = state if writes.reset[t] else now
        if writes.active[t]:
            now = _learned(config, tokens, now, t)
        M, bias = memory(now)
        o = (M @ (scale * tokens.q[..., t, :, None]))[..., 0] + bias
        hat, _ = _normed(o, config.norm_eps)
        reads.append(o + hat * tokens.gain + tokens.shift)
    return now, ops.stack(reads, axis=-2)


def memory(state: State) -> Memory:
    """The memory after the last token: one step along the sum of the gradients (RECUR-11)."""
    step = state.step_size[..., None]
    return Memory(state.M - step[..., None] * state.sum_M, state.bias - step * state.sum_bias)


def gradient(z: Array, target: Array, gain: Array, shift: Array, *, norm_eps: float) -> Array:
    """The derivative of 1/2 |norm(z) gain + shift - target|^2 with respect to z (RECUR-11).

    Args:
        z, target (..., d): what the memory finds, and what it shall find behind the norm.
    """
    hat, deviation = _normed(z, norm_eps)
    g = (hat * gain + shift - target) * gain
    along = ops.mean(g * hat, axis=-1, keepdims=True)
    return (g - ops.mean(g, axis=-1, keepdims=True) - hat * along) / deviation


def _learned(config: Config, tokens: Tokens, state: State, t: int) -> State:
    """The state with the gradient of token t; a full mini-batch moves the memory."""
    if state.filled == config.mini_batch:
        M, bias = memory(state)
        zero = {name: ops.zeros_like(getattr(state, name)) for name in ("sum_M", "sum_bias")}
        state = State.trusted(M=M, bias=bias, **zero, step_size=state.step_size, filled=0)
    k, v = tokens.k[..., t, :], tokens.v[..., t, :]
    z = (state.M @ k[..., None])[..., 0] + state.bias
    u = gradient(z, v - k, tokens.gain, tokens.shift, norm_eps=config.norm_eps)
    return State.trusted(
        M=state.M,
        bias=state.bias,
        sum_M=state.sum_M + ops.outer(u, k),
        sum_bias=state.sum_bias + u,
        step_size=tokens.step_size[..., t],
        filled=state.filled + 1,
    )


def _normed(z: Array, eps: float) -> tuple[Array, Array]:
    """z without its mean over its deviation, and that."""
    centred = z - ops.mean(z, axis=-1, keepdims=True)
    deviation = ops.sqrt(ops.mean(centred * centred, axis=-1, keepdims=True) + eps)
    return centred / deviation, deviation


def _check(config: Config, tokens: Tokens, state: State) -> None:
    """Match every array with the leading axes and the width, and the state with a mini-batch."""
    *lead, T, d = tokens.k.shape
    needed = {
        **dict.fromkeys(("k", "v", "q"), (*lead, T, d)),
        "step_size": (*lead, T),
        "gain": of_last_axes(tokens.gain, tuple(lead), d),
        "shift": of_last_axes(tokens.shift, tuple(lead), d),
    }
    states = {
        **dict.fromkeys(("M", "sum_M"), (*lead, d, d)),
        **dict.fromkeys(("bias", "sum_bias"), (*lead, d)),
        "step_size": tuple(lead),
    }
    check_call(tokens, state, T, needed=needed, states=states)
    if state.filled > config.mini_batch:
        raise ValueError(
            f"state.filled: {state.filled}, expected at most mini_batch = {config.mini_batch}"
        )
