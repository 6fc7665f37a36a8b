"""Loops compiled by Numba, where it is installed (extra `fast`).

Threads that compute many small products in NumPy contend for the GIL between them. A compiled loop
never returns to Python, and its intermediate arrays stay in the cache.

ATLAS_REF_COMPILED=0 switches them off.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

#: Bytes of a vector of a compiled loop: four registers of AVX2, two of AVX-512.
LANES_BYTES = 128
#: Row sums are taken for as many rows at once as a register of AVX2 has numbers.
SUM_BYTES = 32

_TAKEN = {(np.ndarray, np.dtype(kind)) for kind in (np.float32, np.float64)}


def available_for(*arrays: Any) -> bool:
    """Whether compiled loops can take these arrays: of NumPy, all float32 or all float64."""
    kinds = {(type(x), getattr(x, "dtype", None)) for x in arrays}
    return len(kinds) == 1 and kinds <= _TAKEN and wanted()


def wanted() -> bool:
    """Whether Numba is installed and the environment allows it."""
    return (
        os.environ.get("ATLAS_REF_COMPILED", "1").lower() not in ("0", "false", "no", "off")
        and _installed()
    )


@functools.cache
def loop(module: str, *settings: Any) -> Callable[..., None] | None:
    """What `compiled_for(*settings)` of a module makes; None, and a warning, where Numba fails.

    The module is imported here, since Numba is slow to load.
    """
    try:
        made: Callable[..., None] = importlib.import_module(module).compiled_for(*settings)
    # a Numba that is too old for its NumPy, or broken, must harm no call that can do without
    except Exception as error:
        warnings.warn(
            f"Numba is installed but cannot be used, so NumPy computes in its place: {error!r}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return made


@functools.cache
def _installed() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # something else stands in its place
        return False
