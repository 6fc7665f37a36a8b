"""The hook that a loop calls at every op: what readings make of it, its rounding, its trace (PROG-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atlas_ref.oracle.program.context import Context, base
from atlas_ref.oracle.program.reading import Reading, Wrap
from atlas_ref.types import Array
from tape import ops

#: Called as take(op, t, compute, *arguments), where compute(*arguments) is the op at token t; the
#: value with which the loop goes on.
Take = Callable[..., Array]


def computed(op: str, t: int, compute: Callable[..., Array], *arguments: Any) -> Array:
    """The value of an op as it is."""
    return compute(*arguments)


def kept(before: Array) -> Array:
    """The value of a state that a token leaves as it is."""
    return before


class Hook:
    """The hook of one run.

    Args:
        context: what the loop runs on.
        rounding: op -> "touch" or "store".
        readings: what the program does otherwise.
        take: called at every op, in the layout of the case.
    """

    def __init__(
        self,
        context: Context,
        rounding: Mapping[str, str],
        readings: Sequence[Reading] = (),
        take: Take = computed,
    ) -> None:
        self.context, self.rounding, self.take = context, rounding, take
        self.wraps: dict[str, list[Wrap]] = {}
        #: States as they are, and as they were before their last op.
        self.latest: dict[str, Array] = {}
        self.behind: dict[str, Array] = {}
        for reading in readings:
            for op, wrap in reading.ops.items():
                self.wraps.setdefault(op, []).append(wrap)

    def __call__(self, op: str, t: int, compute: Callable[..., Array], *arguments: Any) -> Array:
        """The value of op `op` at token t, which is compute(*arguments) unless somebody says otherwise.

        Args:
            arguments: values that have names: inputs of the context, ops, first states, lists of
                them, and what is no array.
        """
        wrapped = self._wrapped(op, compute)
        return self._taken(op, t, lambda *each: self._rounded(op, wrapped(*each)), *arguments)

    def keep(self, op: str, t: int, before: Array) -> Array:
        """The value of a state at a token that leaves it as it is."""
        return self._taken(op, t, kept, before)

    def start(self, state: str, t: int, before: Array, first: Array) -> Array:
        """The state that a token finds: the first one where a packed sequence starts, else `before`.

        It is no op of a trace; a reading wraps it as start/STATE, with the first one and `before`.
        """
        if self.context.starts(t):
            before = self._wrapped(f"start/{state}", _first)(first, before)
        self.latest[state] = before
        return before

    def read(self, state: str, after: Array) -> Array:
        """The state that a query reads, `after` its token.

        It is no op of a trace; a reading wraps it as read/STATE with the state before the token.
        """
        return self._wrapped(f"read/{state}", _after)(after, self.behind.get(state, after))

    def result(self, name: str, value: Array) -> Array:
        """A result; a reading wraps it as out/NAME, a state with the one before its last write."""
        return self._wrapped(f"out/{name}", _after)(value, self.behind.get(name, value))

    def _wrapped(self, op: str, compute: Callable[..., Array]) -> Callable[..., Array]:
        for wrap in self.wraps.get(op, self.wraps.get(base(op), [])):
            compute = _around(wrap, compute)
        return compute

    def _taken(self, op: str, t: int, compute: Callable[..., Array], *arguments: Any) -> Array:
        context = self.context
        if self.take is computed:  # nobody looks at the layout
            value = compute(*arguments)
        else:
            value = context.matrix(
                op, self.take(op, t, lambda *each: context.matrix(op, compute(*each)), *arguments)
            )
        value = context.label(op, value, t)
        if op in self.latest:
            self.behind[op], self.latest[op] = self.latest[op], value
        return value

    def _rounded(self, op: str, value: Array) -> Array:
        kind, rounding = self.rounding.get(base(op)), self.context.rounding
        if kind == "touch":
            return rounding.touch(value)
        return value if kind is None or rounding.store is None else rounding.store(value)


def _around(wrap: Wrap, compute: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *arguments: wrap(compute, *arguments)


def _first(first: Array, before: Array) -> Array:
    return first


def _after(after: Array, before: Array) -> Array:
    return after


def stopped(compute: Callable[..., Array], *arguments: Any) -> Array:
    """The op as a value that no gradient goes through."""
    return ops.stop_gradient(compute(*arguments))
