"""Mistakes in the retention of a write: soft thresholds, spheres, simplices, links (DEEPCASE-15).

Source: DEEP-30 to DEEP-33, DEEP-39.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.deep import retentions
from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.backward import full
from atlas_ref.oracle.deep.readings.conditions import again, writes
from atlas_ref.oracle.deep.readings.events import events_by
from atlas_ref.oracle.deep.retentions import Touch
from atlas_ref.oracle.deep.schedule import Event, Plan, Refresh, Write
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.oracle.program.hook import by
from atlas_ref.oracle.program.mistakes import both
from atlas_ref.oracle.program.reading import Reading, Wrap
from atlas_ref.types import Array
from tape import ops

Weights = Mapping[str, Array]


def _keeps(*kinds: str) -> Callable[[DeepContext], bool]:
    """A retention of these kinds of some matrix that is written."""
    return lambda context: (
        context.settings.retention.kind in kinds and _matrices(context) > 0 and writes(context)
    )


def _matrices(context: DeepContext) -> int:
    return sum(rank(name) == 2 for name in context.settings.fast)


def _without_retention(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return moved


def _as_they_are(kind: Any, touch: Touch, weights: Weights) -> dict[str, Array]:
    return dict(weights)


def _of_kind(kind: str, compute: Callable[..., Any]) -> Wrap:
    """Another function for a retention of this kind."""
    return lambda op, own, *each: op.by(compute if own.kind == kind else op.compute, own, *each)


def _of_matrices(
    change: Callable[[Any, Touch, Array], Array],
) -> Callable[[Any, Touch, Weights], dict[str, Array]]:
    """A function of every matrix."""
    return lambda kind, touch, weights: {
        name: change(kind, touch, x) if rank(name) == 2 else x for name, x in weights.items()
    }


# -- soft thresholds -------------------------------------------------------------------------------


def _soft(kind: Any, touch: Touch, W: Array) -> Array:
    return retentions.soft(kind, W)


def _soft_after(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.soft(kind, moved)


def _hard(kind: Any, moved: Array) -> Array:
    return ops.where(ops.equal(retentions.soft(kind, moved), 0.0), 0.0, moved)


def _hard_after(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return _hard(kind, moved)


def _hard_link(kind: Any, touch: Touch, A: Array) -> Array:
    return _hard(kind, A)


# -- spheres and simplices -------------------------------------------------------------------------


def _by_square(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.on_sphere(kind, touch, moved, lambda size: size * size)


def _by_constant(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.on_sphere(kind, touch, moved, ops.stop_gradient)


def _powers(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    alive = ops.greater(W, 0.0)
    return ops.where(alive, touch(ops.exp(ops.where(alive, moved, 0.0))), 0.0) * kind.size


def _revive(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.after(kind, touch, ops.ones_like(W), moved)


def _has_empty(context: DeepContext) -> bool:
    """Weights of 0 among first ones."""
    names = [name for name in context.settings.fast if rank(name) == 2]
    return any((context.inputs[f"in/memory/{name}"] == 0.0).any() for name in names)


# -- links -----------------------------------------------------------------------------------------


def _by_sum(kind: Any, touch: Touch, A: Array) -> Array:
    return retentions.link(kind, touch, A, lambda divisor, total, p: ops.power(total, p - 2.0))


def _by_constant_divisor(kind: Any, touch: Touch, A: Array) -> Array:
    return retentions.link(kind, touch, A, lambda divisor, total, p: ops.stop_gradient(divisor))


# -- lag tokens ------------------------------------------------------------------------------------


def _lags(context: DeepContext) -> bool:
    """Spans with a lag token and other writes."""
    return context.settings.retention.lag and any(not each.first for each in context.plan.writes)


def _places(context: DeepContext) -> list[int]:
    """Tokens of the document up to each token of the call, with it."""
    reset = context.inputs.get("in/reset")
    position, places = int(context.inputs.get("in/state/position", 0)), []
    for t in range(context.tokens):
        position = 1 if reset is not None and reset[t] else position + 1
        places.append(position)
    return places


def _without_refresh(plan: Plan) -> list[Event]:
    """Events without the refresh behind each lag token."""
    before: list[Event | None] = [None, *plan.events[:-1]]
    return [
        each
        for each, last in zip(plan.events, before, strict=True)
        if not (isinstance(each, Refresh) and isinstance(last, Write) and last.first)
    ]


def _keep_reference(plan: Plan, context: DeepContext) -> Plan:
    return plan._replace(events=tuple(_without_refresh(plan)))


def _lag_at_end(plan: Plan, context: DeepContext) -> Plan:
    """The last write of each span in the place of the first."""
    places, moved = _places(context), list[Event]()
    for event in _without_refresh(plan):
        if not isinstance(event, Write):
            moved.append(event)
            continue
        last = places[event.token] % context.settings.span == 0
        moved += [event._replace(first=last), *([Refresh()] if last else [])]
    return plan._replace(events=tuple(moved))


RETAINED: tuple[Reading, ...] = (
    Reading(
        "soft threshold before the decay",
        "weights lost the threshold before their decay and step, not behind them",
        matters=both(_keeps("elastic_net"), again),
        ops={"retention/before": by(_soft), "retention/after": by(_without_retention)},
    ),
    Reading(
        "hard threshold",
        "entries above the threshold stayed as they are",
        matters=_keeps("elastic_net", "ftrl"),
        ops={
            "retention/after": _of_kind("elastic_net", _hard_after),
            "retention/seen": _of_kind("ftrl", _of_matrices(_hard_link)),
        },
    ),
    Reading(
        "threshold carried by writes",
        "writes carried on what the threshold left",
        matters=both(_keeps("ftrl"), again),
        ops={"retention/after": by(_soft_after), "retention/seen": by(_as_they_are)},
    ),
    Reading(
        "projection at the reads alone",
        "writes carried on and looked at weights beside the sphere",
        matters=both(_keeps("sphere"), again),
        ops={
            "retention/after": by(_without_retention),
            "retention/read": by(_of_matrices(retentions.on_sphere)),
        },
    ),
    Reading(
        "projection before the step",
        "a write projected the weights before it, not those behind it",
        matters=_keeps("sphere"),
        ops={
            "retention/before": by(retentions.on_sphere),
            "retention/after": by(_without_retention),
        },
    ),
    Reading(
        "squared norm of the sphere",
        "weights were divided by their squared norm",
        matters=_keeps("sphere"),
        ops={"retention/after": by(_by_square)},
    ),
    Reading(
        "softmax without its sum",
        "powers of weights were not divided by their sum",
        matters=_keeps("kl"),
        ops={"retention/after": by(_powers)},
    ),
    Reading(
        "weights without their logarithm",
        "a softmax had the weights in place of their logarithms",
        matters=_keeps("kl"),
        ops={"retention/before": by(lambda kind, touch, W: W)},
    ),
    Reading(
        "weights of 0 come back",
        "weights of 0 had a share of the softmax",
        matters=lambda context: _keeps("kl")(context) and _has_empty(context),
        ops={"retention/after": by(_revive)},
    ),
    Reading(
        "reads without the link",
        "reads saw what the writes carry on",
        matters=_keeps("ftrl", "lq"),
        ops={"retention/read": by(_as_they_are)},
    ),
    Reading(
        "gradients without the link",
        "gradients of writes were taken at what the writes carry on",
        matters=_keeps("ftrl", "lq"),
        ops={
            "retention/seen": by(_as_they_are),
            "retention/read": by(retentions.weights_of_function),
        },
    ),
    Reading(
        "norm of the link without its root",
        "the link had the sum of powers in place of the norm",
        matters=lambda context: _keeps("lq")(context) and context.settings.retention.power != 2.0,
        ops={"retention/seen": by(_of_matrices(_by_sum))},
    ),
    Reading(
        "lag token at the end of its span",
        "the last write of a span had the logarithms and refreshed the reference",
        matters=_lags,
        ops=events_by(_lag_at_end),
    ),
    Reading(
        "reference before the lag token",
        "the reference were not refreshed behind the first write of a span",
        matters=_lags,
        ops=events_by(_keep_reference),
    ),
    Reading(
        "norm of the sphere held fixed",
        "the norm by which weights are divided were a constant",
        matters=lambda context: full(context) and _keeps("sphere")(context),
        grad=True,
        ops={"retention/after": by(_by_constant)},
    ),
    Reading(
        "norm of the link held fixed",
        "the norm of a link were a constant",
        matters=lambda context: (
            full(context) and _keeps("lq")(context) and context.settings.retention.power != 2.0
        ),
        grad=True,
        ops={"retention/seen": by(_of_matrices(_by_constant_divisor))},
    ),
)
