"""A server of several requests as a loop, with points at which a mistake can stand (SCHED-10).

Slots of a pool hold states; a call takes the state of a request from its slot and leaves another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.program.reading import Reading
from atlas_ref.oracle.serving.law import of_all_requests, results_of
from atlas_ref.oracle.serving.members import Rows, Run, State, advance, first_state, retention
from atlas_ref.oracle.serving.parameters import Parameters, Part, Step
from atlas_ref.oracle.serving.plan import (
    CALLS,
    Moment,
    moments,
    rows_beside,
    rows_of,
    rows_of_padding,
)
from atlas_ref.types import Array

#: Advances a state by rows: (state, rows) -> reads and the state after them.
Advance = Callable[[State, Rows], tuple[Array, State]]


class Segment:
    """Tokens of one call of one request: their reads, and the state after any of them."""

    def __init__(self, advance: Advance, before: State, rows: Rows) -> None:
        self.before, self.rows, self.count = before, rows, len(rows["x"])
        self._advance = advance
        self.reads, last = advance(before, rows)
        self._states = {0: before, self.count: last}

    def after(self, count: int) -> State:
        """The state after so many of its tokens."""
        if count not in self._states:
            part = {n: x[:count] if n == "x" else x[:, :count] for n, x in self.rows.items()}
            self._states[count] = self._advance(self.before, part)[1]
        return self._states[count]


class Now(NamedTuple):
    """Where the loop stands, as a mistake at a point of it sees it.

    Attributes:
        own: parameters of the case.
        step, part: what is done; tokens: of the call, those that are none of padding.
        kept: tokens of the call behind which the state is left.
        leads: the state of the first request of the call, as it was before the call.
        ahead: the state that the request before left in this call; None where it had no token.
        dirty: the state that the last owner of the slot left.
        live: the state that now lies where a snapshot was taken.
        segment: of the call, once it is computed.
        padding: rows of padding; retention: share of the memory that they leave.
    """

    own: Parameters
    step: Step
    part: Part
    tokens: int = 0
    kept: int = 0
    leads: State | None = None
    ahead: State | None = None
    dirty: State | None = None
    live: State | None = None
    segment: Segment | None = None
    padding: Rows | None = None
    retention: Callable[[Rows], Array] | None = None

    @property
    def alone(self) -> bool:
        """Whether the call has one token of the request."""
        return self.tokens == 1

    @property
    def several(self) -> bool:
        return self.tokens > 1

    @property
    def whole(self) -> bool:
        """Whether the state is left behind the last token of the call."""
        return self.kept == self.tokens


class Server:
    """The loop. Points are `begin`, `enter`, `pads`, `limits`, `leave`, `keep` and `restore`.

    Args:
        run: computes results of a case.
        chosen: mistakes, of which each has its points in `ops`.
    """

    def __init__(
        self, own: Parameters, inputs: Mapping[str, Array], run: Run, chosen: Sequence[Reading] = ()
    ) -> None:
        self.own, self.inputs, self.run, self.chosen = own, inputs, run, chosen
        self.weights = of_all_requests(own, inputs)
        self.pool: list[State] = []
        self.free: list[int] = []
        self.slots = dict[int, int]()
        self.snapshots = dict[str, tuple[State, int]]()
        self.reads: list[Array] = []
        self.found = dict[str, Array]()

    def results(self) -> dict[str, Array]:
        """out/y and the states after every step, as the server has them."""
        step, leads, ahead = -1, None, None
        for each in moments(self.own):
            if each.step.number != step:
                step, ahead = each.step.number, None
                leads = self._load(each.part.request) if not each.begins else None
            now = Now(self.own, each.step, each.part, leads=leads, ahead=ahead)
            if each.begins and each.step.op in CALLS:
                self._begin(now)
                leads = self._load(each.part.request) if leads is None else leads
                now = now._replace(leads=leads)
            if each.step.op in (*CALLS, "draft"):
                self._call(now, each)
                ahead = self._load(each.part.request) if each.part.tokens else ahead
            else:
                self._without_tokens(now, each)
            if each.last is not None:
                self.found |= results_of(
                    self.own, step, each.part.request, self._load(each.part.request)
                )
        return {"out/y": np.stack(self.reads), **self.found}

    def _at(self, point: str, now: Now, value: Any) -> Any:
        """A value at a point of the loop, as the mistakes have it."""
        for each in self.chosen:
            if point in each.ops:
                value = each.ops[point](now, value)
        return value

    def _load(self, r: int) -> State:
        return self.pool[self.slots[r]]

    def _begin(self, now: Now) -> None:
        """A slot for a request, the one that was freed last where there is one."""
        fresh = first_state(self.own, self.inputs["in/x"].dtype)
        if self.free:
            slot = self.free.pop()
        else:
            slot = len(self.pool)
            self.pool.append(fresh)
        self.slots[now.part.request] = slot
        self.pool[slot] = self._at("begin", now._replace(dirty=self.pool[slot]), fresh)

    def _call(self, now: Now, each: Moment) -> None:
        """Tokens of one request: their reads, and the state that it has from now on."""
        step, part = each.step, each.part
        if step.op == "draft":
            rows, kept = rows_beside(self.own, self.inputs, step.rows), step.accept
        else:
            tokens = range(each.first, each.first + part.tokens)
            rows, kept = rows_of(self.own, self.inputs, part.request, tokens), part.tokens
        padding = rows_of_padding(self.own, self.inputs, max(0, step.width - part.tokens))
        now = now._replace(
            tokens=part.tokens, kept=kept, padding=padding, retention=self._retention
        )
        limited = self._at("limits", now, True)
        ahead, behind = self._at("pads", now, (0, 0))
        if ahead + behind:
            rows = _beside(padding, ahead, rows, behind)
        state = self._at("enter", now, self._load(part.request))

        def advance_by(state: State, rows: Rows) -> tuple[Array, State]:
            return advance(self.own, self.weights, state, rows, self.run, limited=limited)

        segment = Segment(advance_by, state, rows)
        self.reads += list(segment.reads[ahead : ahead + part.tokens])
        last = segment.after(segment.count if ahead + behind else kept)
        self.pool[self.slots[part.request]] = self._at("leave", now._replace(segment=segment), last)

    def _retention(self, rows: Rows) -> Array:
        return retention(self.own, self.weights, rows)

    def _without_tokens(self, now: Now, each: Moment) -> None:
        """A snapshot, a return to one, or a request that ends."""
        r, name = each.part.request, each.step.name
        if each.step.op == "snapshot":
            self.snapshots[name] = self._at("keep", now, self._load(r)), self.slots[r]
        elif each.step.op == "free":
            self.free.append(self.slots.pop(r))
        else:
            state, slot = self.snapshots[name]
            now = now._replace(live=self.pool[slot])
            if r not in self.slots:
                self._begin(now)
            self.pool[self.slots[r]] = self._at("restore", now, state)


def _beside(padding: Rows, ahead: int, rows: Rows, behind: int) -> dict[str, Array]:
    """Rows with padding in front of them and behind them."""
    axis = {name: 0 if name == "x" else 1 for name in rows}

    def pads(name: str, count: int) -> Array:
        return padding[name][(*(slice(None),) * axis[name], slice(count))]

    return {
        name: np.concatenate([pads(name, ahead), x, pads(name, behind)], axis[name])
        for name, x in rows.items()
    }
