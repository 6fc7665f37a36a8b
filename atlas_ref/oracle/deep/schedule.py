"""When a deep memory begins anew, refreshes its reference, writes and reads: whole numbers alone.

Written from DEEP-8 and DEEP-14 to DEEP-17, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from atlas_ref.oracle.deep.settings import Settings


class Begin(NamedTuple):
    """A document or a call: whether W and S start anew; the reference is forgotten."""

    memory: bool
    momentum: bool


class Refresh(NamedTuple):
    """The reference becomes W."""


class Write(NamedTuple):
    """A write with the gates of a token.

    Attributes:
        number: of the writes of this call.
        token: whose gates and window weights count.
        rows: its tokens by lag, the newest first; those from before the call are negative.
        first: whether it is the first of its span (DEEP-39).
    """

    number: int
    token: int
    rows: tuple[int, ...]
    first: bool = True


class Read(NamedTuple):
    """Reads of the tokens from first to before last, of W or of the reference."""

    first: int
    last: int
    of: Literal["weights", "reference"]


Event = Begin | Refresh | Write | Read


class Plan(NamedTuple):
    """The events of a call in order, and what is left behind it.

    Attributes:
        held: tokens that the next call still sees, oldest first.
        position: of the token after the call in its document.
    """

    events: tuple[Event, ...]
    held: tuple[int, ...]
    position: int

    @property
    def writes(self) -> list[Write]:
        return [each for each in self.events if isinstance(each, Write)]


def plan_events(
    s: Settings,
    *,
    active: Sequence[bool],
    reset: Sequence[bool],
    held: int,
    position: int,
    referenced: bool,
) -> Plan:
    """The events of one call.

    Args:
        active, reset: of each token.
        held: tokens from before, which have the numbers -held to -1.
        position: of the first token in its document.
        referenced: whether a reference comes from before.
    """
    events: list[Event] = []
    known = list(range(-held, 0))  # tokens of the document so far
    if s.memory_reset == "batch":
        known, position, referenced = [], 0, False
    if "batch" in (s.memory_reset, s.momentum_reset):
        events.append(Begin(s.memory_reset == "batch", s.momentum_reset == "batch"))
    writes, begun, last = 0, 0, len(active) - 1
    for t in range(len(active)):
        if reset[t]:
            events.append(Begin(s.memory_reset != "never", s.momentum_reset != "never"))
            begun, referenced = t, False
            known, position = ([], 0) if s.restarts else (known, position)
        if s.uses_reference and (not referenced or (_by_spans(s) and position % s.span == 0)):
            events.append(Refresh())
            referenced = True
        known.append(t)
        position += 1
        ends = t == last or reset[t + 1]
        due = position % s.chunk == 0
        if s.c.read in ("before", "chunk_start"):
            events.append(Read(t, t + 1, _SEEN[s.c.read]))
        if s.c.read == "after" and not due:
            events.append(Read(t, t + 1, "weights"))
        if s.writes and active[t] and (due or (s.flush and ends)):
            rows = tuple(known[: -s.window - 1 : -1])
            first = bool(s.span) and (position - 1) % s.span < s.chunk
            events.append(Write(writes, t, rows, first))
            if s.retention.lag and first:
                events.append(Refresh())
            writes += 1
        if s.c.read == "after" and due:
            events.append(Read(t, t + 1, "weights"))
        if s.c.read == "call_end" and ends:
            events.append(Read(begun, t + 1, "weights"))
    if s.flush:
        position += -position % s.chunk
    kept = s.window - 1 + position % s.chunk
    return Plan(_join_reads(events), tuple(known[max(0, len(known) - kept) :]), position)


_SEEN: dict[str, Literal["weights", "reference"]] = {
    "before": "weights",
    "chunk_start": "reference",
}


def _by_spans(s: Settings) -> bool:
    """Whether spans refresh the reference; call_start outlasts them."""
    return s.c.reference != "call_start"


def _join_reads(events: list[Event]) -> tuple[Event, ...]:
    """Reads of one memory together."""
    joined: list[Event] = []
    for event in events:
        before = joined[-1] if joined else None
        if isinstance(event, Read) and isinstance(before, Read) and before.of == event.of:
            joined[-1] = before._replace(last=event.last)
        else:
            joined.append(event)
    return tuple(joined)
