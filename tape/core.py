"""The Wengert list: variables, the list they are recorded on, and the sweep that pulls cotangents back.

A differentiation opens one `Tape`. Every op on one of its variables appends one entry: the indices of
its parents and, for each, a pullback. Index order is topological order, so the backward sweep is a loop
over the list from its end; there is no graph search and no recursion limit.

Tapes nest. An op belongs to the innermost tape among its arguments and computes on values one level
down, which may be variables of an outer tape. A gradient of a gradient therefore needs no flag.

Specified in specs/tape.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

#: An array of any backend, a number, or a `Variable`: three kinds with no common base class.
Array: TypeAlias = Any

#: Maps the cotangent of an entry's value to the cotangent of one parent (or, for a joint rule, of all).
Pullback: TypeAlias = Callable[[Array], Any]

Guard: TypeAlias = Callable[[str, Sequence[Array], Array], None]


class TapeError(TypeError):
    """A request that cannot be answered correctly; the message says what to write instead."""


class Tape:
    """One Wengert list.

    Attributes:
        entries: for each variable the pairs (parent index, pullback); a joint rule has one pair
            (tuple of parent indices, pullback).
        level: nesting depth, 1 for the outermost open tape.
        guard: called with (op name, arguments one level down, value) before an entry is appended;
            None while the tape simply records.
    """

    __slots__ = ("entries", "guard", "level", "prints")

    def __init__(self, level: int) -> None:
        self.entries: list[Sequence[tuple[Any, Any]]] = []
        self.level = level
        self.guard: Guard | None = None
        self.prints: list[tuple[str, int, np.ndarray[Any, Any], int]] = []

    def variable(self, value: Array) -> Variable:
        """Append an input, an entry without parents."""
        self.entries.append(())
        return Variable(value, self, len(self.entries) - 1)


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


@contextlib.contextmanager
def recording() -> Iterator[Tape]:
    """Open a tape one level above those already open; its variables are refused after it closes."""
    tape = Tape(_open.tapes[-1].level + 1 if _open.tapes else 1)
    if _open.checking:
        tape.guard = _fingerprinter(tape)
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
    """Checking mode: an array that changes between its record and the backward sweep is an error (TAPE-12)."""
    before, _open.checking = _open.checking, True
    try:
        yield
    finally:
        _open.checking = before


def _fingerprinter(tape: Tape) -> Guard:
    def note(name: str, args: Sequence[Array], value: Array) -> None:
        for position, array in enumerate([*args, value]):
            if isinstance(array, np.ndarray):
                where = position if position < len(args) else -1
                tape.prints.append((name, where, array, hash(array.tobytes())))

    return note


def _verify(tape: Tape) -> None:
    for name, position, array, fingerprint in tape.prints:
        if hash(array.tobytes()) != fingerprint:
            which = "result" if position < 0 else f"argument {position}"
            raise TapeError(f"ops.{name}: {which}, shape {array.shape}, was changed after it was recorded; pass a copy")


class Variable:
    """A value recorded on a tape.

    It supports arithmetic, `@`, indexing, `.T` and the functions of `tape.ops`. Whatever would lose
    the record - NumPy functions, conversion to a number, comparison, assignment - raises and says
    what to write instead.
    """

    __slots__ = ("index", "tape", "value")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # comparisons refuse, so a hash would mislead

    def __init__(self, value: Array, tape: Tape, index: int) -> None:
        self.value = value
        self.tape = tape
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        return shape(self.value)

    @property
    def ndim(self) -> int:
        return len(shape(self.value))

    @property
    def size(self) -> int:
        return int(np.prod(shape(self.value)))

    @property
    def dtype(self) -> np.dtype[Any]:
        return dtype(self.value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tape variable without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return iter([self[i] for i in range(len(self))])

    def __repr__(self) -> str:
        return f"Variable(shape={self.shape}, dtype={self.dtype}, level={self.tape.level})"

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        _refuse("a NumPy function or np.asarray", "use the function of the same name in tape.ops")

    def __array_function__(self, function: Callable[..., Any], *_: object) -> NoReturn:
        _refuse(f"np.{function.__name__}", f"use tape.ops.{function.__name__}")

    def __bool__(self) -> NoReturn:
        _refuse("truth value (if, while, and, or, not)", "branch on a plain array, or use ops.where")

    def __float__(self) -> NoReturn:
        _refuse("float()", "keep it a variable; math functions are in tape.ops")

    def __int__(self) -> NoReturn:
        _refuse("int()", "an integer has no derivative; compute it from plain arrays")

    def __complex__(self) -> NoReturn:
        _refuse("complex()", "keep it a variable")

    def __index__(self) -> NoReturn:
        _refuse("use as an index", "compute indices from plain arrays")

    def _compare(self, other: object) -> NoReturn:
        _refuse("comparison", "use ops.less, ops.greater or ops.equal, which compare real parts and give plain booleans")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compare

    def __contains__(self, item: object) -> NoReturn:
        _refuse("in", "use ops.equal on plain arrays")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        _refuse("assignment to an element", "build a new array with ops.where, ops.concatenate or ops.stack")

    def __deepcopy__(self, memo: object) -> NoReturn:
        _refuse("copy or pickle", "variables belong to one differentiation; copy plain arrays")

    __copy__ = __deepcopy__
    __reduce_ex__ = __deepcopy__  # type: ignore[assignment]

    # Arithmetic: `tape.ops` sets these to the recorded ops of the same name.
    __add__: Any
    __radd__: Any
    __sub__: Any
    __rsub__: Any
    __mul__: Any
    __rmul__: Any
    __truediv__: Any
    __rtruediv__: Any
    __pow__: Any
    __rpow__: Any
    __neg__: Any
    __matmul__: Any
    __rmatmul__: Any
    __getitem__: Any
    swapaxes: Any
    T: Any


def _refuse(what: str, instead: str) -> NoReturn:
    raise TapeError(f"{what} is not possible on a tape variable: {instead}")


def shape(x: Array) -> tuple[int, ...]:
    """Shape of an array, a variable or a number."""
    try:
        return x.shape  # type: ignore[no-any-return]
    except AttributeError:
        return np.shape(x)


def dtype(x: Array) -> np.dtype[Any]:
    """Floating or complex dtype of an array, a variable or a number."""
    try:
        return x.dtype  # type: ignore[no-any-return]
    except AttributeError:
        return np.asarray(x).dtype


def plain(x: Array) -> Array:
    """The number or array under a variable, all levels stripped."""
    while type(x) is Variable:
        x = x.value
    return x


class Op:
    """A function that records itself when an argument is a variable.

    On plain arrays it is the function it wraps. Its rules are two-stage: `rule(value, *args, **settings)`
    runs at record time, picks what to keep, and returns the pullback. Pullbacks are written in ops, so
    they can be differentiated again.
    """

    def __init__(self, function: Callable[..., Array]) -> None:
        self.function = function
        self.__name__ = function.__name__.strip("_")
        self.__doc__ = function.__doc__
        self.rules = _rules(self.__name__, ())
        self.joint: Callable[..., Pullback] | None = None

    def __repr__(self) -> str:
        return f"ops.{self.__name__}"

    def __call__(self, *args: Array, **settings: Any) -> Array:
        tape: Tape | None = None
        for a in args:
            if type(a) is Variable and (tape is None or (a.tape is not tape and a.tape.level > tape.level)):
                tape = a.tape
        if tape is None:
            return self.function(*args, **settings)
        down: list[Array] = []
        parents: list[Any] = []
        outer = False  # whether a variable of an outer tape remains one level down
        for a in args:
            if type(a) is not Variable:
                parents.append(None)
            elif a.tape is tape:
                parents.append(a.index)
                a = a.value
                outer = outer or type(a) is Variable
            else:
                parents.append(None)
                outer = True
            down.append(a)
        value = self(*down, **settings) if outer else self.function(*down, **settings)
        if tape.guard is not None:
            tape.guard(self.__name__, down, value)
        if self.joint is None:
            pairs = []
            for parent, rule in zip(parents, self.rules, strict=False):
                if parent is not None:
                    pairs.append((parent, rule(value, *down, **settings)))
            entry: Any = pairs
        else:
            entry = ((tuple(parents), self.joint(value, *down, **settings)),)
        entries = tape.entries
        entries.append(entry)
        return Variable(value, tape, len(entries) - 1)


MOST_ARGUMENTS = 8


def _rules(name: str, given: Sequence[Callable[..., Pullback] | None]) -> tuple[Callable[..., Pullback], ...]:
    """The rules of all positions, with a refusal wherever none was given."""
    padded = [*given, *[None] * (MOST_ARGUMENTS - len(given))]
    return tuple([_no_rule(name, i) if rule is None else rule for i, rule in enumerate(padded)])


def _no_rule(name: str, position: int) -> Callable[..., NoReturn]:
    def refuse(*args: Array, **settings: Any) -> NoReturn:
        raise TapeError(f"ops.{name} has no derivative with respect to argument {position}; pass it as a plain array")

    return refuse


def primitive(function: Callable[..., Array]) -> Op:
    """Make an op of a function on plain arrays; give it rules with `defvjp`."""
    return Op(function)


def defvjp(op: Op, *rules: Callable[..., Pullback] | None) -> None:
    """State the pullback of each argument, in order; None where there is no derivative (TAPE-4)."""
    op.rules = _rules(op.__name__, rules)


def defvjp_joint(op: Op, rule: Callable[..., Pullback]) -> None:
    """State one pullback that returns the cotangents of all arguments, as a tuple."""
    op.joint = rule


class Scatter:
    """The pullback of indexing: adds the cotangent into a zero array at `key`.

    The sweep adds into one buffer in place, so a loop over x[0], x[1], ... costs one array, not T of
    them; `dense` is the same map as an op, for cotangents that are variables.
    """

    __slots__ = ("basic", "dense", "dtype", "key", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], key: Any, basic: bool, dense: Pullback) -> None:
        self.shape = shape
        self.dtype = dtype
        self.key = key
        self.basic = basic
        self.dense = dense

    def into(self, buffer: np.ndarray[Any, Any], g: Array) -> None:
        if self.basic:
            buffer[self.key] += g
        else:
            np.add.at(buffer, self.key, g)


def sweep(tape: Tape, seeds: dict[int, Array], inputs: Sequence[int]) -> list[Array | None]:
    """Pull the cotangents `seeds` back to the entries `inputs`; None where nothing arrives.

    Runs over the list from its end. The order of additions is the reverse of the order of records,
    whatever the values are.
    """
    if tape.prints:
        _verify(tape)
    entries = tape.entries
    top = max(seeds, default=-1)
    cotangent: list[Array | None] = [None] * (top + 1)
    owned: set[int] = set()
    for index, seed in seeds.items():
        cotangent[index] = seed
    for index in range(top, -1, -1):
        g = cotangent[index]
        if g is None:
            continue
        entry = entries[index]
        for parent, pullback in entry:
            if type(pullback) is Scatter and type(g) is not Variable:
                _scatter(cotangent, owned, parent, pullback, g)
            elif type(parent) is tuple:
                for each, part in zip(parent, pullback(g), strict=True):
                    if each is not None and part is not None:
                        have = cotangent[each]
                        cotangent[each] = part if have is None else have + part
            else:
                part = pullback.dense(g) if type(pullback) is Scatter else pullback(g)
                have = cotangent[parent]
                if have is None:
                    cotangent[parent] = part
                else:
                    cotangent[parent] = total = have + part
                    if type(total) is np.ndarray:
                        owned.add(parent)  # a fresh array: later scatters may add into it
        if entry:
            cotangent[index] = None
    return [cotangent[i] if i <= top else None for i in inputs]


def _scatter(cotangent: list[Array | None], owned: set[int], parent: int, pullback: Scatter, g: Array) -> None:
    have = cotangent[parent]
    if type(have) is Variable:
        cotangent[parent] = have + pullback.dense(g)
        return
    if parent not in owned:
        kind = np.result_type(pullback.dtype, g)
        buffer = np.zeros_like(plain(g), shape=pullback.shape, dtype=kind)
        if have is not None:
            buffer += have
        cotangent[parent] = have = buffer
        owned.add(parent)
    elif np.iscomplexobj(g) and not np.iscomplexobj(have):
        cotangent[parent] = have = have.astype(np.result_type(have, g))
    pullback.into(have, g)
