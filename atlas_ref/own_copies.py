"""Copies that nobody can change of large arrays, made and looked through by all threads.

A call that takes milliseconds spends a tenth of them on copying its arguments and on looking for what is not finite. Each
thread takes a part of every array, and looks through its copy while that is still near the processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_ref.threads import in_threads, processors, slices
from tape.core import Array, plain

LARGE = 2**18  # entries of all arrays together below which a second thread costs more than it saves


def own_copies(fields: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, bool]]:
    """The floating and complex arrays of the host among some fields, if they are large, and whether each is finite.

    Returns:
        copies: of arrays that can be changed, read-only; no entry for others.
        finite: of each array that was looked through.
    """
    arrays = {name: plain(value) for name, value in fields.items()}
    arrays = {name: x for name, x in arrays.items() if isinstance(x, np.ndarray) and x.dtype.kind in "fc" and x.ndim}
    threads = processors()
    if threads == 1 or sum(x.size for x in arrays.values()) < LARGE:
        return {}, {}
    copies = {name: np.empty_like(x, order="C") for name, x in arrays.items() if fields[name] is x and writeable(x)}
    parts = [partial(_taken, arrays, copies, part, threads) for part in range(threads)]
    found = in_threads(parts)
    for copy in copies.values():
        copy.flags.writeable = False
    return copies, {name: all(each[name] for each in found) for name in arrays}


def _taken(arrays: Mapping[str, Array], copies: Mapping[str, Array], part: int, parts: int) -> dict[str, bool]:
    """One part of each array, along its longest axis but the last."""
    finite = {}
    for name, x in arrays.items():
        axis = int(np.argmax(x.shape[:-1])) if x.ndim > 1 else 0
        own = (*(slice(None),) * axis, slices(x.shape[axis], parts)[part])
        seen = x[own]
        if name in copies:
            copies[name][own] = seen
            seen = copies[name][own]
        finite[name] = bool(np.isfinite(seen).all())
    return finite


def writeable(value: Any) -> bool:
    """Whether an array can be changed, through itself or through what it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return True
        value = value.base
    return value is not None and not isinstance(value, bytes)
