"""CUDA kernels for steps that take many launches as array operations, each with a plain twin.

Nothing here imports CuPy: kernels are compiled and launched through the CuPy of the arrays that
come in. Specified in specs/cuda.md.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from atlas_ref.types import Array

KINDS = ("float32", "float64")
_chosen: list[Any] = []


def available_for(*arrays: Array) -> bool:
    """Whether kernels can take these arrays: CuPy's, on its current device, in float32 or float64
    (CUDA-1).

    Arguments that are None are ignored. Tape variables, and the complex numbers of derivative
    checks, go through the array operations.
    """
    there = [x for x in arrays if x is not None]
    library = "numpy" if _chosen else "cupy"
    if not all(type(x).__module__.partition(".")[0] == library for x in there):
        return False
    return any({x.dtype.name for x in there} == {kind} for kind in KINDS) and all(
        map(_is_near, there)
    )


def _is_near(x: Array) -> bool:
    """Whether an array is where kernels would run; CuPy's operations reach other devices too."""
    own = getattr(getattr(x, "device", None), "id", None)
    return not isinstance(own, int) or own == sys.modules["cupy"].cuda.runtime.getDevice()


@contextlib.contextmanager
def running_on(device: Any) -> Iterator[None]:
    """Run kernels for NumPy's arrays on a device until the end of the block (CUDA-1).

    So the callers of kernels are tested without a GPU.
    """
    _chosen.append(device)
    try:
        yield
    finally:
        _chosen.pop()


def chosen() -> Any:
    """The device of `running_on`, None outside of it."""
    return _chosen[-1] if _chosen else None
