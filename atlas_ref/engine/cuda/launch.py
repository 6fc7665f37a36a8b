"""The launch of a kernel by its name: source, instantiation, arguments and limits of the device
(CUDA-1 to CUDA-3).

A kernel is named by its C++ name with the types filled in, `coefficient_rows<float, true>`, and
compiled at its first use. It runs on a `Device`: the GPU of CuPy's arrays, or in the tests a host
that runs the same source. Plain twins are named by the modules that launch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from atlas_ref.engine import cuda
from atlas_ref.types import Array

SOURCES = Path(__file__).parent / "source"
C_TYPES = {"float32": "float", "float64": "double", "float16": "f16", "bfloat16": "bf16"}
WITHOUT_ASKING = 48 * 1024  # bytes of shared memory that every kernel may have without an opt-in
MOST_BLOCKS_ACROSS = 65535
OPTIONS = ("-std=c++17",)
Size = tuple[int, ...]


class DoesNotFit(ValueError):
    """Shapes that a kernel does not take, or that need more shared memory than a block has."""


class View(NamedTuple):
    """An array with its strides, for kernels that read along any axis: `View<T, ndim>` in C++.

    Attributes:
        array: None for an argument that is not there, `at` 0 in C++.
        ndim: number of its axes.
    """

    array: Array
    ndim: int


class Struct(NamedTuple):
    """A C++ struct of views, pointers and 64-bit integers, passed by value."""

    fields: tuple[Any, ...]


Argument = Array | View | Struct | int | None
# an array, and whether it is read by strides -> where its first entry is
Addresses = Callable[[Array, bool], int]


def view(x: Array) -> View:
    """An array as a `View` of as many axes as it has."""
    return View(x, x.ndim)


def packed(x: View | Struct, address: Addresses) -> np.ndarray[Any, Any]:
    """The bytes of a struct, as the NumPy array of one entry that CuPy passes by value."""
    words = _words(x, address)
    return np.array([(words,)], dtype=[("words", np.int64, (len(words),))])


def _words(x: Argument, address: Addresses) -> list[int]:
    if isinstance(x, Struct):
        return [word for field in x.fields for word in _words(field, address)]
    if isinstance(x, View):
        if x.array is None:
            return [0] * (1 + x.ndim)
        return [
            address(x.array, True),
            *(step // x.array.dtype.itemsize for step in x.array.strides),
        ]
    if x is None or isinstance(x, int):
        return [x or 0]
    return [address(x, False)]


class Device(Protocol):
    """A device on which kernels run; its `xp` makes and joins arrays as NumPy does."""

    xp: Any

    def shared_limit(self) -> int:
        """Bytes of shared memory that a block may have at most."""

    def launch(
        self,
        source: str,
        name: str,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Argument],
    ) -> None:
        """Run a kernel of a source file over a grid of blocks."""


class CupyDevice:
    """The GPU that is current in CuPy, on CuPy's current stream."""

    def __init__(self, cupy: Any) -> None:
        self.xp = cupy

    def shared_limit(self) -> int:
        return int(self.xp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    def launch(
        self,
        source: str,
        name: str,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Argument],
    ) -> None:
        kernel = _compiled(self.xp, source, name)
        if shared > WITHOUT_ASKING:
            kernel.max_dynamic_shared_size_bytes = shared
        kernel(grid, block, tuple(map(_passed, arguments)), shared_mem=shared)


@functools.cache
def _compiled(cupy: Any, source: str, name: str) -> Any:
    """The kernel; CuPy compiles it for each device at its first run there."""
    return cupy.RawModule(
        code=source_text(source), options=OPTIONS, name_expressions=(name,)
    ).get_function(name)


def _passed(x: Argument) -> Any:
    """An argument for CuPy: pointers, structs as NumPy arrays of one entry, 64-bit integers."""
    if isinstance(x, View | Struct):
        return packed(x, lambda array, _: int(array.data.ptr))
    return np.int64(x) if isinstance(x, int) else x


@functools.cache
def source_text(source: str) -> str:
    """A source file with its includes in place, as one text that compiles without a folder."""
    common = (SOURCES / "common.cuh").read_text().replace("#pragma once", "")
    return (SOURCES / f"{source}.cu").read_text().replace('#include "common.cuh"', common)


def device_of(*arrays: Array, device: Device | None = None) -> Device:
    """The device of the argument, else that of `cuda.running_on`, else that of the arrays.

    Raises:
        TypeError: arrays that are not CuPy's.
    """
    chosen: Device | None = device or cuda.chosen()
    if chosen is not None:
        return chosen
    if not all(type(x).__module__.partition(".")[0] == "cupy" for x in arrays if x is not None):
        kinds = sorted(
            {type(x).__module__ + "." + type(x).__name__ for x in arrays if x is not None}
        )
        raise TypeError(f"kernels take CuPy arrays, found {', '.join(kinds) or 'none'}")
    return CupyDevice(sys.modules["cupy"])


def run(
    device: Device,
    source: str,
    name: str,
    *,
    grid: Size,
    block: Size,
    arguments: Sequence[Argument],
    shared: int = 0,
) -> None:
    """Launch a kernel, after a check of its shared memory and of the layout of its arrays.

    Raises:
        DoesNotFit: more shared memory than a block can have.
    """
    if shared > device.shared_limit():
        raise DoesNotFit(
            f"{name}: {shared} bytes of shared memory a block, of which the device has "
            f"{device.shared_limit()}"
        )
    if 0 in grid:
        return  # nothing to compute, where CuPy would launch one block
    if max(grid[1:], default=1) > MOST_BLOCKS_ACROSS:
        raise DoesNotFit(
            f"{name}: {grid} blocks, of which a grid has at most {MOST_BLOCKS_ACROSS} along "
            "its second axis"
        )
    for x in _pointers(arguments):
        if not x.flags.c_contiguous:
            raise ValueError(
                f"{name}: an array of shape {x.shape} with gaps or turned axes, expected one "
                "that is contiguous"
            )
    device.launch(source, name, grid, block, shared, arguments)


def _pointers(arguments: Iterable[Argument]) -> Iterator[Array]:
    """The arrays that a kernel expects to be contiguous."""
    for x in arguments:
        if isinstance(x, Struct):
            yield from _pointers(x.fields)
        elif x is not None and not isinstance(x, int | View):
            yield x


def arithmetic(name: str, x: Array, **others: Array) -> str:
    """The C++ type of arrays whose arithmetic is in their own dtype.

    Raises:
        TypeError: neither float32 nor float64, or one of the others of another type.
    """
    if x.dtype.name not in cuda.KINDS:
        raise TypeError(f"{name}: {x.dtype.name}, expected float32 or float64")
    for other, y in others.items():
        if y is not None and y.dtype != x.dtype:
            raise TypeError(f"{other}: {y.dtype.name}, expected {x.dtype.name} as {name}")
    return C_TYPES[x.dtype.name]


def ceil_div(a: int, b: int) -> int:
    """The least integer that is not below a / b."""
    return -(-a // b)
