"""The hook that the loop of rule dplr calls at every op, and the mistakes that wrap one (DPLRCASE-10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from atlas_ref.oracle.dplr.context import Context, chosen, decayed, named, same
from atlas_ref.types import Array

#: Computes the value of an op from its arguments.
Compute = Callable[..., Array]

#: Called as take(op, t, compute, *arguments), where compute(*arguments) is the op at token t; the
#: value with which the loop goes on.
Take = Callable[..., Array]

#: What stands in the place of an op: (op, *arguments) -> value.
Wrap = Callable[..., Array]

#: Op -> what stands in its place, each around the one before.
Wraps = Mapping[str, Sequence[Wrap]]


#: Ops of a row, in the order in which they are listed.
ROWS = (
    *("k", "decayed", "momentum", "erase_read", "erase_write", "found", "value", "change"),
    *("S", "M", "z"),
)


def computed(op: str, t: int, compute: Compute, *arguments: Any) -> Array:
    """The value of an op as it is."""
    return compute(*arguments)


def kept(before: Array) -> Array:
    """The value of a state that a token leaves as it is."""
    return before


class Op(NamedTuple):
    """An op as a mistake finds it: called with its arguments it is what the rule says.

    Attributes:
        hook: that of the loop, with what the token found and computed so far.
        name: in the trace; "" where it is no op of one.
        t, step: the token, and the step of its row.
        compute: the op of its arguments.
        finish: makes of this what is handed out: a state is rounded, or stays where nothing is written.
        wraps: mistakes inside this one.
    """

    hook: Hook
    name: str
    t: int
    step: int
    compute: Compute
    finish: Callable[[Compute], Compute]
    wraps: Sequence[Wrap]

    def __call__(self, *arguments: Any) -> Array:
        if self.wraps:
            *wraps, last = self.wraps
            return last(self._replace(wraps=wraps), *arguments)
        compute = self.finish(self.compute)
        if not self.name:
            return compute(*arguments)
        return self.hook.take(self.name, self.t, compute, *arguments)

    def by(self, compute: Compute, *arguments: Any) -> Array:
        """The op by another formula."""
        return self._replace(compute=compute)(*arguments)

    def other(self, op: str, compute: Compute, *arguments: Any) -> Array:
        """Another op of the row, at this place, as a trace sees it."""
        name = named(op, self.step, self.context.params.steps)
        return self.hook.take(name, self.t, compute, *arguments)

    @property
    def context(self) -> Context:
        return self.hook.context

    @property
    def before(self) -> Mapping[str, Array]:
        """States as the token found them."""
        return self.hook.before

    @property
    def values(self) -> Mapping[str, Array]:
        """Ops of the token so far; one of a row by its name with and without the step."""
        return self.hook.values

    def row(self, name: str) -> Array:
        """The row of a tensor."""
        return self.context.row(name, self.t * self.context.params.steps + self.step)

    def decayed(self, M: Array) -> Array:
        """A memory under the gate of the token."""
        gate = self.values.get("gate")
        return M if gate is None else decayed(M, gate)


@dataclass(frozen=True)
class Hook:
    """The hook of one run.

    Attributes:
        context: what the loop runs on.
        wraps: mistakes of the program.
        mask: whether each token writes; where rows differ, in which.
        take: called at every op.
        before: states as the last token found them.
        values: ops of that token so far, where there are mistakes.
    """

    context: Context
    wraps: Wraps
    mask: Sequence[Any]
    take: Take = computed
    before: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)

    def __call__(self, op: str, j: int, compute: Compute, *arguments: Any) -> Array:
        """The value of an op: compute(*arguments), unless a mistake says otherwise.

        Args:
            j: the row of an op of `ROWS`, which is one step of a token, or else the token.
            arguments: rows of the context, ops, first states, and None.
        """
        name, t, step = self._place(op, j)
        if not self.wraps:
            return self.take(name, t, compute, *arguments)
        return self._wrapped(op, name, (t, step), same, compute, *arguments)

    def _place(self, op: str, j: int) -> tuple[str, int, int]:
        """The name of an op in the trace, its token and its step (DPLRCASE-11)."""
        steps = self.context.params.steps
        if steps == 1 or op not in ROWS:
            return op, j, 0
        t, step = divmod(j, steps)
        return named(op, step, steps), t, step

    def point(self, name: str, t: int, compute: Compute, *arguments: Any) -> Array:
        """A value at a token that no trace sees, and that a mistake may wrap."""
        if name not in self.wraps:
            return compute(*arguments)
        return self._wrapped(name, "", (t, 0), same, compute, *arguments)

    def start(self, state: str, t: int, before: Array, first: Array) -> Array:
        """The state that a token finds: the first one where a packed sequence starts (DPLR-7)."""
        if self.context.starts(t):
            before = self.point(f"start/{state}", t, same, first, before)
        before = self.point(f"enter/{state}", t, same, before)
        self.before[state] = before
        return before

    def write(self, state: str, j: int, rest: Array, compute: Compute, *arguments: Any) -> Array:
        """The state after row j: compute(*arguments) where its token writes, else `rest`."""
        name, t, step = self._place(state, j)
        writes = self.mask[t]
        store = self.context.store(t) if step + 1 == self.context.params.steps else None
        if writes is False:
            value = self.take(name, t, kept if store is None else store, rest)
            return self._noted(state, name, value)

        def finish(compute: Compute) -> Compute:
            if writes is True and store is None:
                return compute

            def whole(*each: Any) -> Array:
                value = chosen(writes, lambda: compute(*each), rest)
                return value if store is None else store(value)

            return whole

        return self._wrapped(state, name, (t, step), finish, compute, *arguments)

    def alone(self) -> Hook:
        """The hook of a token that writes and that no trace sees, from where this one stands."""
        return replace(self, mask=[True] * len(self.mask), take=computed, values=dict(self.values))

    def _wrapped(
        self,
        op: str,
        name: str,
        place: tuple[int, int],
        finish: Callable[[Compute], Compute],
        compute: Compute,
        *arguments: Any,
    ) -> Array:
        wraps = self.wraps.get(op)
        if wraps is None:
            value = self.take(name, place[0], finish(compute), *arguments)
        else:
            value = Op(self, name, *place, compute, finish, wraps)(*arguments)
        return self._noted(op, name, value)

    def _noted(self, op: str, name: str, value: Array) -> Array:
        if self.wraps:
            self.values[op] = self.values[name] = value
        return value
