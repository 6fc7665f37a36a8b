"""Search for the habit that gives a wrong value: at the value itself, or at one between.

Specified in specs/modules.md (MODULES-18).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from atlas_ref.oracle.modules.graph import Graph, Value, ancestry, evaluate
from atlas_ref.oracle.modules.habits import of_work, wires
from atlas_ref.oracle.modules.habits.wires import Way, comes_from

#: Values that may lie between a wrong value and what was recorded, so that habits are tried there.
BETWEEN = 160

#: Tokens of all sequences up to which also factors, changes and other sources are tried between.
TOKENS = 512

#: A layer of a model, in a key.
LAYER = re.compile(r"layers\.\d+\.")

Group = tuple[str, ...]
Stage = Callable[[Graph, Value, Mapping[str, Any]], list[Way]]

#: Kinds of ways, of which the first that explains counts.
STAGES: tuple[Stage, ...] = (
    lambda graph, value, known: [*of_work(value), *wires.terms(value)],
    lambda graph, value, known: list(wires.factors(value)),
    lambda graph, value, known: list(wires.changes(value)),
)


def explain(
    graph: Graph, key: str, known: Mapping[str, Any], fits: Callable[[Graph, Any], bool]
) -> list[str]:
    """What programs do by habit that gives a value (MODULES-18).

    A habit is tried at each value alone, in all layers of a model at once, and at all values of one
    kind of a module together.

    Args:
        known: recorded values, float64.
        fits: (graph, known values) -> whether the recorded value is that of the graph.
    """
    between = ancestry(graph, key, frozenset(known)).between
    if len(between) > BETWEEN:
        return []
    base = _compute(graph, between, known)
    computed = [each for each in (key, *between) if graph.values[each].kind != "free"]
    alone, together = _groups(graph, computed)
    small = _tokens(known) <= TOKENS
    for number, stage in enumerate(STAGES):
        places = [*alone, *together] if number == 0 else alone if small else [(key,)]
        fitting = [
            _words(graph, key, group, ways[0])
            for group in places
            for ways in _alike([stage(graph, graph.values[each], known) for each in group])
            if fits(*_change(graph, group, ways, between, known, base))
        ]
        if fitting:
            return list(dict.fromkeys(fitting))
    for each in computed if small else (key,):
        for way in wires.others(graph, graph.values[each], {**base, **known}):
            if fits(*_change(graph, (each,), (way,), between, known, base)):
                return [_words(graph, key, (each,), way)]
    return []


def _tokens(known: Mapping[str, Any]) -> int:
    """Tokens of all sequences, by the largest of the known values but for its last axis."""
    return max((int(np.prod(each.shape[:-1])) for each in known.values()), default=0)


def _compute(graph: Graph, keys: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Values between, computed from what is known, each once."""
    base: dict[str, Any] = {}
    for key in keys:
        base[key] = evaluate(graph, key, {**known, **base})
    return base


def _groups(graph: Graph, keys: Sequence[str]) -> tuple[list[Group], list[Group]]:
    """Each value in all layers of a model, and values whose work is of one kind together."""
    alone: dict[str, list[str]] = {}
    together: dict[tuple[Any, ...], list[str]] = {}
    for key in keys:
        value, place = graph.values[key], LAYER.sub("layers.N.", key)
        alone.setdefault(place, []).append(key)
        if value.work is not None:
            parent = place.partition("/")[0].rpartition(".")[0]
            together.setdefault((parent, type(value.work), value.axes), []).append(key)
    singles = [tuple(each) for each in alone.values()]
    return singles, [tuple(each) for each in together.values() if tuple(each) not in singles]


def _alike(ways: Sequence[Sequence[Way]]) -> Iterator[tuple[Way, ...]]:
    """Ways of the same words at all values of a group."""
    by_words = [{way.words: way for way in each} for each in ways]
    for words in by_words[0]:
        if all(words in each for each in by_words):
            yield tuple(each[words] for each in by_words)


def _change(
    graph: Graph,
    group: Group,
    ways: Sequence[Way],
    between: Sequence[str],
    known: Mapping[str, Any],
    base: Mapping[str, Any],
) -> tuple[Graph, dict[str, Any]]:
    """The graph with other ways to the values of a group, and what stays as it was."""
    other = graph
    for each, way in zip(group, ways, strict=True):
        other = other.otherwise(each, way.sources, way.function)
    moved = {each for each in between if any(comes_from(graph, each, one) for one in group)}
    return other, {**{each: base[each] for each in between if each not in moved}, **known}


def _words(graph: Graph, key: str, group: Group, way: Way) -> str:
    """What a program does, and in which modules where that is not the value's own."""
    if key in group:
        return way.words
    modules = dict.fromkeys(graph.values[each].module for each in group)
    return f"in {' and '.join(modules)} {way.words}"
