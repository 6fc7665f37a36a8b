"""Checks of a layer's call before its first token: tokens, parameters and state must agree.

Checked once per call. Specified in specs/norm.md (NORM-2).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from atlas_ref.rules.checks import precision
from atlas_ref.types import Array, Dims, check_array


def check_call(
    module: str, config: Any, kinds: tuple[Any, Any, Any], params: Any, state: Any
) -> None:
    """Refuse settings, parameters or a state of another layer (NORM-2).

    Args:
        kinds: the layer's `Config`, `Params`, `State`.

    Raises:
        ValueError: what was found and what is needed.
    """
    for name, kind, value in zip(
        ("config", "params", "state"), kinds, (config, params, state), strict=True
    ):
        if not isinstance(value, kind):
            raise ValueError(
                f"{name}: {type(value).__module__}.{type(value).__qualname__}, expected "
                f"{module}.{kind.__qualname__}"
            )


def check_residual(level: Any) -> None:
    """Refuse a level whose residual is learned: a layer has no tensor for it (SURROGATE-7).

    Raises:
        ValueError: names the reference, and what computes it.
    """
    if level.rule.learns_residual(level.config):
        raise ValueError(
            f"levels: {level.rule.name}: reference surrogate is that of a rule or of a block of "
            "levels, a memory layer has no W_surrogate"
        )


@contextlib.contextmanager
def within(part: str) -> Iterator[None]:
    """Name what a part of a block or model refuses by its path from the whole (NORM-2).

    Args:
        part: path of the part, such as attention or blocks.1.

    Raises:
        ValueError: params.W_out of the part as params.PART.W_out.
    """
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise ValueError(_placed(part, str(error))) from None


def _placed(part: str, message: str) -> str:
    if found := re.match(r"(config|params|state)(?=[.:])", message):
        return f"{found[0]}.{part}{message[found.end() :]}"
    if found := re.match(r"x(?: of ([\w.]+))?:", message):
        return f"x of {part}{'.' + found[1] if found[1] else ''}:{message[found.end() :]}"
    return message


def check_tokens(x: Any, d_model: int) -> None:
    """Refuse tokens of another shape than (batch, tokens, d_model), or without a token (NORM-2).

    Raises:
        ValueError: the shape, and what is needed.
    """
    check_array("x", x, Dims("..."))
    if len(x.shape) != 3 or x.shape[-1] != d_model or x.shape[-2] == 0:
        raise ValueError(
            f"x: shape {x.shape}, expected (batch, tokens, {d_model}) with at least one token"
        )


def check_precision(x: Array, arrays: dict[str, Any], of: str = "x") -> None:
    """Refuse parameters or a state in another precision than the tokens (NORM-2).

    Args:
        of: what the tokens are called.

    Raises:
        ValueError: names the array and both precisions.
    """
    for name, array in arrays.items():
        if array is not None and precision(array) != precision(x):
            raise ValueError(
                f"{name}: {precision(array)}, but {of} is {precision(x)}; cast them to one "
                "precision (init and start take dtype)"
            )


def check_shape(name: str, array: Any, expected: tuple[int, ...], axes: str) -> None:
    """Refuse an array whose shape contradicts the settings (NORM-2).

    Raises:
        ValueError: names the array, both shapes and the axes.
    """
    if array.shape != expected:
        raise ValueError(f"{name}: shape {array.shape}, expected {expected}: {axes}")


def check_presence(name: str, value: Any, needed: bool, but: str) -> None:
    """Refuse a part that is missing though needed, or present though not (NORM-2).

    Args:
        but: what the settings say of it.

    Raises:
        ValueError: names the part, and what the settings say.
    """
    if (value is not None) != needed:
        raise ValueError(f"{name}: {'missing' if needed else 'present'}, but {but}")


def check_reset(reset: Any, tokens: int) -> np.ndarray[Any, Any] | None:
    """The mask of document starts, None where there is none (NORM-2).

    Raises:
        ValueError: another dtype than bool, or another shape than (tokens,).
    """
    if reset is None:
        return None
    mask = np.asarray(reset)
    if mask.shape != (tokens,) or mask.dtype != np.bool_:
        raise ValueError(
            f"reset: {mask.dtype} of shape {mask.shape}, expected bool of shape ({tokens},)"
        )
    return mask if mask.any() else None


def document_starts(reset: np.ndarray[Any, Any] | None, tokens: int) -> np.ndarray[Any, Any]:
    """For each token the first one of its document within the call, -1 for one before it.

    Source: NORM-2.
    """
    if reset is None:
        return np.full(tokens, -1)
    return np.maximum.accumulate(np.where(reset, np.arange(tokens), -1))
