"""Forms compiled by Numba: used where it is installed (extra `fast`), and never needed.

Python runs on one thread at a time, so threads that compute many small products each wait for one another between them. A
compiled form runs through without coming back to Python, and what it needs in between stays near the processor.

Set ATLAS_REF_COMPILED=0 to do without.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from atlas_ref.types import Array


def available_for(*arrays: Array) -> bool:
    """Whether compiled forms can take these arrays: of NumPy, in one of the two precisions that they are compiled for, all the same."""
    kinds = {(type(x), getattr(x, "dtype", None)) for x in arrays}
    return len(kinds) == 1 and kinds <= _TAKEN and wanted()


def wanted() -> bool:
    """Whether Numba is there and the environment does not forbid it."""
    return os.environ.get("ATLAS_REF_COMPILED", "1").lower() not in ("0", "false", "no", "off") and _installed()


@functools.cache
def walk_for(kind: np.dtype[Any]) -> Callable[..., None] | None:
    """The walk over all chunks of a memory compiled for a dtype (`chunks.walk`); None, and a warning, where Numba does not do it here."""
    try:
        from atlas_ref.compiled.chunks import compile_walk  # here, since Numba takes its time to load

        return compile_walk(kind)
    except Exception as error:  # a Numba that is too old for its NumPy, or broken, must harm no call that can do without
        warnings.warn(f"Numba is installed but cannot be used, so NumPy computes in its place: {error!r}", RuntimeWarning, stacklevel=2)
        return None


_TAKEN = {(np.ndarray, np.dtype(kind)) for kind in (np.float32, np.float64)}


@functools.cache
def _installed() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # something else stands in its place
        return False
