"""The Wengert list on which variables are recorded, and the backward sweep over it.

A differentiation opens one `Tape`. Every op on one of its variables appends one entry: the indices
of its parents and, for each, a pullback. Index order is topological order, so the backward sweep is
a loop over the list from its end; there is no graph search and no recursion limit.

Tapes nest. An op belongs to the innermost tape among its arguments and computes on values one level
down, which may be variables of an outer tape. A gradient of a gradient therefore needs no flag.

Specified in specs/tape.md: order, levels and plain arrays, TAPE-1 to TAPE-3, TAPE-5.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tape.scatter import Collected, Scatter
from tape.variable import Array, TapeError, Variable

#: Maps the cotangent of an entry's value to that of one parent (or, for a joint rule, of all).
Pullback: TypeAlias = Callable[[Array], Any]

#: Makes the pullback of a recorded op from its value, its arguments one level down and settings.
Rule: TypeAlias = Callable[..., Pullback | Scatter]

#: How a parent is reached: (its index, pullback), or for a joint rule (indices of all arguments or
#: None, pullback).
Edge: TypeAlias = tuple[Any, Any]

Guard: TypeAlias = Callable[[str, Sequence[Array], Array], None]


class Fresh(tuple[Array | None, ...]):
    """Cotangents of a joint rule in arrays of their own, which become gradients without a copy."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Tape:
    """One Wengert list.

    Attributes:
        level: nesting depth, 1 for the outermost open tape.
        entries: for each variable its edges to its parents; an input has none.
        guard: called with (op name, arguments one level down, value) before an entry is appended;
            None while the tape simply records.
        prints: in checking mode, (op name, argument position or -1, array, fingerprint) of all that
            was recorded.
        thread: the thread that records; another one would lose or misplace entries.
    """

    level: int
    entries: list[Sequence[Edge]] = field(default_factory=list)
    guard: Guard | None = None
    prints: list[tuple[str, int, np.ndarray[Any, Any], int]] = field(default_factory=list)
    thread: int = field(default_factory=get_ident)

    def variable(self, value: Array) -> Variable:
        """Append an input, an entry without parents."""
        self.entries.append(())
        return Variable(value, self, len(self.entries) - 1)

    def print_all(self, name: str, args: Sequence[Array], value: Array) -> None:
        """Keep the fingerprints of a record; the guard of checking mode."""
        for position, argument in [*enumerate(args), (-1, value)]:
            # a key of an index may be a tuple
            for array in argument if isinstance(argument, tuple) else (argument,):
                if isinstance(array, np.ndarray):
                    self.prints.append((name, position, array, hash(array.tobytes())))

    def verify(self) -> None:
        """Refuse a sweep after an array of a record was changed."""
        for name, position, array, fingerprint in self.prints:
            if hash(array.tobytes()) != fingerprint:
                which = "the result" if position < 0 else f"argument {position}"
                raise TapeError(
                    f"ops.{name}: {which}, shape {array.shape}, was changed after it was "
                    "recorded; pass a copy"
                )


class _Open(threading.local):
    """The tapes that are open in this thread, outermost first."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.checking = False


_open = _Open()


def _finished(name: str, args: Sequence[Array], value: Array) -> NoReturn:
    raise TapeError(
        f"ops.{name}: a tape variable left the function that was being differentiated; "
        "return what you need from that function instead of storing it"
    )


def is_finished(tape: Tape) -> bool:
    """Whether the function that was recorded on this tape has returned."""
    return tape.guard is _finished


@contextlib.contextmanager
def recording() -> Iterator[Tape]:
    """Open a tape one level above the others; once closed, its variables are refused (TAPE-18)."""
    tape = Tape(_open.tapes[-1].level + 1 if _open.tapes else 1)
    if _open.checking:
        tape.guard = tape.print_all
    _open.tapes.append(tape)
    try:
        yield tape
    finally:
        _open.tapes.pop()
        tape.guard = _finished


@contextlib.contextmanager
def sealed(reason: str) -> Iterator[None]:
    """Refuse every record on the tapes open now; tapes opened inside are free."""

    def refuse(name: str, args: Sequence[Array], value: Array) -> NoReturn:
        raise TapeError(f"ops.{name}: {reason}")

    before = [(tape, tape.guard) for tape in _open.tapes]
    for tape, _ in before:
        tape.guard = refuse
    try:
        yield
    finally:
        for tape, guard in before:
            tape.guard = guard


@contextlib.contextmanager
def checking() -> Iterator[None]:
    """Refuse a sweep after an array that was recorded inside has changed (TAPE-12)."""
    before, _open.checking = _open.checking, True
    try:
        yield
    finally:
        _open.checking = before


class Op:
    """A function that records itself when an argument is a variable.

    On plain arrays it is the function it wraps. Its rules are two-stage: `rule(value, *args,
    **settings)` runs at record time, picks what to keep, and returns the pullback. Pullbacks are
    written in operators and ops, never in NumPy, so they can be differentiated again.
    """

    def __init__(self, function: Callable[..., Array], name: str) -> None:
        self.function = function
        self.rules: dict[int, Rule] = _Rules(name)
        self.joint: Callable[..., Pullback] | None = None
        self.__name__ = name
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"ops.{self.__name__}"

    def __call__(self, *args: Array, **settings: Any) -> Array:
        """The value; with a variable it is recorded, by the outer stage of each rule (TAPE-4)."""
        tape: Tape | None = None
        for a in args:
            if type(a) is Variable and (tape is None or a.tape.level > tape.level):
                tape = a.tape
        if tape is None:
            return self.function(*args, **settings)
        down = list(args)
        own: dict[int, int] = {}  # position -> index of each argument on this tape
        outer = False  # whether a variable of an outer tape remains one level down
        for position, a in enumerate(args):
            if type(a) is Variable:
                if a.tape is tape:
                    own[position] = a.index
                    down[position] = a = a.value
                if type(a) is Variable:
                    outer = True
        value = self(*down, **settings) if outer else self.function(*down, **settings)
        if type(value) is Variable and not outer:
            raise TapeError(
                f"ops.{self.__name__}: a tape variable came in by keyword or was captured; "
                "pass it as a positional argument"
            )
        if tape.guard is not None:
            tape.guard(self.__name__, down, value)
        if tape.thread != get_ident():
            raise TapeError(
                f"ops.{self.__name__}: a tape variable was used in another thread; open the "
                "differentiation in that thread"
            )
        edges: list[Edge] = []
        if self.joint is None:
            for position, index in own.items():
                edges.append((index, self.rules[position](value, *down, **settings)))
        else:
            parents = tuple([own.get(position) for position in range(len(args))])
            edges.append((parents, self.joint(value, *down, **settings)))
        tape.entries.append(edges)
        return Variable(value, tape, len(tape.entries) - 1)


class Unary(Op):
    """An op of one array and no settings, recorded without loops over arguments."""

    def __call__(self, a: Array) -> Array:
        if type(a) is not Variable:
            return self.function(a)
        tape, x = a.tape, a.value
        if type(x) is Variable or tape.guard is not None or tape.thread != get_ident():
            return super().__call__(a)
        value = self.function(x)
        tape.entries.append(((a.index, self.rules[0](value, x)),))
        return Variable(value, tape, len(tape.entries) - 1)


class Binary(Op):
    """An op of two arrays and no settings, recorded as directly as a `Unary`."""

    def __call__(self, a: Array, b: Array) -> Array:
        left, right = type(a) is Variable, type(b) is Variable
        if not (left or right):
            return self.function(a, b)
        tape = a.tape if left else b.tape
        x = a.value if left else a
        y = b.value if right else b
        if (left and right and b.tape is not tape) or type(x) is Variable or type(y) is Variable:
            return super().__call__(a, b)
        if tape.guard is not None or tape.thread != get_ident():
            return super().__call__(a, b)
        value = self.function(x, y)
        edges: list[Edge] = []
        if left:
            edges.append((a.index, self.rules[0](value, x, y)))
        if right:
            edges.append((b.index, self.rules[1](value, x, y)))
        tape.entries.append(edges)
        return Variable(value, tape, len(tape.entries) - 1)


class _Rules(dict[int, Rule]):
    """Rule by position of the argument, with a refusal where there is none (TAPE-6)."""

    def __init__(self, name: str) -> None:
        self.name = name  # and not the op: an op made for one call would live on in a cycle

    def __missing__(self, position: int) -> NoReturn:
        raise TapeError(
            f"ops.{self.name} has no derivative with respect to argument {position}; "
            "pass it as a plain array"
        )


def primitive(function: Callable[..., Array], name: str | None = None, kind: type[Op] = Op) -> Op:
    """Make an op of a function on plain arrays; give it rules with `defvjp`.

    Args:
        function: arrays and settings -> array; it must not use variables that it captured.
        name: in refusals; that of the function where left out.
        kind: `Unary` or `Binary` for a NumPy function of one or two arrays and no settings, which
            is recorded faster.
    """
    return kind(function, name or function.__name__.strip("_"))


def defvjp(op: Op, *rules: Rule | None) -> None:
    """State the pullback of each argument, in order; None where there is no derivative (TAPE-4)."""
    op.rules.clear()
    op.rules.update({i: rule for i, rule in enumerate(rules) if rule is not None})


def defvjp_joint(op: Op, rule: Callable[..., Pullback]) -> None:
    """State one pullback for all arguments: a tuple of cotangents, None where there is none."""
    op.joint = rule


def sweep(
    tape: Tape, seeds: dict[int, Array], inputs: Sequence[int]
) -> list[tuple[Array | None, bool]]:
    """Propagate the cotangents `seeds` back to the entries `inputs`.

    Returns for each input its cotangent, None where nothing arrives, and whether nothing else holds
    that array.

    Runs over the list from its end. The order of additions is the reverse of the order of records,
    for all values (TAPE-7). Cotangents are never changed in place: an array may be the cotangent
    of several entries, or the caller's.
    """
    tape.verify()
    entries = tape.entries
    top = max(seeds, default=-1)
    cotangent: list[Array | None] = [None] * (top + 1)
    fresh: set[int] = set()
    for index, seed in seeds.items():
        cotangent[index] = seed
    for index in range(top, -1, -1):
        g = cotangent[index]
        if g is None:
            continue
        if type(g) is Collected:
            cotangent[index] = g = g.total()
        entry = entries[index]
        for parent, pullback in entry:
            if type(pullback) is Scatter:
                have = cotangent[parent]
                if type(have) is not Collected:
                    cotangent[parent] = have = Collected(have, pullback)
                have.add(pullback.key, g)
            elif type(parent) is tuple:
                parts = pullback(g)
                for each, part in zip(parent, parts, strict=True):
                    if each is not None and part is not None:
                        have = cotangent[each]
                        cotangent[each] = part if have is None else have + part
                        if type(parts) is Fresh:  # and so are sums with it
                            fresh.add(each)
            else:
                part = pullback(g)
                have = cotangent[parent]
                cotangent[parent] = part if have is None else have + part
        if entry:
            cotangent[index] = None
    return [(cotangent[i] if i <= top else None, i in fresh) for i in inputs]
