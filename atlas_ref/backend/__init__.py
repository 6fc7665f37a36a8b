"""The backend of arrays: NumPy on the host, or CuPy on a GPU.

    atlas_ref.backend.use("cupy")        or ATLAS_REF_BACKEND=cupy, or --backend cupy

decides where parameters and states are made, and where the commands compute. Everything else
follows its arrays: a rule, a form or a gradient computes where its arguments are, and nothing is
copied between host and device on the way but masks and indices, which are made on the host.
`device` and `host` copy, and count it.

Specified in specs/backend.md.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atlas_ref.messages import install
from tape import constants
from tape.nested import is_leaf
from tape.variable import Array, plain

__all__ = [
    "Backend",
    "BackendError",
    "Copies",
    "as_strided",
    "at_once",
    "changed",
    "current",
    "device",
    "host",
    "named",
    "negated",
    "of",
    "on_host",
    "register",
    "require_one",
    "truth",
    "use",
    "used",
]

VARIABLE = "ATLAS_REF_BACKEND"
# numbers that a form takes at once on a device, over those that fit the caches of a host; not
# measured on a device yet
DEVICE_ROOM = 16


class BackendError(ValueError):
    """A backend that cannot be used here, or arrays of two backends in one call."""


@dataclass
class Copies:
    """Copies between host and device since the program began (BACKEND-5).

    Attributes:
        to_device, to_host: number of copies. bytes: of all of them.
    """

    to_device: int = 0
    to_host: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Backend:
    """A library of arrays (BACKEND-2, BACKEND-12).

    Attributes:
        name: as `use` takes it.
        array: its type of arrays.
        xp: its functions, by NumPy's names.
        place: a NumPy array -> one of its own; fetch: the reverse.
        as_strided: (x, shape, strides) -> a view of x.
        device: the number of the device that is current in that library.
        copies: made so far.
    """

    name: str
    array: type
    xp: Any
    place: Callable[[np.ndarray[Any, Any]], Any]
    fetch: Callable[[Any], np.ndarray[Any, Any]]
    as_strided: Callable[[Any, tuple[int, ...], tuple[int, ...]], Any]
    device: Callable[[], int] = int
    copies: Copies = field(default_factory=Copies)

    def from_host(self, x: Any) -> Array:
        """A NumPy array as one of this backend; one that is there already, as it is (BACKEND-5)."""
        if isinstance(x, self.array):
            return x
        x = np.asarray(x)  # an array of a third backend raises here
        self.copies.to_device += 1
        self.copies.bytes += x.nbytes
        return self.place(x)

    def to_host(self, x: Any) -> np.ndarray[Any, Any]:
        """An array of this backend as a NumPy array; one that is there already, as it is.

        Source: BACKEND-5.
        """
        if not isinstance(x, self.array) or self.array is np.ndarray:
            return np.asarray(x)
        copy = self.fetch(x)
        self.copies.to_host += 1
        self.copies.bytes += copy.nbytes
        return copy

    def zeros(self, shape: tuple[int, ...], kind: Any) -> Array:
        """Zeros in this backend."""
        return self.xp.zeros(shape, kind)


def _strided_on_host(x: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    if x.flags.c_contiguous:  # a few times as fast, and it refuses what lies outside of x
        return np.ndarray(shape, x.dtype, x, strides=strides)
    return np.lib.stride_tricks.as_strided(x, shape, strides)


NUMPY = Backend("numpy", np.ndarray, np, np.asarray, np.asarray, _strided_on_host)


def _cupy() -> Backend:
    """CuPy and a GPU that it can use, with products in full float32 (BACKEND-3, BACKEND-6)."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise BackendError(
            f"backend cupy: CuPy is not installed ({error}): {install('cuda')} for CUDA 13, "
            "cuda12 in place of cuda for CUDA 12"
        ) from None
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # of the driver, of any kind
        raise BackendError(
            f"backend cupy: no GPU can be used ({str(error).splitlines()[0]}); --backend "
            "numpy runs on the host"
        ) from None
    if count == 0:
        raise BackendError("backend cupy: no GPU was found; --backend numpy runs on the host")
    refuse_tf32(os.environ)
    strided = importlib.import_module("cupy.lib.stride_tricks").as_strided
    return Backend(
        "cupy", cupy.ndarray, cupy, cupy.asarray, cupy.asnumpy, strided, cupy.cuda.runtime.getDevice
    )


def refuse_tf32(environment: Mapping[str, str]) -> None:
    """Refuse TF32, which keeps 11 of the 24 bits of float32, without ATLAS_REF_TF32=1 (BACKEND-6).

    Raises:
        BackendError: TF32 is on without that variable.
    """
    if environment.get("ATLAS_REF_TF32", "0") not in ("", "0"):
        return
    for name in ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE"):
        if environment.get(name, "0") not in ("", "0"):
            raise BackendError(
                f"backend cupy: {name}={environment[name]} makes float32 products in TF32, "
                "which keeps 11 of 24 bits; "
                "unset it, or set ATLAS_REF_TF32=1 if you want that"
            )
    products = importlib.import_module("cupy._core._routines_linalg")
    if products.get_compute_type(np.dtype(np.float32)) == products.COMPUTE_TYPE_TF32:
        raise BackendError(
            "backend cupy: float32 products are set to TF32; set ATLAS_REF_TF32=1 if you want that"
        )


#: Name -> the function that makes the backend at its first use.
_makers: dict[str, Callable[[], Backend]] = {"numpy": lambda: NUMPY, "cupy": _cupy}
_made: dict[str, Backend] = {"numpy": NUMPY}
_by_type: dict[type, Backend] = {np.ndarray: NUMPY}
_current: list[Backend] = []


def register(name: str, make: Callable[[], Backend]) -> None:
    """Add a backend under a name."""
    _makers[name] = make
    _made.pop(name, None)


def named(name: str) -> Backend:
    """The backend of that name.

    Raises:
        BackendError: there is none of that name, or it cannot be used here.
    """
    if name not in _makers:
        raise BackendError(f"backend {name!r}: expected one of {', '.join(_makers)}")
    if name not in _made:
        backend = _makers[name]()
        _made[name] = _by_type[backend.array] = backend
        constants.register(backend.array, backend.from_host, backend.device)
    return _made[name]


def use(name: str) -> Backend:
    """Make parameters and states in this backend from now on, and let commands compute there
    (BACKEND-1).

    Raises:
        BackendError: there is none of that name, or it cannot be used here.
    """
    backend = named(name)
    _current[:] = [backend]
    return backend


@contextlib.contextmanager
def used(name: str) -> Iterator[Backend]:
    """`use` until the end of the block."""
    before = current()
    try:
        yield use(name)
    finally:
        _current[:] = [before]


def current() -> Backend:
    """The backend in use: that of the last `use`, else ATLAS_REF_BACKEND, else NumPy (BACKEND-1).

    Raises:
        BackendError: the variable names none that can be used.
    """
    return _current[0] if _current else use(os.environ.get(VARIABLE) or "numpy")


def of(*arrays: Array) -> Backend:
    """The backend that holds the arrays, tape variables by their values; NumPy's for numbers
    (BACKEND-2).

    Raises:
        BackendError: arrays of two backends.
    """
    backend = NUMPY
    for x in arrays:
        own = _by_type.get(type(plain(x)), NUMPY)
        if own is NUMPY or own is backend:
            continue
        if backend is not NUMPY:
            raise BackendError(
                f"arrays of {backend.name} and of {own.name}: move them to one backend"
            )
        backend = own
    return backend


def device(nest: Any) -> Any:
    """A copy of a model, dict, tuple or array with every array in the backend in use.

    Source: BACKEND-5.
    """
    return changed(nest, current().from_host)


def host(nest: Any) -> Any:
    """A copy of a model, dict, tuple or array with every array in NumPy (BACKEND-5)."""
    return changed(nest, lambda x: of(x).to_host(x))


def changed(nest: Any, change: Callable[[Any], Array]) -> Any:
    """A copy of a nest with `change` applied to every floating or complex array or variable.

    Masks, numbers and settings stay.
    """
    if is_leaf(nest):
        return change(nest) if hasattr(nest, "dtype") else nest
    if hasattr(type(nest), "model_construct"):
        return type(nest).model_construct(
            **{name: changed(value, change) for name, value in nest.__dict__.items()}
        )
    if isinstance(nest, dict):
        return {name: changed(value, change) for name, value in nest.items()}
    if isinstance(nest, tuple | list):
        values = [changed(value, change) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else type(nest)(values)
    return nest


# -- for the rules and the forms -------------------------------------------------------------------


def require_one(named: Mapping[str, Array]) -> None:
    """Refuse arrays of two backends in one call (BACKEND-4).

    Raises:
        ValueError: names the array, its backend and that of the first.
    """
    first: tuple[str, Backend] | None = None
    for name, x in named.items():
        own = _by_type.get(type(plain(x)))
        if own is None or plain(x).dtype.kind in "biu":  # masks stay on the host
            continue
        if first is None:
            first = name, own
        elif own is not first[1]:
            raise ValueError(
                f"{name}: in {own.name}, but {first[0]} is in {first[1].name}; move it with "
                "backend.device or backend.host"
            )


def truth(x: Any) -> bool:
    """The value of one boolean; from a device it is copied, which is slow inside a loop."""
    return bool(x if type(x) is np.bool_ else of(x).to_host(x))


def as_strided(x: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of x with other axes, which may overlap: not for writing, unless they do not."""
    return of(x).as_strided(x, shape, strides)


def negated(x: Array, out: Array) -> Array:
    """-x into `out`.

    Real numbers not by `np.negative`: that of NumPy 2.4 takes wrong entries of an x whose entries
    lie 8 (float64) or 4 (float32) apart, where those of `out` are apart too. Complex ones not by a
    product, which makes nan of an infinity's other part.

    Args:
        x, out: of one shape and dtype, on one device; `out` may be x itself.

    Returns:
        out.
    """
    result: Array = (
        np.negative(x, out=out) if x.dtype.kind == "c" else np.multiply(x, -1.0, out=out)
    )
    return result


def at_once(x: Array, numbers: int) -> int:
    """The count of numbers that a form takes at once beside x, from that on the host.

    Source: BACKEND-11.
    """
    return numbers if on_host(x) else DEVICE_ROOM * numbers


def on_host(x: Array) -> bool:
    """Whether an array is NumPy's, so that caches and threads of this processor matter to it."""
    return of(x) is NUMPY
