"""The part of CuPy in `benchmarks.gpu.devices`, on NumPy: clocks and memory with scripted
counts.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np


class Pool:
    """A pool that holds what `grown` says until it is emptied."""

    def __init__(self) -> None:
        self.held = 0

    def total_bytes(self) -> int:
        return self.held

    def free_all_blocks(self) -> None:
        self.held = 0


class Event:
    """An event that reads the scripted clock, in milliseconds."""

    now = 0.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        assert hasattr(self, "at")


class OutOfMemoryError(MemoryError):
    """CuPy's error of the same name."""


def module(gpus: int = 1) -> Any:
    """A module to stand in `sys.modules["cupy"]`."""
    pool = Pool()
    stand_in: Any = types.ModuleType("cupy")
    for name in ("asarray", "tile", "ascontiguousarray", "ndarray"):
        setattr(stand_in, name, getattr(np, name))
    stand_in.__version__ = "0"
    stand_in.asnumpy = stand_in.from_dlpack = np.asarray
    stand_in.get_default_memory_pool = lambda: pool
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: gpus,
        memGetInfo=lambda: (7, 9),
        getDeviceProperties=lambda _: {
            "name": b"A GPU",
            "totalGlobalMem": 141e9,
            "multiProcessorCount": 132,
        },
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
    )
    stand_in.cuda = types.SimpleNamespace(
        runtime=runtime,
        Event=Event,
        get_elapsed_time=lambda start, stop: stop.at - start.at,
        Device=lambda: types.SimpleNamespace(synchronize=lambda: None),
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    )
    return stand_in
