"""Habits of what is passed on: constant factors, terms of a sum, and values of another module.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from atlas_ref.oracle.modules.graph import Graph, Value, ancestry
from atlas_ref.oracle.modules.habits.habit import Habit


class Sum(NamedTuple):
    """A sum of its sources: the residual stream and what is added to it."""


class Way(NamedTuple):
    """Another way to a value: what a program does, the sources, and the function of them."""

    words: str
    sources: tuple[str, ...]
    function: Callable[..., Any]


#: Powers of the length of a row that programs multiply with by habit.
POWERS = {0.5: "sqrt({n})", -0.5: "1/sqrt({n})", 1.0: "{n}", -1.0: "1/{n}"}
CONSTANTS = {-1.0: "-1", 2.0: "2", 0.5: "1/2", 2.0**0.5: "sqrt(2)", 0.5**0.5: "1/sqrt(2)"}


def constants(value: Value) -> list[tuple[str, float]]:
    """Constants that programs multiply a value with by habit, by their names; each number once."""
    found = dict(CONSTANTS)
    for axis in value.axes.split():
        size = axis.partition("=")[2]
        for power, words in POWERS.items() if size and int(size) > 1 else ():
            found.setdefault(int(size) ** power, words.format(n=size))
    return [(words, factor) for factor, words in found.items()]


def factors(value: Value) -> Iterator[Way]:
    """The value times a constant that has a name."""
    for words, factor in constants(value):

        def scale(*sources: Any, factor: float = factor) -> Any:
            return factor * _of(value, sources)

        yield Way(f"multiplies by {words}", value.sources, scale)


#: Error of a value that was passed on and rounded, relative to its largest entry: any format's.
ALIKE = 2.0**-7

#: What is done to a value that should be passed on as it is.
CHANGES: tuple[Habit, ...] = (
    Habit("norms rows to length 1", lambda w, y: y / np.linalg.norm(y, axis=-1, keepdims=True)),
    Habit(
        "norms rows to a root mean square of 1",
        lambda w, y: y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True)),
    ),
    Habit("applies silu", lambda w, y: y * 0.5 * (1.0 + np.tanh(0.5 * y))),
    Habit("applies sigmoid", lambda w, y: 0.5 * (1.0 + np.tanh(0.5 * y))),
    Habit("applies tanh", lambda w, y: np.tanh(y)),
    Habit("applies relu", lambda w, y: np.maximum(y, 0.0)),
    Habit("takes the token before", lambda w, y: _delay(y)),
)


def _delay(y: Any) -> Any:
    """Rows one token later, zeros before the first."""
    rows = np.zeros_like(y)
    rows[..., 1:, :] = y[..., :-1, :]
    return rows


def changes(value: Value) -> Iterator[Way]:
    """What programs do to rows that they should pass on."""
    if not any(axis.startswith("D") for axis in value.axes.split()):
        return
    for habit in CHANGES:

        def change(*sources: Any, habit: Habit = habit) -> Any:
            return habit.function(None, _of(value, sources))

        yield Way(habit.words, value.sources, change)


def _of(value: Value, sources: tuple[Any, ...]) -> Any:
    assert value.function is not None
    return value.function(*sources)


def terms(value: Value) -> Iterator[Way]:
    """A sum without one of its terms, or with one twice or subtracted."""
    if not isinstance(value.work, Sum) or len(value.sources) < 2:
        return
    for verb, weight in (("leaves out", 0.0), ("adds twice", 2.0), ("subtracts", -1.0)):
        for i, source in enumerate(value.sources):

            def weigh(*sources: Any, i: int = i, weight: float = weight) -> Any:
                others = [each for j, each in enumerate(sources) if j != i]
                total = sum(others[1:], others[0])
                return total if weight == 0.0 else total + weight * sources[i]

            yield Way(f"{verb} modules/{source}", value.sources, weigh)


# -- values of another module ----------------------------------------------------------------------


def others(graph: Graph, value: Value, known: Mapping[str, Any]) -> Iterator[Way]:
    """The value of what another module received or returned, the nearest module first.

    Only what does not come from the value itself, and has the axes of what it should come from.
    """
    if value.kind != "wire" or len(value.sources) != 1:
        return
    (source,) = value.sources
    axes, order = graph.values[source].axes, list(graph.values)
    candidates = [
        each
        for each in order
        if each not in (source, value.key)
        and graph.values[each].axes == axes
        and _has_values(graph, each, known)
        and not comes_from(graph, each, value.key)
        and _is_right(graph, each, known)
    ]
    shared = {each: _common_words(each, value.key) for each in candidates}
    for each in sorted(candidates, key=lambda e: (-shared[e], "/out/" not in e, -order.index(e))):
        words = f"receives modules/{each} in place of modules/{source}"
        yield Way(words, (each,), value.function or _same)


def _same(x: Any) -> Any:
    return x


def _common_words(a: str, b: str) -> int:
    """How many words of their modules' names two keys begin with."""
    words = [each.partition("/")[0].split(".") for each in (a, b)]
    count = 0
    for left, right in zip(*words, strict=False):
        if left != right:
            break
        count += 1
    return count


def _has_values(graph: Graph, key: str, known: Mapping[str, Any]) -> bool:
    if key in known:
        return True
    before = ancestry(graph, key, known)
    return bool(before.known) and not before.lacking and len(before.between) == 0


def _is_right(graph: Graph, key: str, known: Mapping[str, Any]) -> bool:
    """Whether what was passed on is what it was passed on from, as far as that is known."""
    node = graph.values[key]
    if node.kind != "wire" or key not in known or not set(node.sources) <= known.keys():
        return True
    want = _of(node, tuple(known[each] for each in node.sources))
    return bool(np.abs(known[key] - want).max() <= ALIKE * np.abs(want).max())


def comes_from(graph: Graph, key: str, source: str) -> bool:
    """Whether a value is computed from another."""
    before, seen = [key], set[str]()
    while before:
        each = before.pop()
        if each == source:
            return True
        if each not in seen:
            seen.add(each)
            before += graph.values[each].sources
    return False


__all__ = [
    "CHANGES",
    "CONSTANTS",
    "POWERS",
    "Sum",
    "Way",
    "changes",
    "comes_from",
    "factors",
    "others",
    "terms",
]
