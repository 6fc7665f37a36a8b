"""Mistakes about chunks, windows, documents and the state of a deep memory (DEEPCASE-15)."""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.oracle.deep.context import DeepContext
from atlas_ref.oracle.deep.readings.conditions import (
    chunks,
    documents,
    later,
    rows,
    sees_first_reference,
    sees_first_weights,
    several,
    silent,
)
from atlas_ref.oracle.deep.readings.tokens import of_first_row, without_prefix
from atlas_ref.oracle.deep.schedule import Begin, Event, Plan, Read, Refresh, Write
from atlas_ref.oracle.program.changes import Inputs
from atlas_ref.oracle.program.reading import Reading, Wrap
from tape import ops

#: Other events of a call, from those of the rule.
Moved = Callable[[Plan, DeepContext], Plan]


def _flip_history(inputs: Inputs) -> Inputs:
    axes = {"in/state/keys": -2, "in/state/values": -2, "in/state/token_gates": -1}
    return {n: ops.flip(x, axes[n]) if n in axes else x for n, x in inputs.items()}


def events_by(change: Moved) -> dict[str, Wrap]:
    """Other events of the call."""
    return {"events": lambda op, plan: change(op(plan), op.context)}


def _each_write(change: Callable[[Write, DeepContext], Write]) -> Moved:
    def events(plan: Plan, context: DeepContext) -> Plan:
        moved = (change(e, context) if isinstance(e, Write) else e for e in plan.events)
        return plan._replace(events=tuple(moved))

    return events


def _of_first_token(event: Write, context: DeepContext) -> Write:
    return event._replace(token=max(0, event.token - context.settings.chunk + 1))


def _of_token_before(event: Write, context: DeepContext) -> Write:
    return event._replace(token=max(0, event.token - 1))


def _without_newest(event: Write, context: DeepContext) -> Write:
    return event._replace(rows=event.rows[1:] or event.rows)


def _of_chunk(event: Write, context: DeepContext) -> Write:
    return event._replace(rows=event.rows[: context.settings.chunk])


def _of_active(event: Write, context: DeepContext) -> Write:
    active = context.inputs["in/active"]
    kept = tuple(row for row in event.rows if row < 0 or active[row])
    whole = kept == tuple(range(kept[0], kept[0] - len(kept), -1)) if kept else False
    return event._replace(rows=kept if whole else event.rows[:1])


def _across(plan: Plan, context: DeepContext) -> Plan:
    """Windows that hold tokens of earlier documents."""

    def longer(event: Write) -> Write:
        newest = event.rows[0]
        oldest = max(-context.before, newest - context.settings.window + 1)
        return event._replace(rows=tuple(range(newest, oldest - 1, -1)))

    return plan._replace(
        events=tuple(longer(e) if isinstance(e, Write) else e for e in plan.events)
    )


def _write_late(plan: Plan, context: DeepContext) -> Plan:
    """Each write behind the reads of the chunk that follows it."""
    moved: list[Event] = []
    waiting: list[Event] = []
    for event in plan.events:
        if isinstance(event, Write):
            moved += waiting
            waiting = [event]
        elif isinstance(event, Begin):
            moved += [*waiting, event]
            waiting = []
        else:
            moved.append(event)
    return plan._replace(events=(*moved, *waiting))


def _write_early(plan: Plan, context: DeepContext) -> Plan:
    """Each write before the reads of its own chunk."""
    moved: list[Event] = []
    for event in plan.events:
        place = len(moved)
        if isinstance(event, Write):
            while place and isinstance(moved[place - 1], Read):
                place -= 1
        moved.insert(place, event)
    return plan._replace(events=tuple(moved))


def _first_refresh_alone(plan: Plan, context: DeepContext) -> Plan:
    first = next((i for i, e in enumerate(plan.events) if isinstance(e, Refresh)), None)
    return plan._replace(
        events=tuple(
            e for i, e in enumerate(plan.events) if not isinstance(e, Refresh) or i == first
        )
    )


def _kept_at_starts(*, memory: bool, momentum: bool) -> Moved:
    """Starts of documents at which weights or momentum stay."""

    def events(plan: Plan, context: DeepContext) -> Plan:
        moved = (
            Begin(e.memory and not memory, e.momentum and not momentum)
            if isinstance(e, Begin)
            else e
            for e in plan.events
        )
        return plan._replace(events=tuple(moved))

    return events


def _sees_first_momentum(context: DeepContext) -> bool:
    """Whether the first write sees the momentum from before."""
    if not context.begins("in/state/momentum/"):
        return False
    for event in context.plan.events:
        if isinstance(event, Begin) and event.momentum:
            return False
        if isinstance(event, Write):
            return True
    return False


EVENTS: tuple[Reading, ...] = (
    Reading(
        "gates of the token before the last",
        "a write had the gates of the token before its last",
        matters=chunks,
        ops=events_by(_each_write(_of_token_before)),
    ),
    Reading(
        "gates of the first token",
        "a write had the gates of the first token of its chunk",
        matters=chunks,
        ops=events_by(_each_write(_of_first_token)),
    ),
    Reading(
        "window without its newest",
        "a window ended before the newest token",
        matters=several,
        ops=events_by(_each_write(_without_newest)),
    ),
    Reading(
        "window of the chunk",
        "a write looked at its own chunk alone",
        matters=lambda context: any(
            len(each.rows) > context.settings.chunk for each in context.plan.writes
        ),
        ops=events_by(_each_write(_of_chunk)),
    ),
    Reading(
        "writes a chunk late",
        "a write were seen one chunk late",
        matters=lambda context: len(context.plan.writes) > 1,
        ops=events_by(_write_late),
    ),
    Reading(
        "writes seen by their chunk",
        "all tokens of a chunk saw its write",
        matters=lambda context: chunks(context) and context.settings.c.read in ("after", "before"),
        ops=events_by(_write_early),
    ),
    Reading(
        "reference never refreshed",
        "the reference stayed",
        matters=lambda context: sum(isinstance(e, Refresh) for e in context.plan.events) > 1,
        ops=events_by(_first_refresh_alone),
    ),
    Reading(
        "in/active ignored",
        "in/active were ignored",
        matters=silent,
        inputs=without_prefix("in/active"),
    ),
    Reading(
        "silent tokens left out of the window",
        "silent tokens did not enter the window",
        matters=lambda context: (
            "in/active" in context.inputs
            and any(
                row >= 0 and not context.inputs["in/active"][row]
                for each in context.plan.writes
                for row in each.rows
            )
        ),
        ops=events_by(_each_write(_of_active)),
    ),
    Reading(
        "in/reset ignored",
        "in/reset were ignored",
        matters=later,
        inputs=without_prefix("in/reset"),
    ),
    Reading(
        "window across documents",
        "a window held tokens of the document before",
        matters=lambda context: (
            later(context) and _across(context.plan, context).events != context.plan.events
        ),
        ops=events_by(_across),
    ),
    Reading(
        "weights kept at starts",
        "documents began with the weights before",
        matters=lambda context: later(context) and context.settings.memory_reset != "never",
        ops=events_by(_kept_at_starts(memory=True, momentum=False)),
    ),
    Reading(
        "momentum kept at starts",
        "documents began with the momentum before",
        matters=lambda context: (
            later(context)
            and context.settings.momentum_reset != "never"
            and "in/momentum" in context.inputs
        ),
        ops=events_by(_kept_at_starts(memory=False, momentum=True)),
    ),
    Reading(
        "chunks across documents",
        "a document did not begin a chunk",
        matters=lambda context: (
            documents(context)
            and context._replace(settings=context.settings.replaced(restarts=False)).plan.events
            != context.plan.events
        ),
        settings={"restarts": False},
    ),
    Reading(
        "tokens from before ignored",
        "the window began empty",
        matters=lambda context: any(row < 0 for each in context.plan.writes for row in each.rows),
        inputs=without_prefix("in/state/keys", "in/state/values", "in/state/token_gates"),
    ),
    Reading(
        "tokens from before reversed",
        "tokens from before stood newest first",
        matters=lambda context: (
            context.before > 1 and any(row < 0 for each in context.plan.writes for row in each.rows)
        ),
        inputs=_flip_history,
    ),
    Reading(
        "position ignored",
        "chunks were counted from the first token of the call",
        matters=lambda context: (
            int(context.inputs.get("in/state/position", 0)) % context.settings.chunk != 0
            and context.settings.writes
        ),
        inputs=without_prefix("in/state/position"),
    ),
    Reading(
        "weights from before ignored",
        "in/state/weights were ignored",
        matters=sees_first_weights,
        inputs=without_prefix("in/state/weights/"),
    ),
    Reading(
        "momentum from before ignored",
        "in/state/momentum were ignored",
        matters=_sees_first_momentum,
        inputs=without_prefix("in/state/momentum/"),
    ),
    Reading(
        "reference from before ignored",
        "in/state/reference were ignored",
        matters=sees_first_reference,
        inputs=without_prefix("in/state/reference/"),
    ),
    Reading(
        "weights of the first row",
        "all rows went on from the weights of the first",
        matters=lambda context: (
            rows(context) and not context.settings.shares_memory and sees_first_weights(context)
        ),
        inputs=of_first_row("in/state/weights/"),
    ),
)
