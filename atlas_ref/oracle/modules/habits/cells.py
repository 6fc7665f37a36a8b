"""Habits of the rule of a memory: of its gates, of the window, and of what calls forget.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.modules.habits.habit import Habit

#: Fields of a token that are one number for a head.
GATES = ("retain", "momentum", "step_size", "window_gate")
NAMES = {
    "retain": "retain",
    "momentum": "momentum",
    "step_size": "step sizes",
    "window_gate": "window gates",
}


class Cell(NamedTuple):
    """The rule over all calls.

    Attributes:
        names: of the sources, fields of Tokens and the state before.
        window: tokens that a gradient looks at.
        rate: axis of the rule: where the step size enters.
        calls: how many there are.
        run: (sources by name, lost=...) -> the value; lost names what a call forgets: M, S,
            window.
    """

    names: tuple[str, ...]
    window: int
    rate: str
    calls: int
    run: Callable[..., Any]

    def by_name(self, arrays: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.names, arrays, strict=True))

    def has(self, *names: str) -> bool:
        return set(names) <= set(self.names)


def _with(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """The rule on other fields."""

    def run(work: Cell, *arrays: Any) -> Any:
        fields = work.by_name(arrays)
        return work.run({**fields, **change(fields)})

    return run


def _losing(*lost: str) -> Callable[..., Any]:
    return lambda work, *arrays: work.run(work.by_name(arrays), lost=lost)


def _has(*names: str) -> Callable[[Cell], bool]:
    return lambda work: work.has(*names)


def _called_again(work: Cell) -> bool:
    return work.calls > 1


def _exchange(a: str, b: str) -> Habit:
    return Habit(
        f"exchanges {NAMES[a]} and {NAMES[b]}", _with(lambda f: {a: f[b], b: f[a]}), _has(a, b)
    )


def _one_minus(name: str) -> Habit:
    return Habit(f"takes 1 minus {NAMES[name]}", _with(lambda f: {name: 1.0 - f[name]}), _has(name))


def _in_reverse(name: str) -> Habit:
    words = f"takes the {NAMES[name]} of the heads in reverse"
    return Habit(words, _with(lambda f: {name: f[name][:, ::-1]}), _has(name))


def _with_weights(choose: Callable[[int, int, Any], Any]) -> Callable[..., Any]:
    """The rule with weights (T, c) of the window, from T, c and the fields."""

    def run(work: Cell, *arrays: Any) -> Any:
        fields = work.by_name(arrays)
        k = fields["k"]
        rows = choose(k.shape[-2], work.window, fields)
        weights = np.broadcast_to(rows, (*k.shape[:-1], work.window)).astype(k.dtype)
        return work.run(fields | {"window_weights": weights})

    return run


def _of_newest(work: Cell, *arrays: Any) -> Any:
    """The weight of the newest token for all of the window."""
    fields = work.by_name(arrays)
    gate = fields.pop("window_gate")
    weights = np.repeat(gate[..., None], work.window, axis=-1)
    return work.run(fields | {"window_weights": weights})


def _has_window(work: Cell) -> bool:
    return work.window > 1


CELL = (
    *(_exchange(a, b) for i, a in enumerate(GATES) for b in GATES[i + 1 :]),
    *(_one_minus(each) for each in ("momentum", "step_size", "window_gate")),
    *(_in_reverse(each) for each in GATES),
    Habit(
        "has step size 1",
        _with(lambda f: {"step_size": np.ones_like(f["step_size"])}),
        _has("step_size"),
    ),
    Habit(
        "decays the step too, M = a (M - b S)",
        _with(lambda f: {"step_size": f["step_size"] * f["retain"]}),
        lambda w: w.has("step_size", "retain") and w.rate == "memory",
    ),
    Habit("reads with keys", _with(lambda f: {"q": f["k"]})),
    Habit("writes with queries", _with(lambda f: {"k": f["q"]})),
    Habit("exchanges queries and keys", _with(lambda f: {"q": f["k"], "k": f["q"]})),
    Habit(
        "takes the mean over the window, not the sum",
        _with_weights(lambda T, c, f: 1.0 / np.minimum(np.arange(T) + 1.0, c)[:, None]),
        _has_window,
    ),
    Habit(
        "divides the sum over the window by its length",
        _with_weights(lambda T, c, f: 1.0 / c),
        _has_window,
    ),
    Habit(
        "leaves the newest token out of the window",
        _with_weights(lambda T, c, f: np.arange(c) > 0),
        _has_window,
    ),
    Habit(
        "weighs the window by the gate of its newest token",
        _of_newest,
        lambda w: _has_window(w) and w.has("window_gate"),
    ),
    Habit("forgets the memory at each call", _losing("M"), _called_again),
    Habit(
        "forgets the momentum at each call",
        _losing("S"),
        lambda w: _called_again(w) and w.has("momentum"),
    ),
    Habit(
        "forgets the window at each call",
        _losing("window"),
        lambda w: _called_again(w) and _has_window(w),
    ),
    Habit(
        "forgets memory and momentum at each call",
        _losing("M", "S"),
        lambda w: _called_again(w) and w.has("momentum"),
    ),
    Habit(
        "starts anew at each call",
        _losing("M", "S", "window"),
        lambda w: _called_again(w) and _has_window(w),
    ),
)


# -- levels ----------------------------------------------------------------------------------------


class Combine(NamedTuple):
    """The reads of all levels, weighed by a softmax of their logits."""

    logits: Any


def _weights(choose: Callable[[Any], Any]) -> Callable[..., Any]:
    """A sum of the reads with weights of the logits."""

    def run(work: Combine, *reads: Any) -> Any:
        weights = choose(work.logits)
        return sum(w * y for w, y in zip(weights, reads, strict=True))

    return run


def _soft(logits: Any) -> Any:
    e = np.exp(logits - np.max(logits))
    return e / np.sum(e)


COMBINE = (
    Habit("adds the reads without weights", _weights(np.ones_like)),
    Habit("takes the mean of the reads", _weights(lambda z: np.full(len(z), 1.0 / len(z)))),
    Habit("weighs by the logits, without a softmax", _weights(lambda z: z)),
    Habit("weighs by the sigmoid of the logits", _weights(lambda z: 1.0 / (1.0 + np.exp(-z)))),
    Habit("combines all levels by a softmax", _weights(_soft)),
    Habit("weighs the levels in reverse", _weights(lambda z: _soft(z)[::-1])),
    Habit("reads the first level alone", lambda w, *reads: reads[0]),
    Habit("reads the last level alone", lambda w, *reads: reads[-1]),
)
