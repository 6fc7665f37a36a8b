"""CUDA kernels for what takes many launches as array operations, each beside the plain code that it must agree with.

Nothing here imports CuPy: kernels are compiled and launched through the CuPy of the arrays that come in. Specified in specs/cuda.md.
"""

from __future__ import annotations

from atlas_ref.types import Array


def available_for(*arrays: Array) -> bool:
    """Whether kernels can take these arrays: all that are there are CuPy's, so that CuPy and a GPU are (CUDA-1)."""
    there = [x for x in arrays if x is not None]
    return bool(there) and all(type(x).__module__.partition(".")[0] == "cupy" for x in there)
