"""The short causal convolution of each channel, and the window that it hands on.

    y_t = act(sum_{j < W} w_j * x_{t - W + 1 + j} + bias),    window_t = the last raw inputs up to x_t

Specified in specs/short_conv.md (SHORT-1 to SHORT-4).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from atlas_ref.rules.recurrences.checks import check_call, check_finite, check_masks, events
from atlas_ref.rules.sequence import initial
from atlas_ref.types import Array, Dims, Frozen
from tape import ops


class Config(Frozen):
    """Choices of a short convolution (SHORT-1 to SHORT-3).

    Attributes:
        activation: of the sum: none, or silu.
        columns: inputs that the window holds: all but the oldest tap's, W-1, or as many as taps, W.
        reset_to: the window where a packed sequence starts: zero, or the first one of the call.
    """

    activation: Literal["none", "silu"] = "none"
    columns: Literal["W-1", "W"] = "W-1"
    reset_to: Literal["zero", "first"] = "zero"

    def width(self, taps: int) -> int:
        """The number of inputs that the window holds."""
        return taps if self.columns == "W" else taps - 1


class State(Frozen):
    """Everything that a split between two tokens must carry (SHORT-2).

    Attributes:
        window (..., d, columns): the last raw inputs, the oldest first.
    """

    window: Annotated[Array, Dims("... d columns")]


class Tokens(Frozen):
    """T tokens with any leading axes L (SHORT-1).

    Attributes:
        x (L, T, d): inputs.
        w (d, W): taps of each channel, that of the token itself last; or with last axes of L in front.
        bias (d,): what is added to each sum, with the same axes in front; None for 0.
        active (T,): False where a token is not there; None for all True.
        reset (T,): True where a packed sequence starts; None for nowhere.
    """

    x: Any
    w: Any
    bias: Any = None
    active: Any = None
    reset: Any = None

    @model_validator(mode="after")
    def _are_arrays(self) -> Self:
        check_finite(self, ("x", "w") if self.bias is None else ("x", "w", "bias"))
        check_masks(self)
        return self


def start(config: Config, tokens: Tokens, *, window: Array = None) -> State:
    """The window before the first of these tokens, zero unless given (SHORT-2)."""
    x = tokens.x
    shape = (*x.shape[:-2], x.shape[-1], config.width(check_taps(tokens.w.shape)))
    return State.trusted(
        window=initial(
            "window", window, shape, zeros=lambda: ops.zeros_like(x, shape=shape), exact=True
        )
    )


def run(config: Config, tokens: Tokens, state: State) -> tuple[State, Array]:
    """Drive the convolution over a sequence (SHORT-1 to SHORT-3).

    Returns:
        state after the last token, y (L, T, d), 0 where a token is not active.

    Raises:
        ValueError: an array whose shape or precision contradicts another one, or fewer than two taps.

    Every floating input has a gradient (SHORT-4).

    Source: fla-core 0.6.0, modules/causal_conv1d; ONNX 1.23.2, CausalConvWithState; SHORT-1.
    """
    *lead, T, d = tokens.x.shape
    W = check_taps(tokens.w.shape)
    of_heads = taps_shape(tokens.w.shape, tuple(lead), d)
    check_call(
        tokens,
        state,
        T,
        needed={"x": (*lead, T, d), "w": of_heads, "bias": of_heads[:-1]},
        states={"window": (*lead, d, config.width(W))},
    )
    first = state.window if config.reset_to == "first" else ops.zeros_like(state.window)
    writes, window, reads = events(tokens, T), state.window, []
    for t in range(T):
        window = first if writes.reset[t] else window
        if not writes.active[t]:
            reads.append(ops.zeros_like(tokens.x[..., t, :]))
            continue
        seen = ops.concatenate([window, tokens.x[..., t, :, None]], axis=-1)
        y = tokens.w[..., 0] * seen[..., -W]
        for j in range(1, W):
            y = y + tokens.w[..., j] * seen[..., j - W]
        y = y if tokens.bias is None else y + tokens.bias
        reads.append(ops.silu(y) if config.activation == "silu" else y)
        window = seen[..., 1:]
    return State.trusted(window=window), ops.stack(reads, axis=-2)


def taps_shape(shape: tuple[int, ...], lead: tuple[int, ...], d: int) -> tuple[int, ...]:
    """The shape that taps need: (d, W), behind as many last axes of L as they have."""
    own = min(max(len(shape) - 2, 0), len(lead))
    return (*lead[len(lead) - own :], d, shape[-1])


def check_taps(shape: tuple[int, ...]) -> int:
    """The number of taps; refuse a window of no input.

    Raises:
        ValueError: fewer than two taps.
    """
    if shape[-1] < 2:
        raise ValueError(f"w: {shape[-1]} tap, of which no window is left; 2 are needed")
    return shape[-1]
