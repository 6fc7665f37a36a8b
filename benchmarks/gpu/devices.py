"""The devices that figures are taken on: a GPU, or the CPU.

The GPU is measured by CUDA events and CuPy's memory pool. The CPU only shows that everything runs.

CuPy and PyTorch run in one process and on one stream, the default one, so one pair of events times
either, and what one of them made is the other's without a copy (DLPack). Their allocators keep what
was freed; both are emptied between candidates.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import platform
import time
from typing import Any, NamedTuple

import numpy as np

from atlas_ref import backend
from benchmarks import measure
from benchmarks.measure import Work

Array = Any
GIGA = 1e9


class Unavailable(Exception):
    """A missing requirement of a device, named in one line."""


class Peak(NamedTuple):
    """Bytes at the peak beyond what was held before; nan where they are not counted."""

    bytes: float
    how: str


def _torch() -> Any:
    """PyTorch, or None where it is not installed."""
    return (
        importlib.import_module("torch") if importlib.util.find_spec("torch") is not None else None
    )


class Cpu:
    """NumPy and PyTorch on the processor: no figure of it says anything about a GPU."""

    name = "cpu"
    measured = False
    torch_name = "cpu"

    def __init__(self) -> None:
        self.torch = _torch()

    def seconds(self, work: Work) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def ours(self, array: Any) -> Array:
        return np.ascontiguousarray(array)

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def tensor(self, array: Array) -> Any:
        return self.torch.tensor(np.asarray(array))  # a copy: ours are read-only

    def array(self, tensor: Any) -> Array:
        array: Array = tensor.detach().numpy()
        return array

    def tiled(self, array: Array, shape: tuple[int, ...]) -> Array:
        return _tiled(np, array, shape)

    def peak(self, work: Work) -> Peak:
        return Peak(measure.peak_memory(work) * 1e6, "as NumPy allocates")

    def peak_of_torch(self, work: Work) -> Peak:
        work()
        return Peak(float("nan"), "not counted on a CPU")

    def release(self) -> None:
        gc.collect()

    def free(self) -> float:
        pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return float(pages * size)

    def describe(self) -> dict[str, Any]:
        return {"device": "cpu: NO GPU WAS MEASURED", **measure.machine(), **_version(self.torch)}

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)


class Cuda:
    """The first GPU, through CuPy, and through PyTorch where it is installed."""

    name = "cuda"
    measured = True
    torch_name = "cuda"

    def __init__(self, *, tf32: bool = False) -> None:
        os.environ["CUPY_TF32"] = os.environ["ATLAS_REF_TF32"] = str(int(tf32))
        os.environ["TRITON_F32_DEFAULT"] = "tf32" if tf32 else "ieee"
        try:
            cupy = importlib.import_module("cupy")
        except ImportError as error:
            raise Unavailable(f"CuPy does not import: {error}") from None
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            raise Unavailable(f"CuPy finds no GPU: {str(error).splitlines()[0]}") from None
        if not count:
            raise Unavailable("CuPy finds no GPU")
        self.cupy = cupy
        self.pool = cupy.get_default_memory_pool()
        self.torch = _torch_on_gpu(tf32)

    def seconds(self, work: Work) -> float:
        """Time between two events of the default stream, on which everything here runs."""
        start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        self.cupy.cuda.Device().synchronize()
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop)) / 1e3

    def ours(self, array: Any) -> Array:
        return self.cupy.asarray(array)

    def host(self, array: Array) -> np.ndarray[Any, Any]:
        return np.asarray(self.cupy.asnumpy(array))

    def tensor(self, array: Array) -> Any:
        return self.torch.from_dlpack(array)

    def array(self, tensor: Any) -> Array:
        return self.cupy.from_dlpack(tensor.detach())

    def tiled(self, array: Array, shape: tuple[int, ...]) -> Array:
        return _tiled(self.cupy, array, shape)

    def peak(self, work: Work) -> Peak:
        """Memory that CuPy's pool takes from the device while `work` runs.

        The pool takes whole blocks, so this is rather too much than too little.
        """
        self.release()
        before = self.pool.total_bytes()
        made = work()
        self.cupy.cuda.Device().synchronize()
        taken = self.pool.total_bytes() - before
        del made
        return Peak(float(taken), "high-water mark of CuPy's pool")

    def peak_of_torch(self, work: Work) -> Peak:
        self.release()
        self.torch.cuda.reset_peak_memory_stats()
        before = self.torch.cuda.memory_allocated()
        made = work()
        self.torch.cuda.synchronize()
        taken = self.torch.cuda.max_memory_allocated() - before
        del made
        return Peak(float(taken), "torch.cuda.max_memory_allocated")

    def release(self) -> None:
        gc.collect()
        self.pool.free_all_blocks()
        if self.torch is not None:
            self.torch.cuda.empty_cache()

    def free(self) -> float:
        """Bytes of the device that are free once both allocators gave back what they keep."""
        self.release()
        return float(self.cupy.cuda.runtime.memGetInfo()[0])

    def describe(self) -> dict[str, Any]:
        runtime = self.cupy.cuda.runtime
        properties = runtime.getDeviceProperties(0)
        return {
            "device": properties["name"].decode(),
            "memory": f"{properties['totalGlobalMem'] / GIGA:.0f} GB",
            "multiprocessors": properties["multiProcessorCount"],
            "driver": runtime.driverGetVersion(),
            "cuda": runtime.runtimeGetVersion(),
            "cupy": self.cupy.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            **_version(self.torch),
        }

    def is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, self.cupy.cuda.memory.OutOfMemoryError):
            return True
        return self.torch is not None and isinstance(error, self.torch.cuda.OutOfMemoryError)


Device = Cpu | Cuda


def open_device(name: str, *, tf32: bool = False) -> Device:
    """A device by name, with the project's switch set to it.

    Raises:
        Unavailable: what it needs is not there.
    """
    device: Device = Cpu() if name == "cpu" else Cuda(tf32=tf32)
    try:
        backend.use("numpy" if name == "cpu" else "cupy")
    except backend.BackendError as error:
        raise Unavailable(str(error)) from None
    return device


def _torch_on_gpu(tf32: bool) -> Any:
    """PyTorch with TF32 as asked; None where it is not installed or sees no GPU."""
    torch = _torch()
    if torch is None or not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    return torch


def _version(torch: Any) -> dict[str, Any]:
    return {"torch": "none that can be used" if torch is None else torch.__version__}


def _tiled(xp: Any, array: Array, shape: tuple[int, ...]) -> Array:
    """An array repeated along its first axes until it has a shape."""
    times = tuple(-(-want // have) for want, have in zip(shape, array.shape, strict=True))
    return xp.ascontiguousarray(xp.tile(array, times)[tuple(slice(0, want) for want in shape)])
