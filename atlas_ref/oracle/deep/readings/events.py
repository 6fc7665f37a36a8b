"""Mistakes about chunks, windows, documents and the state of a deep memory (DEEPCASE-15)."""

from __future__ import annotations

from collections.abc import Callable

from atlas_ref.oracle.deep.readings.conditions import (
    chunks,
    documents,
    first_weights_seen,
    later,
    resumed,
    rows,
    several,
    silent,
)
from atlas_ref.oracle.deep.readings.reading import Inputs, Reading, Seen
from atlas_ref.oracle.deep.readings.tokens import ignored, of_first_row
from atlas_ref.oracle.deep.schedule import Begin, Event, Plan, Read, Refresh, Write
from atlas_ref.oracle.deep.settings import Settings
from tape import ops


def _flipped_held(inputs: Inputs, s: Settings) -> Inputs:
    axes = {"in/state/keys": -2, "in/state/values": -2, "in/state/token_gates": -1}
    return {n: ops.flip(x, axes[n]) if n in axes else x for n, x in inputs.items()}


def _each_write(change: Callable[[Write, Seen], Write]) -> Callable[[Plan, Seen], Plan]:
    def events(plan: Plan, at: Seen) -> Plan:
        moved = (change(e, at) if isinstance(e, Write) else e for e in plan.events)
        return plan._replace(events=tuple(moved))

    return events


def _of_first_token(event: Write, at: Seen) -> Write:
    return event._replace(token=max(0, event.token - at.s.chunk + 1))


def _of_token_before(event: Write, at: Seen) -> Write:
    return event._replace(token=max(0, event.token - 1))


def _without_newest(event: Write, at: Seen) -> Write:
    return event._replace(rows=event.rows[1:] or event.rows)


def _of_chunk(event: Write, at: Seen) -> Write:
    return event._replace(rows=event.rows[: at.s.chunk])


def _of_active(event: Write, at: Seen) -> Write:
    active = at.inputs["in/active"]
    kept = tuple(row for row in event.rows if row < 0 or active[row])
    whole = kept == tuple(range(kept[0], kept[0] - len(kept), -1)) if kept else False
    return event._replace(rows=kept if whole else event.rows[:1])


def _across(plan: Plan, at: Seen) -> Plan:
    """Windows that hold tokens of earlier documents."""

    def longer(event: Write) -> Write:
        newest = event.rows[0]
        oldest = max(-at.held, newest - at.s.window + 1)
        return event._replace(rows=tuple(range(newest, oldest - 1, -1)))

    return plan._replace(
        events=tuple(longer(e) if isinstance(e, Write) else e for e in plan.events)
    )


def _write_late(plan: Plan, at: Seen) -> Plan:
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


def _write_early(plan: Plan, at: Seen) -> Plan:
    """Each write before the reads of its own chunk."""
    moved: list[Event] = []
    for event in plan.events:
        place = len(moved)
        if isinstance(event, Write):
            while place and isinstance(moved[place - 1], Read):
                place -= 1
        moved.insert(place, event)
    return plan._replace(events=tuple(moved))


def _never_refreshed(plan: Plan, at: Seen) -> Plan:
    first = next((i for i, e in enumerate(plan.events) if isinstance(e, Refresh)), None)
    return plan._replace(
        events=tuple(
            e for i, e in enumerate(plan.events) if not isinstance(e, Refresh) or i == first
        )
    )


def _kept_at_starts(*, memory: bool, momentum: bool) -> Callable[[Plan, Seen], Plan]:
    """Starts of documents at which weights or momentum stay."""

    def events(plan: Plan, at: Seen) -> Plan:
        moved = (
            Begin(e.memory and not memory, e.momentum and not momentum)
            if isinstance(e, Begin)
            else e
            for e in plan.events
        )
        return plan._replace(events=tuple(moved))

    return events


def _momentum_seen(at: Seen) -> bool:
    """Whether the first write sees the momentum from before."""
    if not any(name.startswith("in/state/momentum/") for name in at.inputs):
        return False
    for event in at.plan.events:
        if isinstance(event, Begin) and event.momentum:
            return False
        if isinstance(event, Write):
            return True
    return False


EVENTS: tuple[Reading, ...] = (
    Reading(
        "gates of the token before the last",
        "a write had the gates of the token before its last",
        made_in=chunks,
        events=_each_write(_of_token_before),
    ),
    Reading(
        "gates of the first token",
        "a write had the gates of the first token of its chunk",
        made_in=chunks,
        events=_each_write(_of_first_token),
    ),
    Reading(
        "window without its newest",
        "a window ended before the newest token",
        made_in=several,
        events=_each_write(_without_newest),
    ),
    Reading(
        "window of the chunk",
        "a write looked at its own chunk alone",
        made_in=lambda at: any(len(each.rows) > at.s.chunk for each in at.plan.writes),
        events=_each_write(_of_chunk),
    ),
    Reading(
        "writes a chunk late",
        "a write were seen one chunk late",
        made_in=lambda at: len(at.plan.writes) > 1,
        events=_write_late,
    ),
    Reading(
        "writes seen by their chunk",
        "all tokens of a chunk saw its write",
        made_in=lambda at: chunks(at) and at.s.c.read in ("after", "before"),
        events=_write_early,
    ),
    Reading(
        "reference never refreshed",
        "the reference stayed",
        made_in=lambda at: sum(isinstance(e, Refresh) for e in at.plan.events) > 1,
        events=_never_refreshed,
    ),
    Reading(
        "in/active ignored",
        "in/active were ignored",
        made_in=silent,
        inputs=ignored("in/active"),
    ),
    Reading(
        "silent tokens left out of the window",
        "silent tokens did not enter the window",
        made_in=lambda at: (
            "in/active" in at.inputs
            and any(
                row >= 0 and not at.inputs["in/active"][row]
                for each in at.plan.writes
                for row in each.rows
            )
        ),
        events=_each_write(_of_active),
    ),
    Reading(
        "in/reset ignored",
        "in/reset were ignored",
        made_in=later,
        inputs=ignored("in/reset"),
    ),
    Reading(
        "window across documents",
        "a window held tokens of the document before",
        made_in=lambda at: later(at) and _across(at.plan, at).events != at.plan.events,
        events=_across,
    ),
    Reading(
        "weights kept at starts",
        "documents began with the weights before",
        made_in=lambda at: later(at) and at.s.memory_reset != "never",
        events=_kept_at_starts(memory=True, momentum=False),
    ),
    Reading(
        "momentum kept at starts",
        "documents began with the momentum before",
        made_in=lambda at: (
            later(at) and at.s.momentum_reset != "never" and "in/momentum" in at.inputs
        ),
        events=_kept_at_starts(memory=False, momentum=True),
    ),
    Reading(
        "chunks across documents",
        "a document did not begin a chunk",
        made_in=lambda at: (
            documents(at)
            and at._replace(s=at.s._replace(restarts=False)).plan.events != at.plan.events
        ),
        settings=lambda s: s._replace(restarts=False),
    ),
    Reading(
        "tokens from before ignored",
        "the window began empty",
        made_in=lambda at: any(row < 0 for each in at.plan.writes for row in each.rows),
        inputs=ignored("in/state/keys", "in/state/values", "in/state/token_gates"),
    ),
    Reading(
        "tokens from before reversed",
        "tokens from before stood newest first",
        made_in=lambda at: (
            at.held > 1 and any(row < 0 for each in at.plan.writes for row in each.rows)
        ),
        inputs=_flipped_held,
    ),
    Reading(
        "position ignored",
        "chunks were counted from the first token of the call",
        made_in=lambda at: (
            int(at.inputs.get("in/state/position", 0)) % at.s.chunk != 0 and at.s.writes
        ),
        inputs=ignored("in/state/position"),
    ),
    Reading(
        "weights from before ignored",
        "in/state/weights were ignored",
        made_in=first_weights_seen,
        inputs=ignored("in/state/weights/"),
    ),
    Reading(
        "momentum from before ignored",
        "in/state/momentum were ignored",
        made_in=lambda at: _momentum_seen(at),
        inputs=ignored("in/state/momentum/"),
    ),
    Reading(
        "reference from before ignored",
        "in/state/reference were ignored",
        made_in=resumed,
        inputs=ignored("in/state/reference/"),
    ),
    Reading(
        "weights of the first row",
        "all rows went on from the weights of the first",
        made_in=lambda at: rows(at) and not at.s.shared and first_weights_seen(at),
        inputs=of_first_row("in/state/weights/"),
    ),
)
