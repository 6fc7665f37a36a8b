"""Cotangents of a graph: each from those that were recorded after it, through the modules between.

A local pullback at each value takes the forward values as they were recorded, so that a mistake
downstream blames nothing upstream. Specified in specs/modules.md (MODULES-20).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from atlas_ref.oracle.modules.graph import Graph, Route, Touch, evaluate, route_of
from atlas_ref.types import Array
from tape import vjp


class Lacking(Exception):
    """No cotangent was recorded after a value; the value whose cotangent is needed."""


def readers(graph: Graph) -> dict[str, list[str]]:
    """For each value those that are computed from it; what is free is no function of others."""
    found: dict[str, list[str]] = {key: [] for key in graph.values}
    for key, value in graph.values.items():
        for source in value.sources if value.kind != "free" else ():
            found[source].append(key)
    return found


def around(graph: Graph, key: str, after: Mapping[str, list[str]]) -> tuple[list[str], list[str]]:
    """Readers of a value in its own module, and others: those of what it returned are all its own.

    What a module received may be the residual stream, which goes on beside the module; the
    cotangent of what it received is that through the module alone.
    """
    module = graph.values[key].module
    inner: list[str] = []
    outer: list[str] = []
    for reader in dict.fromkeys(after[key]):
        place = graph.values[reader].module
        own = "/out/" in key or place == module or place.startswith(f"{module}.")
        (inner if own else outer).append(reader)
    return (inner, outer) if inner else (outer, [])


def is_state(key: str) -> bool:
    """Whether a value is what the last call leaves, which no loss weighs unless it is recorded."""
    return "/out/state/" in key


def route(graph: Graph, key: str, bars: Any) -> Route:
    """The nearest recorded cotangents after a value, and what lies between (MODULES-20)."""
    after, seen = readers(graph), dict[str, str]()

    def visit(readers_of: list[str]) -> None:
        for reader in readers_of:
            if reader in seen:
                continue
            inner, outer = around(graph, reader, after)
            if reader in bars:
                seen[reader] = "known"
                visit(outer)
            elif not after[reader]:
                seen[reader] = "nothing" if is_state(reader) else "lacking"
            else:
                seen[reader] = "between"
                visit([*inner, *outer])

    visit(around(graph, key, after)[0])
    if not after[key]:
        seen[key] = "lacking"
    return route_of(graph, seen)


class Pullbacks:
    """Local pullbacks of a graph at its recorded values, each once.

    Args:
        values: as recorded, by key.
        bars: recorded cotangents, by key.
        touch: changes each value and each cotangent that is computed on the way.
    """

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Array],
        bars: Mapping[str, Array],
        touch: Touch | None = None,
    ) -> None:
        self.graph, self.values, self.bars, self.touch = graph, values, bars, touch
        self.after = readers(graph)
        self._forward: dict[str, Array] = {}
        self._back: dict[str, dict[str, Array]] = {}

    def forward(self, key: str) -> Array:
        """A value: as it was recorded, else computed from what was recorded before it."""
        if key in self.values:
            return self.values[key]
        if key not in self._forward:
            known = {**self._forward, **self.values}
            self._forward[key] = np.asarray(evaluate(self.graph, key, known, self.touch))
        return self._forward[key]

    def cotangent(self, key: str, *, without: Collection[str] = ()) -> Array:
        """The cotangent of a value from recorded ones after it (MODULES-20).

        Its own recorded one is not used.

        Args:
            without: values whose cotangent does not come back to `key`.

        Raises:
            Lacking: a value after it that has none.
        """
        computed: dict[str, Array | None] = {}

        def bar(each: str) -> Array | None:
            """All that comes back to a value, through its module and beside it."""
            if each not in computed:
                inner, outer = around(self.graph, each, self.after)
                if each in self.bars:
                    back = total(each, outer, self.bars[each])
                else:
                    back = total(each, [*inner, *outer], None)
                    back = back if back is None else self._touch(f"bar {each}", back)
                computed[each] = back
            return computed[each]

        def total(each: str, readers_of: list[str], first: Array | None) -> Array | None:
            if not self.after[each] and first is None:
                if is_state(each):
                    return None
                raise Lacking(each)
            result: Any = first
            for reader in readers_of:
                of = None if each == key and reader in without else bar(reader)
                if of is not None:
                    back = self._pull(reader, of)[each]
                    result = back if result is None else result + back
            return None if result is None else np.asarray(result)

        result = total(key, around(self.graph, key, self.after)[0], None)
        return np.zeros_like(self.forward(key)) if result is None else result

    def _touch(self, name: str, value: Array) -> Array:
        return value if self.touch is None else self.touch(name, value)

    def _pull(self, reader: str, bar: Array) -> dict[str, Array]:
        """What comes back from a value to each of its sources."""
        if reader in self._back and reader in self.bars:
            return self._back[reader]
        value = self.graph.values[reader]
        function, sources = value.function, value.sources
        assert function is not None
        rows = [self.forward(each) for each in sources]
        places = [i for i, row in enumerate(rows) if row.dtype.kind not in "biu"]

        def of_floating(*moved: Any) -> Any:
            own = dict(zip(places, moved, strict=True))
            return function(*[own.get(i, each) for i, each in enumerate(rows)])

        _, pullback = vjp(of_floating, *[rows[i] for i in places])
        result: dict[str, Array] = {}
        for i, back in zip(places, pullback(np.asarray(bar)), strict=True):
            each = sources[i]
            result[each] = result[each] + back if each in result else np.asarray(back)
        if reader in self.bars:
            self._back[reader] = result
        return result
