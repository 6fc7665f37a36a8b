"""Mistakes in the attentional bias of a write: powers, signs, thresholds, shares (DEEPCASE-15).

Source: DEEP-26 to DEEP-29, DEEP-36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas_ref.oracle.deep import biases
from atlas_ref.oracle.deep.biases import Part, Touch
from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.backward import fixed_inputs, full
from atlas_ref.oracle.deep.readings.conditions import holds, several, tokens, writes
from atlas_ref.oracle.deep.readings.tokens import late_gate, of_settings, without_prefix
from atlas_ref.oracle.deep.settings import Settings
from atlas_ref.oracle.program.changes import Inputs, change_tensor
from atlas_ref.oracle.program.hook import behind, by
from atlas_ref.oracle.program.mistakes import both
from atlas_ref.oracle.program.reading import Reading
from atlas_ref.types import Array
from tape import ops


def _loss(*kinds: str) -> Callable[[DeepContext], bool]:
    """A bias of these kinds, of which something is written."""
    return lambda context: context.settings.bias.kind in kinds and writes(context)


def _of_norm(context: DeepContext) -> bool:
    """A threshold of the norm of an error."""
    return (
        context.settings.bias.kind == "huber"
        and context.settings.bias.form != "coordinate"
        and writes(context)
    )


def _smooth(context: DeepContext) -> bool:
    """A sign of entries with a derivative."""
    return bool(context.settings.bias.smooths) and context.settings.bias.smoothing != "none"


def _modulus(bias: Any, e: Array) -> Array:
    size = ops.sqrt(e * e + (0.0 if bias.smoothing == "none" else bias.eps))
    return ops.where(ops.equal(e, 0.0), 0.0, size) if bias.smoothing == "none" else size


def _higher(bias: Any, touch: Touch, e: Array, part: Part) -> Array:
    return biases.of_power(bias, touch, e, part) * _modulus(bias, e)


def _without_power(bias: Any, touch: Touch, e: Array, part: Part) -> Array:
    return biases.of_power(bias, touch, e, part) / bias.power


def _of_square(e: Array, length: Array | None, d: Any) -> Array:
    if length is None:  # of each entry, beside a reading that has a threshold of entries
        return biases.beyond(e * e, None, d)
    return biases.beyond(e, length * length, d)


def _of_largest(e: Array, length: Array, d: Any) -> Array:
    beyond = ops.astype(biases.beyond(e, None, d), e.dtype)
    return ops.greater(ops.sum(beyond, axis=-1, keepdims=True), 0.0)


def _within(e: Array, length: Array | None, d: Any) -> Array:
    return ~biases.beyond(e, length, d)


def _last_threshold(inputs: Inputs, settings: Settings) -> Inputs:
    """The threshold of a chunk's last token at every token of the chunk."""
    own = inputs["in/threshold"]
    count = own.shape[-1]
    lasts = [min(count - 1, t - t % settings.chunk + settings.chunk - 1) for t in range(count)]
    return {**inputs, "in/threshold": ops.stack([own[..., t] for t in lasts], axis=-1)}


LOSSES: tuple[Reading, ...] = (
    Reading(
        "power of the error not lowered",
        "the slope of |e|^p had the power p in place of p - 1",
        matters=_loss("lp"),
        ops={"bias/power": by(_higher)},
    ),
    Reading(
        "power left out of the slope",
        "the slope of |e|^p had no factor p",
        matters=_loss("lp"),
        ops={"bias/power": by(_without_power)},
    ),
    Reading(
        "threshold left out of the slope",
        "the slope beyond the threshold were not multiplied by it",
        matters=_loss("huber"),
        ops={"bias/line": by(lambda direction, d: direction)},
    ),
    Reading(
        "branches of the threshold exchanged",
        "the parabola stood beyond the threshold and the line within it",
        matters=_loss("huber"),
        ops={"bias/far": by(_within)},
    ),
    Reading(
        "threshold of the squared norm",
        "the squared norm of an error were held against the threshold",
        matters=_of_norm,
        ops={"bias/far": by(_of_square)},
    ),
    Reading(
        "threshold of the largest entry",
        "the largest entry of an error were held against the threshold of its norm",
        matters=_of_norm,
        ops={"bias/far": by(_of_largest)},
    ),
    Reading(
        "threshold ignored",
        "tokens brought no threshold",
        matters=holds("in/threshold"),
        inputs=without_prefix("in/threshold", "in/state/thresholds"),
    ),
    Reading(
        "threshold of the token before",
        "thresholds were one token late",
        matters=both(holds("in/threshold"), tokens),
        inputs=change_tensor("in/threshold", late_gate),
    ),
    Reading(
        "threshold of the last token",
        "all tokens of a chunk had the threshold of its last",
        matters=both(holds("in/threshold"), several),
        around=of_settings(_last_threshold),
    ),
    Reading(
        "thresholds from before ignored",
        "tokens from before had the threshold of the settings",
        matters=lambda context: (
            "in/state/thresholds" in context.inputs
            and any(row < 0 for each in context.plan.writes for row in each.rows)
        ),
        inputs=without_prefix("in/state/thresholds"),
    ),
    Reading(
        "prediction without its softmax",
        "predictions were held against shares as they are",
        matters=_loss("kl"),
        ops={"bias/share": by(lambda touch, y: y)},
    ),
    Reading(
        "sign of the error held fixed",
        "the smooth sign of an error were a constant",
        matters=lambda context: (
            full(context) and _loss("l1", "lp", "huber")(context) and _smooth(context)
        ),
        grad=True,
        ops={"bias/sign": behind(ops.stop_gradient)},
    ),
    Reading(
        "norm of the error held fixed",
        "the norm by which an error is divided were a constant",
        matters=lambda context: (
            full(context) and _of_norm(context) and context.settings.bias.form == "norm"
        ),
        grad=True,
        ops={"bias/length": behind(ops.stop_gradient)},
    ),
    Reading(
        "threshold held fixed",
        "thresholds had no gradient",
        matters=both(full, holds("in/threshold")),
        grad=True,
        inputs=fixed_inputs("in/threshold"),
    ),
)
