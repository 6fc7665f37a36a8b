"""The next token from logits: the largest, or one drawn after filters.

    p = softmax(z),    z_i = -inf where p_i < min_p max p or i is not among the top_k largest
                       or larger ones have at least top_p of the probability
    next = argmax(z / temperature + gumbel),    gumbel = -log(-log u)

Specified in specs/language_model.md (MODEL-8, MODEL-17).
"""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

import numpy as np

from atlas_ref import backend
from atlas_ref.types import Array

#: Least value of u and of -log u, so that no logarithm overflows (MODEL-8).
FLOOR = 1e-20


def next_tokens(
    logits: Array,
    uniform: Array | None = None,
    *,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    order: Literal["min_p_first", "temperature_first"] = "min_p_first",
) -> np.ndarray[Any, Any]:
    """One token for each row of logits (MODEL-8).

    Args:
        logits (..., V): before the softmax.
        uniform (..., V): numbers in [0, 1); needed unless the temperature is 0 or less.
        temperature: 0 or less takes the largest logit, the first of equal ones.
        min_p: part of the largest probability below which a token is never drawn, 0 to 1.
        top_k: number of the largest logits of which one is drawn; None for all.
        top_p: probability that the most likely tokens of which one is drawn have together (MODEL-17).
        order: whether the filters see probabilities before or after the temperature.

    Returns:
        ids (...), whole numbers.

    Raises:
        ValueError: a setting outside its range, no numbers to draw with, or a row whose largest
            logit is not finite.
    """
    check_settings(temperature, min_p, top_k, top_p)
    if order not in ("min_p_first", "temperature_first"):
        raise ValueError(f"order: {order!r}, expected min_p_first or temperature_first")
    z = np.asarray(backend.host(logits))
    top = z.max(axis=-1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError("logits: the largest of each row must be finite")
    if temperature <= 0:
        return np.asarray(np.argmax(z, axis=-1))
    if uniform is None or np.shape(uniform) != z.shape:
        found = "none" if uniform is None else f"shape {np.shape(uniform)}"
        raise ValueError(f"uniform: {found}, expected numbers of shape {z.shape}")
    with np.errstate(over="ignore"):  # at a tiny temperature all but the largest are -inf
        scaled = np.asarray(z - top, np.float64) / temperature
    seen = scaled if order == "temperature_first" else z
    kept = kept_tokens(seen, min_p=min_p, top_k=top_k, top_p=top_p)
    u = np.maximum(check_uniform("uniform", uniform), FLOOR)
    noise = -np.log(np.maximum(-np.log(u), FLOOR))
    return np.asarray(np.argmax(np.where(kept, scaled + noise, -np.inf), axis=-1))


def kept_tokens(
    logits: Array, *, min_p: float = 0.0, top_k: int | None = None, top_p: float = 1.0
) -> Array:
    """Plain booleans (..., V): tokens that the filters leave; the largest is one of them (MODEL-8,
    MODEL-17).
    """
    z = np.asarray(backend.host(logits))
    top = z.max(axis=-1, keepdims=True)
    kept = np.exp(z - top) >= min_p  # softmax over its largest value
    if top_k is not None and top_k < z.shape[-1]:
        least = np.partition(z, -top_k, axis=-1)[..., -top_k, None]
        kept = kept & (z >= least)
    if top_p < 1.0:
        kept = kept & (_probability_above(z) < top_p)
    return np.asarray(kept)


def _probability_above(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sum of the probabilities of all larger logits of each one (..., V), which equal ones share
    (MODEL-17).
    """
    order = np.argsort(-z, axis=-1, kind="stable")
    falling = np.take_along_axis(np.asarray(z, np.float64), order, axis=-1)
    p = np.exp(falling - falling[..., :1])
    p /= p.sum(axis=-1, keepdims=True)
    before = np.cumsum(p, axis=-1) - p
    # equal logits begin where the first of them does
    first = np.ones(falling.shape, bool)
    first[..., 1:] = falling[..., 1:] < falling[..., :-1]
    place = np.maximum.accumulate(np.where(first, np.arange(z.shape[-1]), 0), axis=-1)
    above = np.empty_like(p)
    np.put_along_axis(above, order, np.take_along_axis(before, place, axis=-1), axis=-1)
    return above


def check_settings(temperature: float, min_p: float, top_k: int | None, top_p: float = 1.0) -> None:
    """Refuse settings outside their ranges (MODEL-8, MODEL-17).

    Raises:
        ValueError: names the setting, what was found and its range.
    """
    if not _is_number(temperature) or not np.isfinite(temperature):
        raise ValueError(f"temperature: {temperature!r}, expected a finite number")
    if not _is_number(min_p) or not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p: {min_p!r}, expected 0 to 1")
    if not _is_number(top_p) or not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p: {top_p!r}, expected more than 0, up to 1")
    if top_k is not None and (
        isinstance(top_k, bool) or not isinstance(top_k, int | np.integer) or top_k < 1
    ):
        raise ValueError(f"top_k: {top_k!r}, expected a whole number of at least 1")


def check_uniform(name: str, numbers: Any) -> np.ndarray[Any, Any]:
    """Numbers to draw with, on the host (MODEL-8).

    Raises:
        ValueError: one that does not lie in 0 to 1.
    """
    u = np.asarray(backend.host(numbers))
    if not bool(((u >= 0.0) & (u <= 1.0)).all()):
        raise ValueError(f"{name}: every number must lie in 0 to 1")
    return u


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
