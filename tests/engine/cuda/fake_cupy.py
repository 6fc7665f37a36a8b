"""The few calls of CuPy that launches and graphs make, on NumPy's arrays.

It runs nothing and keeps the requests.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class ndarray:
    """An array that claims to be CuPy's."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.data = types.SimpleNamespace(ptr=value.ctypes.data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __setitem__(self, key: Any, value: ndarray) -> None:
        self.value[key] = value.value

    def copy(self) -> ndarray:
        return ndarray(self.value.copy())


ndarray.__module__ = "cupy"


class CUDARuntimeError(RuntimeError):
    """The class of the driver's errors."""


class Stream:
    """Launches of a stream: run at once, or written down while it is being captured."""

    def __init__(self, fake: FakeCupy) -> None:
        self.fake, self.capturing, self.broken = fake, False, False
        self.recorded: list[Callable[[], None]] = []

    def __enter__(self) -> Stream:
        self.fake.streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.fake.streams.pop()

    def synchronize(self) -> None:
        if self.capturing:
            self.broken = True
            raise CUDARuntimeError(
                "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is "
                "capturing"
            )

    def begin_capture(self, mode: int) -> None:
        assert mode == 1
        self.capturing, self.recorded = True, []

    def end_capture(self) -> Any:
        self.capturing = False
        if self.broken:
            raise CUDARuntimeError(
                "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error "
                "during capture"
            )
        recorded = list(self.recorded)
        return types.SimpleNamespace(launch=lambda stream: [each() for each in recorded])

    def launch(self, work: Callable[[], None]) -> None:
        self.recorded.append(work) if self.capturing else work()


class FakeCupy:
    """A stand-in for the module `cupy`."""

    empty, broadcast_to, ascontiguousarray, matmul = (
        staticmethod(f) for f in (np.empty, np.broadcast_to, np.ascontiguousarray, np.matmul)
    )
    ndarray = ndarray

    def __init__(self) -> None:
        self.compiled: list[dict[str, Any]] = []
        self.launched: list[tuple[str, Any, Any, tuple[Any, ...], int]] = []
        self.most_shared: dict[str, int] = {}
        self.allocators: list[Any] = []
        self.pool: list[int] = []  # bytes of a pool, ask by ask; 0 at the end
        self.streams = [Stream(self)]
        self.cuda = types.SimpleNamespace(
            Device=lambda: types.SimpleNamespace(
                attributes={"MaxSharedMemoryPerBlockOptin": 100_000}
            ),
            Stream=lambda non_blocking: Stream(self),
            MemoryPool=lambda: types.SimpleNamespace(
                malloc=object(), total_bytes=lambda: self.pool.pop(0) if self.pool else 0
            ),
            get_current_stream=lambda: self.streams[-1],
            using_allocator=self._using,
            runtime=types.SimpleNamespace(
                streamCaptureModeThreadLocal=1, CUDARuntimeError=CUDARuntimeError
            ),
        )

    @contextlib.contextmanager
    def _using(self, allocator: Any) -> Iterator[None]:
        self.allocators.append(allocator)
        yield

    def RawModule(self, **settings: Any) -> Any:
        self.compiled.append(settings)
        return types.SimpleNamespace(get_function=lambda name: Kernel(self, name))


class Kernel:
    """A compiled kernel."""

    def __init__(self, fake: FakeCupy, name: str) -> None:
        object.__setattr__(self, "fake", fake)
        object.__setattr__(self, "name", name)

    def __setattr__(self, name: str, value: int) -> None:
        assert name == "max_dynamic_shared_size_bytes"
        self.fake.most_shared[self.name] = value

    def __call__(
        self, grid: Any, block: Any, arguments: tuple[Any, ...], *, shared_mem: int
    ) -> None:
        self.fake.launched.append((self.name, grid, block, arguments, shared_mem))
