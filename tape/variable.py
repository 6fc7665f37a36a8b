"""A variable: a value together with its place on a tape, and all that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from tape.core import Tape

#: An array of any backend, a number, or a `Variable`: three kinds with no common base class.
Array: TypeAlias = Any


class TapeError(TypeError):
    """A request that cannot be answered correctly; the message says what to write instead."""


def _refused(what: str, instead: str) -> Callable[..., NoReturn]:
    """A method of a variable that raises and says what to write instead (TAPE-11)."""

    def refuse(self: Variable, *_: object, **__: object) -> NoReturn:
        raise TapeError(f"{what} is not possible on a tape variable: {instead}")

    return refuse


class Variable:
    """A value recorded on a tape.

    It supports arithmetic, `@`, indexing, `.T` and the functions of `tape.ops`. Operations that
    would lose the record - NumPy functions, conversion to a number, comparison, assignment - raise
    and say what to write instead (TAPE-11).

    Attributes:
        value: the value one level down, an array or a variable of an outer tape.
        tape: the list it is recorded on.
        index: its place there.
    """

    __slots__ = ("index", "tape", "value")
    # array + variable comes to __radd__; a ufunc call is refused by NumPy itself
    __array_ufunc__ = None

    def __init__(self, value: Array, tape: Tape, index: int) -> None:
        self.value = value
        self.tape = tape
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return shape(self.value)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(shape(self.value))

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(shape(self.value)))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Floating or complex dtype of the value."""
        return dtype(self.value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tape variable without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return iter([self[i] for i in range(len(self))])

    def __repr__(self) -> str:
        return f"Variable(shape={self.shape}, dtype={self.dtype}, level={self.tape.level})"

    def __array_function__(self, function: Callable[..., Any], *_: object) -> NoReturn:
        name = function.__name__
        instead = f"use tape.ops.{name}, or compose it of functions of tape.ops"
        _refused(f"np.{name}", instead)(self)

    __array__ = _refused(
        "a NumPy function or np.asarray", "use the function of the same name in tape.ops"
    )
    __bool__ = _refused(
        "truth value (if, while, and, or, not)", "branch on a plain array, or use ops.where"
    )
    __float__ = _refused("float()", "keep it a variable; math functions are in tape.ops")
    __int__ = _refused("int()", "an integer has no derivative; compute it from plain arrays")
    __complex__ = _refused(
        "complex()", "keep it a variable; every function of tape.ops takes complex arrays"
    )
    __index__ = _refused("use as an index", "compute indices from plain arrays")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused(
        "comparison",
        "use ops.less, ops.greater or ops.equal, which compare real parts and give plain booleans",
    )
    __contains__ = _refused("in", "use ops.equal, which gives plain booleans")
    __hash__ = _refused("use as a key or in a set", "use a name or a position as the key")
    __setitem__ = _refused(
        "assignment to an element", "build a new array with ops.where, ops.concatenate or ops.stack"
    )
    __copy__ = __deepcopy__ = __reduce_ex__ = _refused(
        "copy or pickle", "variables belong to one differentiation; copy plain arrays"
    )

    # `tape.ops` sets these, and the operators of two arrays, to the recorded ops.
    __neg__: Any
    __getitem__: Any
    swapaxes: Any
    T: Any


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
