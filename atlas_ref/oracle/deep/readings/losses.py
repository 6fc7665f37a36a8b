"""Mistakes in the attentional bias of a write: powers, signs, thresholds, shares (DEEPCASE-15).

Source: DEEP-26 to DEEP-29, DEEP-36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.deep import biases
from atlas_ref.oracle.deep.biases import Parts, Touch
from atlas_ref.oracle.deep.readings.backward import fixed_inputs, full
from atlas_ref.oracle.deep.readings.conditions import both, holds, several, tokens, writes
from atlas_ref.oracle.deep.readings.reading import Inputs, Reading, Seen, with_parts
from atlas_ref.oracle.deep.readings.tokens import changed, ignored, late
from atlas_ref.oracle.deep.settings import Settings
from atlas_ref.types import Array
from tape import ops


def _loss(*kinds: str) -> Callable[[Seen], bool]:
    """A bias of these kinds, of which something is written."""
    return lambda at: at.s.bias.kind in kinds and writes(at)


def _of_norm(at: Seen) -> bool:
    """A threshold of the norm of an error."""
    return at.s.bias.kind == "huber" and at.s.bias.form != "coordinate" and writes(at)


def _smooth(at: Seen) -> bool:
    """A sign of entries with a derivative."""
    return bool(at.s.bias.smooths) and at.s.bias.smoothing != "none"


def _modulus(bias: Any, e: Array) -> Array:
    size = ops.sqrt(e * e + (0.0 if bias.smoothing == "none" else bias.eps))
    return ops.where(ops.equal(e, 0.0), 0.0, size) if bias.smoothing == "none" else size


def _higher(bias: Any, touch: Touch, e: Array, parts: Parts) -> Array:
    return biases.of_power(bias, touch, e, parts) * _modulus(bias, e)


def _without_power(bias: Any, touch: Touch, e: Array, parts: Parts) -> Array:
    return biases.of_power(bias, touch, e, parts) / bias.power


def _of_square(e: Array, length: Array | None, d: Any) -> Array:
    if length is None:  # of each entry, beside a reading that has a threshold of entries
        return biases.beyond(e * e, None, d)
    return biases.beyond(e, length * length, d)


def _of_largest(e: Array, length: Array, d: Any) -> Array:
    beyond = ops.astype(biases.beyond(e, None, d), e.dtype)
    return ops.greater(ops.sum(beyond, axis=-1, keepdims=True), 0.0)


def _exchanged(e: Array, length: Array | None, d: Any) -> Array:
    return ~biases.beyond(e, length, d)


def _held_sign(bias: Any, touch: Touch, e: Array) -> Array:
    return ops.stop_gradient(biases.sign(bias, touch, e))


def _last_threshold(inputs: Inputs, s: Settings) -> Inputs:
    """The threshold of a chunk's last token at every token of the chunk."""
    own = inputs["in/threshold"]
    count = own.shape[-1]
    lasts = [min(count - 1, t - t % s.chunk + s.chunk - 1) for t in range(count)]
    return {**inputs, "in/threshold": ops.stack([own[..., t] for t in lasts], axis=-1)}


LOSSES: tuple[Reading, ...] = (
    Reading(
        "power of the error not lowered",
        "the slope of |e|^p had the power p in place of p - 1",
        made_in=_loss("lp"),
        settings=with_parts(power=_higher),
    ),
    Reading(
        "power left out of the slope",
        "the slope of |e|^p had no factor p",
        made_in=_loss("lp"),
        settings=with_parts(power=_without_power),
    ),
    Reading(
        "threshold left out of the slope",
        "the slope beyond the threshold were not multiplied by it",
        made_in=_loss("huber"),
        settings=with_parts(line=lambda direction, d: direction),
    ),
    Reading(
        "branches of the threshold exchanged",
        "the parabola stood beyond the threshold and the line within it",
        made_in=_loss("huber"),
        settings=with_parts(far=_exchanged),
    ),
    Reading(
        "threshold of the squared norm",
        "the squared norm of an error were held against the threshold",
        made_in=_of_norm,
        settings=with_parts(far=_of_square),
    ),
    Reading(
        "threshold of the largest entry",
        "the largest entry of an error were held against the threshold of its norm",
        made_in=_of_norm,
        settings=with_parts(far=_of_largest),
    ),
    Reading(
        "threshold ignored",
        "tokens brought no threshold",
        made_in=holds("in/threshold"),
        inputs=ignored("in/threshold", "in/state/thresholds"),
    ),
    Reading(
        "threshold of the token before",
        "thresholds were one token late",
        made_in=both(holds("in/threshold"), tokens),
        inputs=changed("in/threshold", late(-1)),
    ),
    Reading(
        "threshold of the last token",
        "all tokens of a chunk had the threshold of its last",
        made_in=both(holds("in/threshold"), several),
        inputs=_last_threshold,
    ),
    Reading(
        "thresholds from before ignored",
        "tokens from before had the threshold of the settings",
        made_in=lambda at: (
            "in/state/thresholds" in at.inputs
            and any(row < 0 for each in at.plan.writes for row in each.rows)
        ),
        inputs=ignored("in/state/thresholds"),
    ),
    Reading(
        "prediction without its softmax",
        "predictions were held against shares as they are",
        made_in=_loss("kl"),
        settings=with_parts(share=lambda touch, y: y),
    ),
    Reading(
        "sign of the error held fixed",
        "the smooth sign of an error were a constant",
        made_in=lambda at: full(at) and _loss("l1", "lp", "huber")(at) and _smooth(at),
        grad=True,
        settings=with_parts(sign=_held_sign),
    ),
    Reading(
        "norm of the error held fixed",
        "the norm by which an error is divided were a constant",
        made_in=lambda at: full(at) and _of_norm(at) and at.s.bias.form == "norm",
        grad=True,
        settings=with_parts(length=ops.stop_gradient),
    ),
    Reading(
        "threshold held fixed",
        "thresholds had no gradient",
        made_in=both(full, holds("in/threshold")),
        grad=True,
        inputs=fixed_inputs("in/threshold"),
    ),
)
