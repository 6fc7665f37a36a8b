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

import numpy as np

from atlas_ref.types import Array


def available_for(*arrays: Array) -> bool:
    """Whether compiled forms can take these arrays: of NumPy, in one of the two precisions that they are compiled for, all the same."""
    kinds = {(type(x), getattr(x, "dtype", None)) for x in arrays}
    return len(kinds) == 1 and kinds <= _TAKEN and wanted()


def wanted() -> bool:
    """Whether Numba is there and the environment does not forbid it."""
    return os.environ.get("ATLAS_REF_COMPILED", "1") != "0" and _installed() and not _given_up


def give_up(error: ImportError) -> None:
    """Do without Numba for the rest of the process, since it cannot be loaded, and say so."""
    global _given_up
    _given_up = True
    warnings.warn(f"Numba is installed but cannot be loaded, so NumPy computes in its place: {error}", RuntimeWarning, stacklevel=2)


_given_up = False
_TAKEN = {(np.ndarray, np.dtype(kind)) for kind in (np.float32, np.float64)}


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None
