"""The hook that a loop calls at every op: what readings make of it, its rounding, its trace (PROG-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from atlas_ref.oracle.program.context import Place, Reads, Rows, base, no_label, select
from atlas_ref.oracle.program.reading import Reading, Wrap
from atlas_ref.types import Array
from tape import ops

#: Computes the value of an op from its arguments.
Compute = Callable[..., Array]

#: Called as take(op, t, compute, *arguments), where compute(*arguments) is the op at token t, and with
#: `counts` where some entries have no influence; the value with which the loop goes on.
Take = Callable[..., Array]

#: Op -> what stands in its place, each around the one before.
Wraps = Mapping[str, Sequence[Wrap]]


def take_as_is(op: str, t: int, compute: Compute, *arguments: Any) -> Array:
    """The value of an op as it is."""
    return compute(*arguments)


def same(x: Array, *others: Any) -> Array:
    """The first value as it is."""
    return x


def keep_state(before: Array) -> Array:
    """The value of a state that a token leaves as it is."""
    return before


def keep_and_transpose(before: Array) -> Array:
    """The same in a case whose matrices are transposed."""
    return before.swapaxes(-1, -2)


class Op(NamedTuple):
    """An op as a reading finds it: called with its arguments it is what the rule says.

    A trace sees what it is called with, and by which formula, but no change of the value that it
    then gives.

    Attributes:
        hook: that of the loop, with what the token found and computed so far.
        op: its name, without a step.
        name: in a trace; "" where it is no op of one.
        t, step: the token, and the step of its row.
        compute: the op of its arguments.
        finish: makes of this what is handed out: a state is rounded, or stays where nothing is written.
        wraps: readings inside this one.
        counts: which entries of the value have an influence; None for all.
    """

    hook: Hook
    op: str
    name: str
    t: int
    step: int
    compute: Compute
    finish: Callable[[Compute], Compute]
    wraps: Sequence[Wrap]
    counts: Any = None

    def __call__(self, *arguments: Any) -> Array:
        if self.wraps:
            *wraps, last = self.wraps
            return last(self._replace(wraps=wraps), *arguments)
        compute = self.finish(self.compute)
        if not self.name:
            return compute(*arguments)
        return self.hook.hand_out(
            self.op, self.name, self.t, compute, *arguments, counts=self.counts
        )

    def by(self, compute: Compute, *arguments: Any) -> Array:
        """The op by another formula."""
        return self._replace(compute=compute)(*arguments)

    def with_change(self, change: Callable[[Array], Array], *arguments: Any) -> Array:
        """The op by its formula with a change of the value, which a trace sees."""
        compute = self.compute
        return self.by(lambda *each: change(compute(*each)), *arguments)

    def other(self, op: str, compute: Compute, *arguments: Any) -> Array:
        """Another op of the row, at this place, as a trace sees it."""
        name = self.context.trace_name(op, self.step)
        return self.hook.hand_out(op, name, self.t, compute, *arguments)

    @property
    def context(self) -> Any:
        return self.hook.context

    @property
    def before(self) -> Mapping[str, Array]:
        """States as the token found them."""
        return self.hook.before

    @property
    def values(self) -> Mapping[str, Array]:
        """Ops of the token so far; one of a row by its name with and without the step."""
        return self.hook.values

    def entry(self, name: str) -> Array:
        """The entry of a tensor at this place, by its whole name."""
        return self.context.entry(self.t * self.context.steps + self.step, name)


@dataclass
class Hook:
    """The hook of one run (PROG-2).

    Attributes:
        context: what the loop runs on, a `context.Context`.
        rounding: op -> "touch" or "store".
        wraps: what readings put in the place of ops.
        mask: whether each token writes; where rows differ, in which.
        take: called at every op, in the layout of the case.
        before: states as the last token found them.
        latest, behind: states as they are, and as they were before their last op.
        values: ops since the loop last cleared them, where there are readings.
        known: op -> what rounds it, and what stands in its place.
    """

    context: Any
    rounding: Mapping[str, str]
    wraps: Wraps
    mask: Sequence[Any]
    take: Take = take_as_is
    before: dict[str, Array] = field(default_factory=dict)
    latest: dict[str, Array] = field(default_factory=dict)
    behind: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    known: dict[str, tuple[str | None, Sequence[Wrap]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Whether nobody listens, and whether no reading says anything either.
        self.unasked = self.take is take_as_is and self.context.label is no_label
        self.quiet = self.unasked and not self.wraps

    def __call__(
        self, op: str, j: Place, compute: Compute, *arguments: Any, counts: Any = None
    ) -> Array:
        """The value of an op: compute(*arguments), unless a reading says otherwise.

        Args:
            j: the token; of an op of `Context.step_ops` the row, which is one step of a token; of one
                with other rows than that of its token, its `context.Place`.
            arguments: values that have names: entries of the context, ops, first states, lists of
                them, and what is no array.
            counts: which entries of the value have an influence; None for all.
        """
        kind, wraps = self.known.get(op) or self._look_up(op)
        if self.quiet and kind is None:
            return compute(*arguments)
        name, t, step = self.context.place(op, j)
        if wraps:
            finish = same if kind is None else partial(self._round, kind, t)
            value = Op(self, op, name, t, step, compute, finish, wraps, counts)(*arguments)
        else:
            whole = compute if kind is None else self._round(kind, t, compute)
            value = self.hand_out(op, name, t, whole, *arguments, counts=counts)
        return self._note(op, name, value)

    def point(self, name: str, t: int, compute: Compute, *arguments: Any) -> Array:
        """A value at a token that no trace sees, and that a reading may wrap."""
        if not self.wraps:
            return compute(*arguments)
        _, wraps = self.known.get(name) or self._look_up(name)
        if not wraps:
            return compute(*arguments)
        value = Op(self, name, "", t, 0, compute, same, wraps)(*arguments)
        return self._note(name, name, value)

    def part(self, name: str, compute: Compute, *arguments: Any) -> Any:
        """A function inside of an op, which a reading may wrap as a point."""
        return self.point(name, 0, compute, *arguments)

    def start(self, state: str, t: int, before: Array, first: Array) -> Array:
        """The state that a token finds: the first one where a packed sequence starts, else `before`.

        A reading wraps it as start/STATE, with the first one and `before`, and at every token as
        enter/STATE. Where rows differ it is one value, of which a trace knows that the token before
        left it.
        """
        starts = self.context.starts(t)
        if starts is not False:
            fresh = self.point(f"start/{state}", t, same, first, before)
            if starts is not True:
                chosen_rows = select(starts, partial(same, fresh), before)
                left = self.context.trace_name(state, self.context.steps - 1)
                fresh = self.context.label(chosen_rows, (left,), t - 1)
            before = fresh
        if self.wraps:
            before = self.point(f"enter/{state}", t, same, before)
        self.before[state] = self.latest[state] = before
        return before

    def keep(self, state: str, t: int, before: Array) -> Array:
        """The value of a state at a token that leaves it as it is."""
        return self._note(state, state, self.hand_out(state, state, t, keep_state, before))

    def write(self, state: str, j: int, rest: Array, compute: Compute, *arguments: Any) -> Array:
        """The state after row j: compute(*arguments) where its token writes, else `rest`.

        It is rounded behind the last step of its token, also where that writes nothing.
        """
        kind, wraps = self.known.get(state) or self._look_up(state)
        name, t, step = self.context.place(state, j)
        writes, store = self.mask[t], None
        if kind == "store" and step + 1 == self.context.steps:
            store = self.context.store(t)
        if writes is False:
            value = self.hand_out(state, name, t, keep_state if store is None else store, rest)
            return self._note(state, name, value)

        def finish(compute: Compute) -> Compute:
            if writes is True and store is None:
                return compute

            def whole(*each: Any) -> Array:
                value = select(writes, lambda: compute(*each), rest)
                return value if store is None else store(value)

            return whole

        if wraps:
            value = Op(self, state, name, t, step, compute, finish, wraps)(*arguments)
        else:
            value = self.hand_out(state, name, t, finish(compute), *arguments)
        return self._note(state, name, value)

    def read(self, state: str, after: Array) -> Array:
        """The state that a query reads, `after` its token.

        A reading wraps it as read/STATE, with the state of before the last write too.
        """
        if not self.wraps:
            return after
        return self.point(f"read/{state}", 0, same, after, self.behind.get(state, after))

    def result(self, name: str, value: Array) -> Array:
        """A result; a reading wraps it as out/NAME, a state with the one before its last write."""
        return self.point(f"out/{name}", 0, same, value, self.behind.get(name, value))

    def alone(self) -> Hook:
        """The hook of a token that writes and that no trace sees, from where this one stands."""
        return replace(
            self,
            context=self.context._replace(label=no_label),
            mask=[True] * len(self.mask),
            take=take_as_is,
            latest=dict(self.latest),
            behind=dict(self.behind),
            values=dict(self.values),
        )

    def hand_out(
        self, op: str, name: str, t: Place, compute: Compute, *arguments: Any, counts: Any = None
    ) -> Array:
        """An op as whoever listens makes it of its computation, in the layout of the case."""
        if self.unasked:
            return compute(*arguments)
        some = {} if counts is None else {"counts": counts}
        if self.take is take_as_is:  # nobody looks at the layout
            value = compute(*arguments)
        elif isinstance(t, Rows | Reads):
            value = t.hand(self.take, name, compute, *arguments)
        elif self.context.is_transposed(op):
            laid = keep_and_transpose if compute is keep_state else _with_transpose(compute)
            value = self.take(name, t, laid, *arguments, **some).swapaxes(-1, -2)
        else:
            value = self.take(name, t, compute, *arguments, **some)
        label = self.context.label
        if label is no_label:
            return value
        return label(value, (name,), t if isinstance(t, int) else t.tokens)

    def _look_up(self, op: str) -> tuple[str | None, Sequence[Wrap]]:
        """What rounds an op, and what stands in its place, looked up once."""
        names = (op, base(op), op.partition("/")[0])
        kind = next((self.rounding[name] for name in names if name in self.rounding), None)
        wraps = next((self.wraps[name] for name in names if name in self.wraps), ())
        self.known[op] = kind, wraps
        return kind, wraps

    def _note(self, op: str, name: str, value: Array) -> Array:
        if self.wraps:
            self.values[op] = self.values[name] = value
            if op in self.latest:
                self.behind[op], self.latest[op] = self.latest[op], value
        return value

    def _round(self, kind: str, t: Any, compute: Compute) -> Compute:
        """An op whose value is rounded as its kind is."""
        rounding = self.context.rounding.touch if kind == "touch" else self.context.store(t)
        return compute if rounding is None else lambda *each: rounding(compute(*each))


def hook_of(
    context: Any, rounding: Mapping[str, str], readings: Sequence[Reading], take: Take = take_as_is
) -> Hook:
    """The hook of a run under readings."""
    wraps: dict[str, list[Wrap]] = {}
    for reading in readings:
        for op, wrap in reading.ops.items():
            wraps.setdefault(op, []).append(wrap)
    return Hook(context, rounding, wraps, context.mask(), take)


def _with_transpose(compute: Compute) -> Compute:
    return lambda *arguments: compute(*arguments).swapaxes(-1, -2)


# -- what readings put in the place of ops -------------------------------------------------------------


def by(compute: Compute) -> Wrap:
    """An op by another formula of its arguments."""
    return lambda op, *each: op.by(compute, *each)


def behind(change: Callable[[Array], Array]) -> Wrap:
    """An op with a change of its value, which no trace sees."""
    return lambda op, *each: change(op(*each))


def within(change: Callable[..., Array]) -> Wrap:
    """An op by a formula that begins with the formula of the rule: change(compute, *arguments)."""
    return lambda op, *each: op.by(partial(change, op.compute), *each)


def without_gradient(op: Op, *arguments: Any) -> Array:
    """The op as a value that no gradient goes through."""
    return op.with_change(ops.stop_gradient, *arguments)
