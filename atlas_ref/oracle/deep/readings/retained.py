"""Mistakes in the retention of a write: soft thresholds, spheres, simplices, links (DEEPCASE-15).

Source: DEEP-30 to DEEP-33, DEEP-39.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from atlas_ref.oracle.deep import retentions
from atlas_ref.oracle.deep.readings.backward import full
from atlas_ref.oracle.deep.readings.conditions import again, both, writes
from atlas_ref.oracle.deep.readings.reading import Reading, Seen, with_parts
from atlas_ref.oracle.deep.retentions import Touch
from atlas_ref.oracle.deep.schedule import Event, Plan, Refresh, Write
from atlas_ref.oracle.deep.settings import rank
from atlas_ref.types import Array
from tape import ops

Weights = Mapping[str, Array]


def _keeps(*kinds: str) -> Callable[[Seen], bool]:
    """A retention of these kinds of some matrix that is written."""
    return lambda at: at.s.retention.kind in kinds and _matrices(at) > 0 and writes(at)


def _matrices(at: Seen) -> int:
    return sum(rank(name) == 2 for name in at.s.fast)


def _as_moved(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return moved


def _as_they_are(kind: Any, touch: Touch, weights: Weights) -> dict[str, Array]:
    return dict(weights)


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


def _hard_seen(kind: Any, touch: Touch, A: Array) -> Array:
    return _hard(kind, A)


# -- spheres and simplices -------------------------------------------------------------------------


def _by_square(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.on_sphere(kind, touch, moved, lambda size: size * size)


def _by_constant(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.on_sphere(kind, touch, moved, ops.stop_gradient)


def _powers(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    alive = ops.greater(W, 0.0)
    return ops.where(alive, touch(ops.exp(ops.where(alive, moved, 0.0))), 0.0) * kind.size


def _revived(kind: Any, touch: Touch, W: Array, moved: Array) -> Array:
    return retentions.after(kind, touch, ops.ones_like(W), moved)


def _has_empty(at: Seen) -> bool:
    """Weights of 0 among first ones."""
    names = [name for name in at.s.fast if rank(name) == 2]
    return any((at.inputs[f"in/memory/{name}"] == 0.0).any() for name in names)


# -- links -----------------------------------------------------------------------------------------


def _by_sum(kind: Any, touch: Touch, A: Array) -> Array:
    return retentions.linked(kind, touch, A, lambda divisor, total, p: ops.power(total, p - 2.0))


def _by_held(kind: Any, touch: Touch, A: Array) -> Array:
    return retentions.linked(kind, touch, A, lambda divisor, total, p: ops.stop_gradient(divisor))


# -- lag tokens ------------------------------------------------------------------------------------


def _lags(at: Seen) -> bool:
    """Spans with a lag token and other writes."""
    return at.s.retention.lag and any(not each.first for each in at.plan.writes)


def _places(at: Seen) -> list[int]:
    """Tokens of the document up to each token of the call, with it."""
    reset = at.inputs.get("in/reset")
    position, places = int(at.inputs.get("in/state/position", 0)), []
    for t in range(at.tokens):
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


def _not_refreshed(plan: Plan, at: Seen) -> Plan:
    return plan._replace(events=tuple(_without_refresh(plan)))


def _lag_at_end(plan: Plan, at: Seen) -> Plan:
    """The last write of each span in the place of the first."""
    places, moved = _places(at), list[Event]()
    for event in _without_refresh(plan):
        if not isinstance(event, Write):
            moved.append(event)
            continue
        last = places[event.token] % at.s.span == 0
        moved += [event._replace(first=last), *([Refresh()] if last else [])]
    return plan._replace(events=tuple(moved))


RETAINED: tuple[Reading, ...] = (
    Reading(
        "soft threshold before the decay",
        "weights lost the threshold before their decay and step, not behind them",
        made_in=both(_keeps("elastic_net"), again),
        settings=with_parts(before=_soft, after=_as_moved),
    ),
    Reading(
        "hard threshold",
        "entries above the threshold stayed as they are",
        made_in=_keeps("elastic_net", "ftrl"),
        settings=lambda s: with_parts(
            **({"after": _hard_after} if s.retention.kind == "elastic_net" else {}),
            **({"seen": _of_matrices(_hard_seen)} if s.retention.kind == "ftrl" else {}),
        )(s),
    ),
    Reading(
        "threshold carried by writes",
        "writes carried on what the threshold left",
        made_in=both(_keeps("ftrl"), again),
        settings=with_parts(after=_soft_after, seen=_as_they_are),
    ),
    Reading(
        "projection at the reads alone",
        "writes carried on and looked at weights beside the sphere",
        made_in=both(_keeps("sphere"), again),
        settings=with_parts(
            after=_as_moved,
            read=_of_matrices(lambda kind, touch, A: retentions.on_sphere(kind, touch, A)),
        ),
    ),
    Reading(
        "projection before the step",
        "a write projected the weights before it, not those behind it",
        made_in=_keeps("sphere"),
        settings=with_parts(before=retentions.on_sphere, after=_as_moved),
    ),
    Reading(
        "squared norm of the sphere",
        "weights were divided by their squared norm",
        made_in=_keeps("sphere"),
        settings=with_parts(after=_by_square),
    ),
    Reading(
        "softmax without its sum",
        "powers of weights were not divided by their sum",
        made_in=_keeps("kl"),
        settings=with_parts(after=_powers),
    ),
    Reading(
        "weights without their logarithm",
        "a softmax had the weights in place of their logarithms",
        made_in=_keeps("kl"),
        settings=with_parts(before=lambda kind, touch, W: W),
    ),
    Reading(
        "weights of 0 come back",
        "weights of 0 had a share of the softmax",
        made_in=lambda at: _keeps("kl")(at) and _has_empty(at),
        settings=with_parts(after=_revived),
    ),
    Reading(
        "reads without the link",
        "reads saw what the writes carry on",
        made_in=_keeps("ftrl", "lq"),
        settings=with_parts(read=_as_they_are),
    ),
    Reading(
        "gradients without the link",
        "gradients of writes were taken at what the writes carry on",
        made_in=_keeps("ftrl", "lq"),
        settings=with_parts(seen=_as_they_are, read=retentions.seen),
    ),
    Reading(
        "norm of the link without its root",
        "the link had the sum of powers in place of the norm",
        made_in=lambda at: _keeps("lq")(at) and at.s.retention.power != 2.0,
        settings=with_parts(seen=_of_matrices(_by_sum)),
    ),
    Reading(
        "lag token at the end of its span",
        "the last write of a span had the logarithms and refreshed the reference",
        made_in=_lags,
        events=_lag_at_end,
    ),
    Reading(
        "reference before the lag token",
        "the reference were not refreshed behind the first write of a span",
        made_in=_lags,
        events=_not_refreshed,
    ),
    Reading(
        "norm of the sphere held fixed",
        "the norm by which weights are divided were a constant",
        made_in=lambda at: full(at) and _keeps("sphere")(at),
        grad=True,
        settings=with_parts(after=_by_constant),
    ),
    Reading(
        "norm of the link held fixed",
        "the norm of a link were a constant",
        made_in=lambda at: full(at) and _keeps("lq")(at) and at.s.retention.power != 2.0,
        grad=True,
        settings=with_parts(seen=_of_matrices(_by_held)),
    ),
)
