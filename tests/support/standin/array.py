"""The stand-in: a host array behind the manners of a CuPy array.

What CuPy refuses it refuses: NumPy arrays beside it, conversion to NumPy but through its backend,
functions, parameters and methods that CuPy lacks (tests/support/standin/cupy.json, read off CuPy
itself), dtypes that it has not, also those of one special function. And what CuPy does but a run should not: anything that waits for
the device, such as a branch on an array, a mask as an index, `item`. Fresh memory holds nan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref import backend

API: dict[str, Any] = json.loads(Path(__file__).with_name("cupy.json").read_text())
UFUNCS = frozenset(API["ufuncs"])
SPECIAL: dict[str, list[str]] = API["special"]  # as "f->f"
FUNCTIONS: dict[str, list[str]] = API["functions"]
LINALG = frozenset(API["linalg"])
METHODS = frozenset(API["array"])

NAME = "strict"
KINDS = "?bhilqBHILQefdFD"  # dtypes of CuPy, by their characters
WAITING = frozenset(
    ("item", "tolist", "get", "tobytes", "nonzero", "dump", "dumps", "tofile", "toDlpack")
)
WAITING_FUNCTIONS = frozenset(
    (
        "nonzero",
        "argwhere",
        "flatnonzero",
        "unique",
        "extract",
        "array_equal",
        "allclose",
        "asnumpy",
        "array2string",
        "array_repr",
        "array_str",
    )
)
TO_HOST = frozenset(
    (
        "shape",
        "ndim",
        "size",
        "result_type",
        "iscomplexobj",
        "isrealobj",
        "can_cast",
        "may_share_memory",
    )
)
SETTINGS: dict[str, set[str]] = {
    "__call__": {"out", "dtype", "casting"},
    "reduce": {"axis", "dtype", "out", "keepdims"},
    "accumulate": {"axis", "dtype", "out"},
    "at": set(),
}
MATMUL_SETTINGS = {"out", "dtype", "casting", "axes", "axis", "keepdims", "order", "signature"}


class Refused(TypeError):
    """Error for an operation that CuPy does not have, or that a run on a device must avoid."""


class Strict(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that lives elsewhere."""

    __slots__ = ("_host",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        if held.dtype.char not in KINDS:
            raise Refused(f"CuPy has no arrays of {held.dtype}")
        self._host = held

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: Strict(self._host.T))
    real = property(lambda self: Strict(self._host.real))
    imag = property(lambda self: Strict(self._host.imag))
    base = property(lambda self: None if self._host.base is None else self)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Iterator[Strict]:
        return (Strict(np.asarray(each)) for each in self._host)

    def __repr__(self) -> str:
        return f"Strict({self._host!r})"

    def __getitem__(self, key: Any) -> Strict:
        return Strict(np.asarray(self._host[_key(key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._host[_key(key)] = _inside(value)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"CuPy's arrays have no {name}")
        if name in WAITING:
            raise Refused(f"{name} waits for the device: copy through backend.host")
        if name in ("flags", "data", "device", "cstruct", "mdspan"):
            raise Refused(f"{name} is not NumPy's on a device")
        method = getattr(self._host, name)

        def call(*args: Any, **settings: Any) -> Any:
            if settings.keys() & {"where", "initial"}:
                raise Refused(f"{name}: CuPy has no {', '.join(settings)}")
            return _outside(
                method(
                    *map(_inside, args), **{key: _inside(value) for key, value in settings.items()}
                )
            )

        return call

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Refused(
            "implicit conversion to a NumPy array is not allowed: copy through backend.host"
        )

    def _waits(self, *_: Any) -> Any:
        raise Refused(
            "a branch or a number out of an array waits for the device: ask backend.truth, or "
            "copy through backend.host"
        )

    __bool__ = __float__ = __int__ = __index__ = __complex__ = _waits

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        name = ufunc.__name__
        allowed = (
            MATMUL_SETTINGS if name == "matmul" and method == "__call__" else SETTINGS.get(method)
        )
        if name in SPECIAL and name not in UFUNCS and method == "__call__":
            _fits(name, [x.dtype for x in inputs if isinstance(x, Strict)])
        elif (
            name not in UFUNCS
            or allowed is None
            or (method == "at" and name not in ("add", "subtract", "maximum", "minimum"))
        ):
            return NotImplemented
        if any(isinstance(x, tuple | list) for x in inputs):
            return NotImplemented  # the key of `at` among them
        unknown = settings.keys() - (allowed or set())
        if unknown:
            raise Refused(f"cupy.{name}: no {', '.join(unknown)}")
        out = settings.get("out")
        if out is not None:
            if name == "matmul" and any(
                isinstance(x, Strict) and np.shares_memory(x._host, out[0]._host) for x in inputs
            ):
                raise Refused("cupy.matmul: the result overlaps an argument")
            settings["out"] = (_inside(out[0]),)
        result = getattr(ufunc, method)(*[_inside(x) for x in inputs], **settings)
        return out[0] if out is not None else _outside(result)

    def __array_function__(self, function: Any, _: Any, args: Any, settings: Any) -> Any:
        name = function.__name__
        if function.__module__ == "numpy.linalg" and name in LINALG:
            return _of_linear_algebra(function, args, settings)
        parameters = FUNCTIONS.get(name)
        if function.__module__ != "numpy" or (
            parameters is None and name not in ("size", "min_scalar_type")
        ):
            return NotImplemented
        if name in WAITING_FUNCTIONS:
            raise Refused(f"{name} waits for the device")
        if parameters is not None and not any(each.startswith("**") for each in parameters):
            unknown = [key for key in settings if key not in parameters]
            if unknown:
                raise Refused(f"cupy.{name}: no {', '.join(unknown)}")
        if name.endswith("_like") and settings.get("shape") == ():
            raise Refused(
                f"cupy.{name}: shape=() is taken for none given, and the result has the shape "
                "of the array"
            )
        if name == "einsum" and settings.keys() - {"dtype", "optimize"}:
            raise Refused(f"cupy.einsum: no {', '.join(settings.keys() - {'dtype', 'optimize'})}")
        result = function(*_inside(args), **_inside(settings))
        if name in TO_HOST:
            return result
        if name.startswith("empty"):
            _poison(result)
        return settings["out"] if settings.get("out") is not None else _outside(result)


def _of_linear_algebra(function: Any, args: Any, settings: Any) -> Any:
    """A result of `cupy.linalg`, whose `solve` takes leading axes that are the same."""
    inside = _inside(args)
    if function.__name__ == "solve" and inside[0].shape[:-1] != inside[1].shape[:-1]:
        raise Refused(f"cupy.linalg.solve: {inside[0].shape} beside {inside[1].shape}")
    return _outside(function(*inside, **_inside(settings)))


def _fits(name: str, dtypes: list[Any]) -> None:
    """Refuse arguments that no type of a special function takes."""
    taken = {kind for each in SPECIAL[name] for kind in each.split("->")[0]}
    for dtype in dtypes:
        if not any(np.can_cast(dtype, kind) for kind in taken):
            raise Refused(f"cupyx.scipy.special.{name}: no {dtype}, {', '.join(SPECIAL[name])}")


def _poison(array: Any) -> None:
    if array.dtype.kind in "fc":
        array[...] = np.nan


def _inside(x: Any) -> Any:
    """Arguments as NumPy takes them; a NumPy array among them is refused, as by CuPy."""
    if isinstance(x, Strict):
        return x._host
    if isinstance(x, np.ndarray):
        raise Refused("a NumPy array beside an array on a device")
    if isinstance(x, tuple | list):
        return type(x)([_inside(each) for each in x])
    return {name: _inside(each) for name, each in x.items()} if isinstance(x, dict) else x


def _outside(x: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic):
        return Strict(np.asarray(x))
    return type(x)([_outside(each) for each in x]) if isinstance(x, tuple | list) else x


def _key(key: Any) -> Any:
    """Check an index.

    CuPy would copy a NumPy array or a list to the device, and wait for the size of a mask's
    selection.
    """
    if isinstance(key, tuple):
        return tuple(_key(part) for part in key)
    if isinstance(key, Strict):
        if key.dtype == np.bool_:
            raise Refused("a mask as an index waits for the device")
        return key._host
    if isinstance(key, np.ndarray | list):
        raise Refused(
            "an index that is a NumPy array or a list is copied to the device in passing: use "
            "ops.index"
        )
    return key


class Functions:
    """The namespace of the stand-in, which creates arrays."""

    ndarray = Strict

    @staticmethod
    def zeros(shape: tuple[int, ...], dtype: Any = float) -> Strict:
        return Strict(np.zeros(shape, dtype))


def _strided(x: Strict, shape: tuple[int, ...], strides: tuple[int, ...]) -> Strict:
    return Strict(np.lib.stride_tricks.as_strided(x._host, shape, strides))


def make() -> backend.Backend:
    """The stand-in as a backend."""
    place: Callable[[Any], Any] = lambda x: Strict(np.array(x))  # noqa: E731
    return backend.Backend(NAME, Strict, Functions, place, lambda x: np.array(x._host), _strided)


backend.register(NAME, make)
