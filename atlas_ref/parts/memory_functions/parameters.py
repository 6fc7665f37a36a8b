"""Parameters of a memory function: their names and shapes, their start, and what is refused.

Specified in specs/memory_functions.md (MEMFUN-2, MEMFUN-8, MEMFUN-9).
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_ref.parts.memory_functions import linear, mlp, polynomial
from atlas_ref.parts.memory_functions.function import MemoryFunction
from atlas_ref.types import Array, check_kind

#: Kind -> its tensors, fast matrices, start, values and gradient.
KINDS: dict[str, Any] = {"linear": linear, "mlp": mlp, "polynomial": polynomial}


def tensors(function: MemoryFunction, d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of a function, in their order (MEMFUN-2).

    Raises:
        ValueError: sizes below 1, or that contradict the settings.
    """
    for name, size in (("d_in", d_in), ("d_out", d_out)):
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"{name}: {size!r}, expected a whole number of at least 1")
    if function.with_input and d_in != d_out:
        raise ValueError(f"with_input: d_in {d_in} and d_out {d_out} must be the same")
    return dict(_tensors(tuple(function.__dict__.items()), int(d_in), int(d_out)))


@functools.lru_cache(maxsize=256)
def _tensors(fields: tuple[Any, ...], d_in: int, d_out: int) -> dict[str, tuple[int, ...]]:
    """The same of the fields of a function, which every write asks for."""
    function = MemoryFunction.trusted(**dict(fields))
    shapes: dict[str, tuple[int, ...]] = KINDS[function.kind].tensors(function, d_in, d_out)
    return shapes


def names_of(function: MemoryFunction) -> tuple[str, ...]:
    """Names of the parameters, in their order (MEMFUN-2)."""
    return tuple(_shapes(function))


def matrices(function: MemoryFunction) -> tuple[str, ...]:
    """Names of the parameters with two axes, in their order (MEMFUN-2)."""
    return tuple(name for name, shape in _shapes(function).items() if len(shape) == 2)


def _shapes(function: MemoryFunction) -> dict[str, tuple[int, ...]]:
    """Shapes for arguments of any width that leaves hidden units: names do not depend on it."""
    d = int(1.0 / function.expansion) + 1
    return tensors(function, d, d)


def mlp_matrices(function: MemoryFunction) -> tuple[str, ...]:
    """Names of the matrices of the MLP alone: those that the axis fast: mlp writes (MEMFUN-2)."""
    names: tuple[str, ...] = KINDS[function.kind].fast(function)
    return names


def initial(
    function: MemoryFunction, d_in: int, d_out: int, *, seed: int, dtype: Any = np.float64
) -> dict[str, Array]:
    """Parameters at their start, each drawn from its own stream of Philox (MEMFUN-8).

    Args:
        seed: a tensor's stream is Philox of the seed and the CRC-32 of the tensor's name.
        dtype: floating.

    Returns:
        arrays of the host, by name.

    Raises:
        ValueError: a seed that is not a whole number of at least 0, or another dtype.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: {seed!r}, expected a whole number that is not negative")
    check_kind("dtype", np.empty(0, dtype))
    start = KINDS[function.kind].initial
    return {
        name: start(function, name, shape, _stream(int(seed), name)).astype(dtype)
        for name, shape in tensors(function, d_in, d_out).items()
    }


def _stream(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox([seed, zlib.crc32(name.encode())]))


def check(
    function: MemoryFunction,
    params: Mapping[str, Array],
    d_in: int,
    d_out: int,
    name: str = "memory",
) -> None:
    """Refuse parameters that contradict the settings (MEMFUN-9).

    It reads no value, which would wait for a device.

    Args:
        params: by name, each of its own shape or with leading axes in front of it.
        name: what errors call the memory.

    Raises:
        ValueError: names the tensor, what was found and what is needed.
    """
    needed = tensors(function, d_in, d_out)
    if not isinstance(params, Mapping):
        raise ValueError(f"{name}: arrays by name are needed, found {type(params).__name__}")
    for each in params:
        if each not in needed:
            raise ValueError(
                f"{name}/{each}: unknown, kind {function.kind} has {', '.join(needed)}"
            )
    leading: dict[str, tuple[int, ...]] = {}
    for each, shape in needed.items():
        if each not in params:
            raise ValueError(f"{name}/{each}: missing, shape {shape} is needed")
        found = tuple(check_kind(f"{name}/{each}", params[each]).shape)
        count = len(found) - len(shape)
        if count < 0 or found[count:] != shape:
            raise ValueError(
                f"{name}/{each}: shape {found}, expected {shape} or leading axes in front of it"
            )
        leading[each] = found[:count]
        try:
            np.broadcast_shapes(*leading.values())
        except ValueError:
            raise ValueError(
                f"{name}/{each}: leading axes {found[:count]} do not broadcast with those of "
                f"the tensors before it, {_others(leading, each)}"
            ) from None


def _others(leading: dict[str, tuple[int, ...]], last: str) -> str:
    return ", ".join(f"{name} {axes}" for name, axes in leading.items() if name != last and axes)
