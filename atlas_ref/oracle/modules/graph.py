"""Graph of what a model computes on the way: values by module, and the function that makes each.

A value is what a module received or returned. Specified in specs/modules.md (MODULES-4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from atlas_ref.types import Array
from tape import ops
from tape.nested import flatten

#: Names of axes by their letters, for messages.
LABELS = {
    "B": "batch row",
    "T": "token",
    "H": "head",
    "C": "call",
    "R": "row",
    "D": "index",
    "V": "id",
    "N": "token",
}
Function = Callable[..., Any]


class Value(NamedTuple):
    """What a module received or returned (MODULES-4).

    Attributes:
        key: layers.0.attention.norm/out/y.
        sources: keys of what it is computed from.
        function: of the sources; it takes and gives arrays of one dtype.
        module: that received or returned it.
        kind: wire, received from other modules; output, computed by the module; free, of the
            user's choice, which nothing computes.
        axes: letters of LABELS with a size where it is known, "B T D=12".
        clause: where the computation is defined.
        work: what a kind of computation is made of, for `habits.HABITS`; None where it has no habits.
    """

    key: str
    sources: tuple[str, ...]
    function: Function | None
    module: str
    kind: Literal["wire", "output", "free"]
    axes: str
    clause: str
    work: object = None


class Module(NamedTuple):
    """A module and its parts, in the order of the model."""

    name: str
    parts: list[Module]
    keys: list[str]

    def within(self) -> Iterator[str]:
        """Keys of all parts, of any depth."""
        for part in self.parts:
            yield from part.keys
            yield from part.within()


class Graph:
    """Values and modules of a model, in the order in which they are computed (MODULES-4)."""

    def __init__(self, calls: tuple[int, ...] = (), *, detached: bool = False) -> None:
        self.values: dict[str, Value] = {}
        self.root = Module("", [], [])
        self.calls = calls
        self.detached = detached
        self.parts = 1
        self._open = [self.root]

    @contextmanager
    def summing_in(self, parts: int) -> Iterator[None]:
        """Products of tokens with a matrix as a sum of that many, one after another (MODULES-9)."""
        before, self.parts = self.parts, parts
        yield
        self.parts = before

    @contextmanager
    def detaching(self, detached: bool = True) -> Iterator[None]:
        """States of calls without a way back to the call before (MODULES-20)."""
        before, self.detached = self.detached, detached
        yield
        self.detached = before

    def hand_over(self, state: Any) -> Any:
        """A state as the next call takes it."""
        if not self.detached:
            return state
        leaves, _, build = flatten(state, "state")
        return build([ops.stop_gradient(leaf) for leaf in leaves])

    def product(self, x: Array, W: Array) -> Array:
        """W x of each token, its terms summed in the order in force."""
        parts = min(self.parts, W.shape[-1])
        total = x[..., ::parts] @ W[:, ::parts].T
        for i in range(1, parts):
            total = total + x[..., i::parts] @ W[:, i::parts].T
        return total

    @contextmanager
    def module(self, name: str) -> Iterator[None]:
        """A module whose values and parts are added inside."""
        each = Module(name, [], [])
        self._open[-1].parts.append(each)
        self._open.append(each)
        yield
        self._open.pop()

    def _add(
        self,
        kind: Any,
        port: str,
        sources: Any,
        function: Any,
        axes: str,
        clause: str = "",
        work: object = None,
    ) -> str:
        owner = self._open[-1]
        key = f"{owner.name}/{port}"
        keys = (sources,) if isinstance(sources, str) else tuple(sources)
        self.values[key] = Value(key, keys, function, owner.name, kind, axes, clause, work)
        owner.keys.append(key)
        return key

    def free(self, port: str, axes: str, sources: Any = (), function: Any = None) -> str:
        """A value of the user's choice; `function` where it may be left out."""
        return self._add("free", f"in/{port}", sources, function, axes)

    def wire(
        self,
        port: str,
        sources: Any,
        axes: str,
        function: Any = None,
        *,
        way: str = "in",
        work: object = None,
    ) -> str:
        """A value passed on from other modules, as it is unless there is a function."""
        return self._add("wire", f"{way}/{port}", sources, function or _same, axes, work=work)

    def output(
        self,
        port: str,
        sources: Any,
        axes: str,
        function: Any,
        clause: str,
        work: object = None,
    ) -> str:
        """A value that the module computes."""
        return self._add("output", f"out/{port}", sources, function, axes, clause, work)

    def otherwise(self, key: str, sources: tuple[str, ...], function: Any) -> Graph:
        """The same graph with one value computed otherwise, or of other sources (MODULES-18)."""
        other = Graph(self.calls, detached=self.detached)
        value = self.values[key]._replace(sources=sources, function=function)
        other.values = {**self.values, key: value}
        return other

    def spans(self, tokens: int) -> list[tuple[int, int]]:
        """First and last token of each call."""
        lengths = self.calls or (tokens,)
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        return list(zip([0, *ends[:-1]], ends, strict=True))


def _same(x: Any) -> Any:
    return x


Touch = Callable[[str, Array], Array]


def evaluate(
    graph: Graph, key: str, known: Mapping[str, Array], touch: Touch | None = None
) -> Array:
    """A value from what is known before it; what lies between is computed (MODULES-5).

    Args:
        known: values that stand as they are; `key` itself is computed all the same.
        touch: changes each value computed on the way.

    Raises:
        KeyError: a free value that is not known.
    """
    computed: dict[str, Array] = {}

    def value(each: str) -> Array:
        if each in known and each != key:
            return known[each]
        if each not in computed:
            node = graph.values[each]
            if node.function is None:
                raise KeyError(each)
            result = node.function(*[value(source) for source in node.sources])
            computed[each] = result if touch is None or each == key else touch(each, result)
        return computed[each]

    return value(key)


class Route(NamedTuple):
    """What a value is computed from, or its cotangent (MODULES-5, MODULES-20).

    Attributes:
        known: values of which it is a function; of a cotangent those whose cotangents it is of.
        between: values, or cotangents, that are computed on the way.
        lacking: what nobody recorded and nothing computes: free values, and cotangents at an end.
    """

    known: tuple[str, ...]
    between: tuple[str, ...]
    lacking: tuple[str, ...]


def route_of(graph: Graph, seen: Mapping[str, str]) -> Route:
    """The route of values that a search saw, each with a field of Route or another word."""
    order = [each for each in graph.values if each in seen]
    return Route(*(tuple(each for each in order if seen[each] == word) for word in Route._fields))


def ancestry(graph: Graph, key: str, known: Any) -> Route:
    """The nearest known values before a value, and what lies between (MODULES-5)."""
    seen: dict[str, str] = {}

    def visit(each: str) -> None:
        for source in graph.values[each].sources:
            if source in seen:
                continue
            if source in known:
                seen[source] = "known"
            elif graph.values[source].function is None:
                seen[source] = "lacking"
            else:
                seen[source] = "between"
                visit(source)

    visit(key)
    return route_of(graph, seen)
