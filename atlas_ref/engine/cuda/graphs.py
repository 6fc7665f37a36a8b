"""A function of arrays, recorded once as a CUDA graph and replayed as one launch.

Plain twin: the function itself. Specified in specs/cuda.md (CUDA-13).
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

from atlas_ref.engine import cuda
from atlas_ref.engine.cuda import products
from atlas_ref.types import Array
from tape import constants

WARM_UPS = 2  # the first compiles kernels; the last of them may still ask for memory
MOST_WARM_UPS = 8


class Captured:
    """A recorded function, for arrays of the same shapes and types as those of the recording.

    Attributes:
        outputs: the results, in arrays that every call overwrites. Copy those that must outlive the
            next call.
    """

    def __init__(self, function: Callable[..., Any], arrays: tuple[Array, ...]) -> None:
        cupy = self._cupy = sys.modules["cupy"]
        self._stream, self._pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
        self._inputs = tuple(x.copy() for x in arrays)
        cupy.cuda.get_current_stream().synchronize()
        # `held` keeps the masks that the graph reads, which their cache may drop
        with (
            self._stream,
            cupy.cuda.using_allocator(self._pool.malloc),
            products.on(cupy, self._stream),
            constants.held() as self._constants,
        ):
            self._warm(function)
            self.outputs, self._graph = self._recorded(function)

    def _warm(self, function: Callable[..., Any]) -> None:
        """Run the function until the pool has what a run takes, since recording may ask for none.

        Every run starts from a pool whose blocks are all free, as the recording does.
        """
        for count in range(1, MOST_WARM_UPS + 1):
            before = self._pool.total_bytes()
            function(*self._inputs)
            gc.collect()  # what a cycle of references holds would be missing in the pool
            if count >= WARM_UPS and self._pool.total_bytes() == before:
                break
        self._stream.synchronize()

    def _recorded(self, function: Callable[..., Any]) -> tuple[Any, Any]:
        """The function's results and the graph of its launches, recorded instead of run."""
        name = getattr(function, "__name__", type(function).__name__)
        self._stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            outputs = function(*self._inputs)
        except Exception as error:
            # ending the capture reports that it was broken off; `error` says why
            with contextlib.suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                self._stream.end_capture()
            raise RuntimeError(f"{name}: {_reason(error)}") from error
        try:
            return outputs, self._stream.end_capture()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise RuntimeError(f"{name}: {_reason(error)}") from error

    def __call__(self, *arrays: Array) -> Any:
        """Copy the arrays in, replay, and return `outputs`, ready for use on the current stream.

        Raises:
            ValueError: another number of arrays, or other shapes or types, than were recorded.
        """
        if len(arrays) != len(self._inputs):
            raise ValueError(f"{len(arrays)} arrays, but {len(self._inputs)} were recorded")
        current = self._cupy.cuda.get_current_stream()
        for i, (x, held) in enumerate(zip(arrays, self._inputs, strict=True)):
            if x.shape != held.shape or x.dtype != held.dtype:
                raise ValueError(
                    f"array {i}: {x.dtype} {x.shape}, but {held.dtype} {held.shape} was recorded"
                )
            held[...] = x
        self._graph.launch(current)
        return self.outputs


def captured(function: Callable[..., Any], *arrays: Array) -> Captured:
    """Record a function of arrays as a CUDA graph, which takes one launch in all (CUDA-13).

    The function is run a few times first, then recorded on a stream of its own, with memory of its
    own that the graph keeps: so a replay never touches other arrays.

    Args:
        function: arrays -> arrays, in any nesting; the same launches at every call, no look at a
            value on the host, matrix products by np.matmul.
        arrays: of CuPy, arguments of the recording; they are copied.

    Raises:
        TypeError: arrays that are not CuPy's.
        RuntimeError: the function waited for the GPU, copied to the host, asked the driver for
            memory, or multiplied arrays by `@` rather than np.matmul while it was recorded.

    Source: CUDA-13, CUDA-15.
    """
    if not cuda.available_for(*arrays):
        raise TypeError("a graph is recorded with CuPy arrays, at least one")
    return Captured(function, arrays)


def _reason(error: Exception) -> str:
    why = str(error).splitlines()[0]
    return (
        "cannot be recorded, since it waits for the GPU, copies to the host, asks for new "
        f"memory, or multiplies by @ ({why})"
    )
