"""Habits of rotary positions and of attention in a window: of masks, scales and persistent rows.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.layers import attention, rotary
from atlas_ref.oracle.modules.habits.habit import Habit
from atlas_ref.types import Array

#: First and last token of each call, from the number of tokens.
Spans = Callable[[int], list[tuple[int, int]]]


class Rotary(NamedTuple):
    """Queries or keys after their positions.

    Attributes:
        persistent: number of rows that have no position.
    """

    config: rotary.Config
    spans: Spans
    persistent: int

    def at(self, x: Any) -> Any:
        """The position of each token."""
        state, at = rotary.start(self.config), []
        for first, last in self.spans(x.shape[-2]):
            each, state = rotary.positions(self.config, state, last - first, None)
            at.append(each)
        return np.concatenate(at)

    def turn(self, x: Any, at: Any, frequencies: Any = None) -> Any:
        own = self.config
        if frequencies is not None:
            own = own.replaced(frequencies=tuple(map(float, frequencies)))
        return rotary.rotated(own, x, *rotary.tables(own, at, x))


def _exchange(work: Rotary, x: Any) -> Any:
    cos, sin = rotary.tables(work.config, work.at(x), x)
    return rotary.rotated(work.config, x, sin, cos)


def _of_frequencies(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda w, x: w.turn(x, w.at(x), change(rotary.frequencies(w.config)))


ROTARY = (
    Habit("counts positions from 1", lambda w, x: w.turn(x, w.at(x) + 1)),
    Habit(
        "counts positions from the persistent rows",
        lambda w, x: w.turn(x, w.at(x) + w.persistent),
        lambda w: w.persistent > 1,
    ),
    Habit("does not turn", lambda w, x: x),
    Habit("turns the other way", lambda w, x: w.turn(x, -w.at(x))),
    Habit("turns by twice the angle", lambda w, x: w.turn(x, 2 * w.at(x))),
    Habit("exchanges cos and sin", _exchange),
    Habit("has frequencies base^(-i/d), not base^(-2i/d)", _of_frequencies(np.sqrt)),
    Habit("has its frequencies in reverse", _of_frequencies(lambda w: w[::-1])),
    Habit("has frequencies 1", _of_frequencies(np.ones_like)),
)


class Passed(NamedTuple):
    """Values of heads, which are passed on without positions; `rotary` is that of the keys."""

    rotary: Rotary | None


PASSED = (
    Habit(
        "turns values by their positions",
        lambda w, x: w.rotary.turn(x, w.rotary.at(x)),
        lambda w: w.rotary is not None,
    ),
)


class Attend(NamedTuple):
    """Reads of a causal window, of all calls one after another."""

    config: attention.Config
    params: attention.Params
    spans: Spans

    def places(self, T: int) -> tuple[Any, Any, Any]:
        """Of each token its place, and the first and last place of its call, as columns."""
        first, last = np.zeros((T, 1), int), np.zeros((T, 1), int)
        for start, end in self.spans(T):
            first[start:end], last[start:end] = start, end
        return np.arange(T)[:, None], first, last

    @property
    def rows(self) -> Any:
        """Persistent rows (H, P, d)."""
        H, d = self.config.heads, self.config.d_head
        return np.zeros((H, 0, d)) if self.params.persistent is None else self.params.persistent

    def band(self, T: int) -> Any:
        """Which tokens (T, T) a query sees."""
        t, s = np.arange(T)[:, None], np.arange(T)
        return (s <= t) & (s > t - self.config.reach)

    def scores(self, q: Any, k: Any, keys: Any, scale: float | None) -> Any:
        """Scores of persistent rows, then of tokens, (B, H, T, P + T)."""
        scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
        keys = np.broadcast_to(keys, (len(q), *keys.shape))
        return scale * (q @ np.swapaxes(np.concatenate([keys, k], axis=2), -1, -2))

    def reads(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        seen: Any = None,
        scale: float | None = None,
        keys: Any = None,
        values: Any = None,
        visible: Any = None,
        among: Any = None,
        extra: float = 0.0,
    ) -> Any:
        """Softmax reads (B, H, T, d) of what is seen.

        Args:
            seen (T, T): tokens that a query sees; the band when None.
            keys, values (H, P, d): persistent rows; those of the parameters when None.
            visible (T, P): persistent rows that a query sees; all when None.
            among (T, P + T): what the softmax is over, before anything is masked; the seen.
            extra: added to the denominator.
        """
        T, rows = q.shape[2], self.rows
        keys, values = rows if keys is None else keys, rows if values is None else values
        visible = np.ones((T, keys.shape[1]), bool) if visible is None else visible
        seen = np.concatenate([visible, self.band(T) if seen is None else seen], axis=1)
        among = seen if among is None else among
        scores = np.where(among, self.scores(q, k, keys, scale), -np.inf)
        top = np.max(scores, axis=-1, keepdims=True)
        e = np.exp(scores - top)
        weights = e / (np.sum(e, axis=-1, keepdims=True) + extra * np.exp(-top)) * seen
        values = np.broadcast_to(values, (len(v), *values.shape))
        return weights @ np.concatenate([values, v], axis=2)


def _with_mask(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Another mask: from the work, and the places t, s, first and last of the call of t."""

    def run(work: Attend, q: Any, k: Any, v: Any) -> Any:
        t, first, last = work.places(q.shape[2])
        return work.reads(q, k, v, seen=choose(work.config.reach, t, t.T, first, last))

    return run


def _with_scale(choose: Callable[[attention.Config], float]) -> Callable[..., Any]:
    return lambda w, q, k, v: w.reads(q, k, v, scale=choose(w.config))


def _one_by_one(newest: bool) -> Callable[..., Any]:
    """Persistent rows under a causal mask of their own, the cached keys counted."""

    def run(work: Attend, q: Any, k: Any, v: Any) -> Any:
        t, first, _ = work.places(q.shape[2])
        P, t = work.rows.shape[1], t - first + np.minimum(first, work.config.window)
        rows = np.arange(P)
        return work.reads(q, k, v, visible=rows >= P - 1 - t if newest else rows <= t)

    return run


def _turned_rows(work: Attend, q: Any, k: Any, v: Any) -> Any:
    own = work.config.rotary
    assert own is not None
    tables = rotary.tables(own, np.arange(work.rows.shape[1]), work.rows)
    return work.reads(q, k, v, keys=rotary.rotated(own, work.rows, *tables))


def _masked_late(work: Attend, q: Any, k: Any, v: Any) -> Any:
    """The softmax over all keys that a call holds, and the mask on its weights."""
    t, first, last = work.places(q.shape[2])
    s, W = t.T, work.config.window
    held = (first - W <= s) & (s < last)
    rows = np.ones((len(t), work.rows.shape[1]), bool)
    return work.reads(q, k, v, among=np.concatenate([rows, held], axis=1))


def _without_rows(work: Attend, q: Any, k: Any, v: Any) -> Any:
    none: Array = work.rows[:, :0]
    return work.reads(q, k, v, keys=none, values=none)


def _persistent(work: Attend) -> bool:
    return bool(work.rows.shape[1] > 0)


def _two(work: Attend) -> bool:
    return work.config.heads > 1


ATTEND = (
    Habit(
        "starts with an empty cache in each call",
        _with_mask(lambda W, t, s, first, last: (s <= t) & (s > t - W) & (s >= first)),
    ),
    Habit(
        "masks one place too late, so that a token sees the next",
        _with_mask(lambda W, t, s, first, last: (s <= t + 1) & (s > t - W) & (s < last)),
    ),
    Habit(
        "masks one place too early, so that no token sees itself",
        _with_mask(lambda W, t, s, first, last: (s < t) & (s >= t - W)),
    ),
    Habit(
        "masks nothing that comes later in a call",
        _with_mask(lambda W, t, s, first, last: (s > t - W) & (s < last)),
    ),
    Habit("has no window", _with_mask(lambda W, t, s, first, last: s <= t)),
    Habit(
        "sees blocks of the window's length, not a band",
        _with_mask(lambda W, t, s, first, last: (s <= t) & (s // W == t // W)),
    ),
    Habit("does not scale scores", _with_scale(lambda c: 1.0)),
    Habit("scales scores by 1/d", _with_scale(lambda c: 1.0 / c.d_head)),
    Habit("scales scores by sqrt(d)", _with_scale(lambda c: c.d_head**0.5)),
    Habit("scales scores by d^(-1/4)", _with_scale(lambda c: c.d_head**-0.25)),
    Habit("scales scores by 1/sqrt(dim)", _with_scale(lambda c: c.d_model**-0.5)),
    Habit("scales scores by 1/sqrt(heads d)", _with_scale(lambda c: (c.heads * c.d_head) ** -0.5)),
    Habit("masks after the softmax, without a new sum", _masked_late),
    Habit("adds 1 to the sum of the softmax", lambda w, q, k, v: w.reads(q, k, v, extra=1.0)),
    Habit("shows persistent rows one by one, the last first", _one_by_one(True), _persistent),
    Habit("shows persistent rows one by one, the first first", _one_by_one(False), _persistent),
    Habit(
        "turns persistent rows by positions",
        _turned_rows,
        lambda w: w.rows.shape[1] > 1 and w.config.rotary is not None,
    ),
    Habit("leaves out persistent rows", _without_rows, _persistent),
    Habit(
        "takes persistent rows as keys alone, with values 0",
        lambda w, q, k, v: w.reads(q, k, v, values=0.0 * w.rows),
        _persistent,
    ),
    Habit(
        "takes the persistent rows of the heads in reverse",
        lambda w, q, k, v: w.reads(q, k, v, keys=w.rows[::-1], values=w.rows[::-1]),
        lambda w: _persistent(w) and _two(w),
    ),
    Habit("reads keys in place of values", lambda w, q, k, v: w.reads(q, k, k)),
    Habit("asks with keys in place of queries", lambda w, q, k, v: w.reads(k, k, v)),
    Habit("exchanges queries and keys", lambda w, q, k, v: w.reads(k, q, v)),
)
