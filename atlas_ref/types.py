"""Frozen data with checked arrays: the base of every `Config`, `Params` and `State`.

Array fields declare their shape in named dimensions:

    class State(Frozen):
        M: Annotated[Array, Dims("... d_out d_phi")]
        S: Annotated[Array, Dims("... d_out d_phi")]

Building one checks that every field is a floating or complex array (or a tape variable), that equal
names mean equal sizes, and that every number is finite. Arrays are copied read-only. `trusted` and
`replaced` skip all of that: they are for the inside of a loop, on values that were checked at its
boundary.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from atlas_ref import backend
from tape.variable import Array, plain, shape

__all__ = ["Array", "Count", "Dims", "Frozen", "Phase", "Pulse", "bind_dims"]

#: A number of tokens, entries, heads or steps: at least one, and no more than an array can index.
Count = Annotated[int, Field(ge=1, lt=2**63)]
#: What a pass over tokens is for (PULSE-8).
Phase = Literal["build", "test", "stream"]


@dataclass(frozen=True)
class Dims:
    """Shape of an array field in named dimensions, with an optional range.

    Attributes:
        names: such as "... d_out d_phi"; "..." stands for any leading axes, the same in every field
            that has it; a number is an exact size.
        low, high: inclusive bounds of every entry.
        optional: whether None may stand in place of the array.
    """

    names: str
    low: float | None = None
    high: float | None = None
    optional: bool = False


class Frozen(BaseModel):
    """Immutable validated data; equal when of the same type with bit-equal arrays."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        strict=True,
        # what validates is built at the first use: a command uses few of these classes
        defer_build=True,
    )

    _dims: ClassVar[dict[str, Dims]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        declared = {
            name: [m for m in field.metadata if isinstance(m, Dims)]
            for name, field in cls.model_fields.items()
        }
        cls._dims = {name: metadata[0] for name, metadata in declared.items() if metadata}

    @model_validator(mode="after")
    def _check_arrays(self) -> Self:
        sizes: dict[str, Any] = {}
        for name, dims in type(self)._dims.items():
            value = self.__dict__[name]
            if value is None and dims.optional:
                continue
            check_array(name, value, dims)
            bind_dims(name, shape(value), dims.names, sizes)
        backend.require_one(self.__dict__)
        self.__dict__.update(read_only(self.__dict__))
        return self

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        # a pickle does not keep it, nor does a deep copy
        self.__dict__.update(read_only(self.__dict__))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = super().__deepcopy__(memo)
        copied.__dict__.update(read_only(copied.__dict__))
        return copied

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """Build without validation, from values that were validated before."""
        self = cls.__new__(cls)
        object.__setattr__(self, "__dict__", fields)
        object.__setattr__(self, "__pydantic_fields_set__", set(fields))
        object.__setattr__(self, "__pydantic_extra__", None)
        object.__setattr__(self, "__pydantic_private__", None)
        return self

    def replaced(self, **changes: Any) -> Self:
        """A copy with some fields changed, without validation."""
        return self.trusted(**{**self.__dict__, **changes})

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and same_bits(self.__dict__, other.__dict__)

    __hash__ = None  # type: ignore[assignment]  # arrays inside


def check_array(name: str, value: Any, dims: Dims) -> None:
    """Refuse a value that is not a finite floating or complex array within its range.

    Raises:
        ValueError: names the field, what was found and the rule it breaks.
    """
    bare = check_kind(name, value)
    if not backend.truth(np.isfinite(bare).all()):
        bare = backend.host(bare)
        where = _first(~np.isfinite(bare))
        raise ValueError(f"{name}: every entry must be finite, found {bare[where]} at {where}")
    for bound, bad, word in ((dims.low, np.less, "at least"), (dims.high, np.greater, "at most")):
        if bound is not None and backend.truth(bad(np.real(bare), bound).any()):
            bare = backend.host(bare)
            where = _first(bad(np.real(bare), bound))
            raise ValueError(
                f"{name}: entries must be {word} {bound:g}, found {bare[where]} at {where}"
            )


def check_kind(name: str, value: Any) -> Array:
    """The array of a value or of a tape variable; refuse one that is not floating or complex.

    Raises:
        ValueError: names the field and what was found.
    """
    bare = plain(value)
    if isinstance(bare, np.matrix) or _is_masked(bare):  # whose products and indices differ
        raise ValueError(f"{name}: a plain array is needed, found {type(bare).__name__}")
    kind = getattr(bare, "dtype", None)
    if kind is None:
        raise ValueError(f"{name}: an array is needed, found {type(bare).__name__}")
    # by name: bfloat16 and int4 are voids alike
    if kind.kind not in "fc" and not any(word in kind.name for word in ("float", "complex")):
        raise ValueError(f"{name}: a floating or complex dtype is needed, found {kind}")
    return bare


def _is_masked(value: Any) -> bool:
    """Whether a value is a masked array, of which there is none before its module is imported."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def _first(bad: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(bad)[0])


def bind_dims(name: str, actual: tuple[int, ...], names: str, sizes: dict[str, Any]) -> None:
    """Match a shape with named dimensions, recording new names in `sizes`.

    Raises:
        ValueError: names the array, both shapes and, where a name was bound before, by which array.
    """
    words, leading, exact = _axes(names)
    lead = len(actual) - len(words) + 1 if leading else 0
    if lead < 0 or (not leading and len(actual) != len(words)):
        raise ValueError(f"{name}: shape {actual}, expected axes ({', '.join(words)})")
    found = (actual[:lead], *actual[lead:]) if leading else actual
    for word, needed, size in zip(words, exact, found, strict=True):
        if needed is not None:
            if size != needed:
                raise ValueError(
                    f"{name}: shape {actual}, expected axes ({', '.join(words)}); found "
                    f"{size} where {word} is needed"
                )
            continue
        bound, by = sizes.setdefault(word, (size, name))
        if bound != size:
            label = "leading axes" if word == "..." else word
            raise ValueError(
                f"{name}: shape {actual} makes {label} {size}, but {by} makes it {bound}"
            )


@functools.cache
def _axes(names: str) -> tuple[tuple[str, ...], bool, tuple[int | None, ...]]:
    """Words of named dimensions, whether the first stands for any axes, and the exact sizes."""
    words = tuple(names.split())
    return words, words[:1] == ("...",), tuple(int(w) if w.isdigit() else None for w in words)


def read_only(value: Any) -> Any:
    """A read-only copy of an array, or of each array of a dict.

    An array that is read-only already, and a variable, are returned as they are.
    An array on a device cannot be protected and is taken as it is (BACKEND-7).
    """
    if isinstance(value, dict):
        return {key: read_only(each) for key, each in value.items()}
    if isinstance(value, np.ndarray) and _writeable(value):
        value = value.copy()
        value.flags.writeable = False
    return value


def _writeable(value: Any) -> bool:
    """Whether an array can be changed, through itself or through the array of which it is a
    view.
    """
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return True
        value = value.base
    return value is not None and not isinstance(value, bytes)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two nests of values agree in type and, for arrays, in dtype, shape and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if not backend.on_host(a):
        a, b = backend.of(a).to_host(a), backend.of(b).to_host(b)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a == b)


class Pulse(Frozen):
    """The levels that write at one step, and the phase (PULSE-1, PULSE-10).

    Attributes:
        step: number of the step.
        active: for each level, whether it writes; elsewhere it reads only, and the token still
            enters its window.
        phase: build, where the outer loop learns; test and stream, where it does not.
        chunk_boundaries: for each level, whether a chunk of its begins with this step; empty where
            a pulse comes from a conductor alone, which knows no state.
    """

    step: Annotated[int, Field(ge=0)] = 0
    active: tuple[bool, ...] = (True,)
    phase: Phase = "build"
    chunk_boundaries: tuple[bool, ...] = ()

    def is_active(self, level: int) -> bool:
        """Whether a level, counted from 0, writes at this step.

        Raises:
            ValueError: a level that is none of them.
        """
        whole = isinstance(level, int | np.integer) and not isinstance(level, bool)
        if not whole or not 0 <= level < len(self.active):
            raise ValueError(
                f"level: {level!r}, expected one of {len(self.active)}, counted from 0"
            )
        return self.active[level]

    @property
    def learns(self) -> bool:
        """Whether the outer loop runs: in phase build alone. No inner loop asks (PULSE-8)."""
        return self.phase == "build"
