"""Rotary positions: each pair of entries of a query or key turned by an angle of its position.

    x'_a = x_a cos(p w_i) - x_b sin(p w_i),    x'_b = x_b cos(p w_i) + x_a sin(p w_i)

Specified in specs/rotary.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from atlas_ref import backend
from atlas_ref.layers import checks
from atlas_ref.rules.checks import check_count, precision, require_floating
from atlas_ref.types import Array, Dims, Frozen, check_array
from tape import ops

Frequency = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Config(Frozen):
    """Settings of rotary positions (ROTARY-1 to ROTARY-3).

    Attributes:
        d: length of a query or key, even.
        pairs: interleaved, (0, 1), (2, 3), ..; halves, (0, d/2), (1, d/2 + 1), ...
        base: of the frequencies w_i = base^(-2i/d).
        frequencies: exact; float32, computed and kept in float32; or the d/2 numbers.
        position: carried, on from call to call; restart, from 0 in every call.
    """

    d: Annotated[int, Field(ge=2)]
    pairs: Literal["interleaved", "halves"] = "interleaved"
    base: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10000.0
    frequencies: Literal["exact", "float32"] | tuple[Frequency, ...] = "exact"
    position: Literal["carried", "restart"] = "carried"

    @field_validator("frequencies", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.d % 2:
            raise ValueError(f"d: must be even, found {self.d}")
        if not isinstance(self.frequencies, str) and len(self.frequencies) != self.d // 2:
            raise ValueError(
                f"frequencies: {len(self.frequencies)} numbers, expected d/2 = {self.d // 2}"
            )
        return self


class Params(Frozen):
    """Nothing: frequencies are settings, which nothing trains (ROTARY-2)."""


class State(Frozen):
    """The position of the next token (ROTARY-4)."""

    position: Annotated[int, Field(ge=0)] = 0


#: Public code and its reading of the axes, by name: settings of `Config` (ROTARY-7).
PRESETS: dict[str, dict[str, Any]] = {
    "atlas-rnn": {"pairs": "interleaved", "frequencies": "float32", "position": "restart"},
    "atlas-mag": {"pairs": "halves", "frequencies": "float32", "position": "restart"},
}


def init(config: Config, seed: int = 0, *, dtype: Any = np.float64) -> Params:
    """No parameters (ROTARY-2)."""
    check_count("seed", seed)
    require_floating(dtype)
    return Params()


def start(config: Config, batch: int = 1, *, dtype: Any = np.float64, position: int = 0) -> State:
    """The state before the first token, whose position is 0 unless stated (ROTARY-4)."""
    check_count("batch", batch)
    require_floating(dtype)
    return State(position=position)


def apply(
    config: Config, params: Params, state: State, x: Array, *, reset: Array | None = None
) -> tuple[State, Array]:
    """Turn queries or keys by their positions (ROTARY-1).

    Args:
        x (..., T, d): queries or keys.
        reset (T,): True where a document starts, whose first token has position 0.

    Returns:
        state, y: of the shape of x.

    Raises:
        ValueError: arguments that contradict the settings.
    """
    checks.check_call(__name__, config, (Config, Params, State), params, state)
    check_array("x", x, Dims("..."))
    if len(x.shape) < 2 or x.shape[-1] != config.d or x.shape[-2] == 0:
        raise ValueError(
            f"x: shape {x.shape}, expected (..., T, {config.d}) with at least one token"
        )
    starts = checks.check_reset(reset, x.shape[-2])
    at, after = positions(config, state, x.shape[-2], starts)
    return after, rotated(config, x, *tables(config, at, x))


def positions(
    config: Config, state: State, tokens: int, reset: Any
) -> tuple[np.ndarray[Any, Any], State]:
    """The position of each token of a call, and the state after it (ROTARY-4, ROTARY-5).

    Returns:
        positions (T,), state.
    """
    before = state.position if config.position == "carried" else 0
    starts = checks.document_starts(reset, tokens)
    at = np.arange(tokens) - np.where(starts < 0, -before, starts)
    return at, state.replaced(position=int(at[-1]) + 1)


def frequencies(config: Config) -> np.ndarray[Any, Any]:
    """w_i = base^(-2i/d), i = 0 .. d/2 - 1, in float64 (ROTARY-2)."""
    if not isinstance(config.frequencies, str):
        return np.array(config.frequencies, np.float64)
    if config.frequencies == "exact":
        return np.asarray(config.base ** (-2.0 * np.arange(config.d // 2) / config.d))
    exponents = np.arange(0, config.d, 2, dtype=np.float32) / np.float32(config.d)
    return (np.float32(1.0) / np.float32(config.base) ** exponents).astype(np.float64)


def tables(config: Config, at: Any, like: Array, scale: float = 1.0) -> tuple[Array, Array]:
    """Cosines and sines of the angles, from float64, in the precision and backend of `like`.

    Source: ROTARY-3.

    Returns:
        cos, sin (T, d/2), each times `scale`.
    """
    angles = np.asarray(at, np.float64)[:, None] * frequencies(config)
    place, kind = backend.of(like).from_host, precision(like)
    return (
        place((np.cos(angles) * scale).astype(kind)),
        place((np.sin(angles) * scale).astype(kind)),
    )


def rotated(config: Config, x: Array, cos: Array, sin: Array) -> Array:
    """The rotation itself, in tape ops, on arguments that were checked (ROTARY-1, ROTARY-6).

    Args:
        x (..., T, d): queries or keys.
        cos (T, d/2), sin (T, d/2): of the angles.
    """
    half = config.d // 2
    if config.pairs == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        turned = ops.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return ops.reshape(turned, x.shape)
    a, b = x[..., :half], x[..., half:]
    return ops.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
