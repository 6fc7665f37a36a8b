"""Forms compiled by Numba, where it is installed (extra `fast`); plain twin:
`atlas_ref.forms.chunked_plain`.

Threads that compute many small products in NumPy contend for the GIL between them. A compiled form
never returns to Python, and its intermediate arrays stay in the cache.

ATLAS_REF_COMPILED=0 switches them off.
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
    """Whether compiled forms can take these arrays: of NumPy, all float32 or all float64."""
    kinds = {(type(x), getattr(x, "dtype", None)) for x in arrays}
    return len(kinds) == 1 and kinds <= _TAKEN and wanted()


def wanted() -> bool:
    """Whether Numba is installed and the environment allows it."""
    return (
        os.environ.get("ATLAS_REF_COMPILED", "1").lower() not in ("0", "false", "no", "off")
        and _installed()
    )


@functools.cache
def loop_for(kind: np.dtype[Any]) -> Callable[..., None] | None:
    """The inter-chunk loop of a memory compiled for a dtype; None, and a warning, where Numba
    fails.
    """
    try:
        # here, since Numba is slow to load
        from atlas_ref.engine.compiled.chunks import (
            compile_loop,
        )

        return compile_loop(kind)
    except Exception as error:  # a Numba that is too old for its NumPy, or broken, must harm no call that can do without
        warnings.warn(
            f"Numba is installed but cannot be used, so NumPy computes in its place: {error!r}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


_TAKEN = {(np.ndarray, np.dtype(kind)) for kind in (np.float32, np.float64)}


@functools.cache
def _installed() -> bool:
    try:
        return importlib.util.find_spec("numba") is not None
    except ValueError:  # something else stands in its place
        return False
