"""Matrix products that can be recorded: cuBLAS on the recording stream.

CuPy does not call cuBLAS while a stream records. cuBLAS may be recorded (its manual, "CUDA graphs
support"), but CuPy refuses before it asks: "calling cuBLAS API during stream capture is currently
unsupported". So a graph's products go to the same library, with the handle that CuPy keeps, past
CuPy. Plain twin: `matmul` of CuPy. Specified in specs/cuda.md (CUDA-15).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from atlas_ref.types import Array

#: dtype -> cuBLAS's name of the product, and the type of its two factors.
PRODUCTS = {
    "float32": ("cublasSgemmStridedBatched", ctypes.c_float),
    "float64": ("cublasDgemmStridedBatched", ctypes.c_double),
}
MOST = 2**31 - 1  # what its sizes, strides of rows and counts may be

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_MATRIX = (_POINTER, _INT, _LONG)  # where, from one row to the next, from one matrix to the next
#: handle, transposed, transposed, m, n, k, factor, A, B, factor, C, count.
SIGNATURE = (
    _POINTER,
    _INT,
    _INT,
    _INT,
    _INT,
    _INT,
    _POINTER,
    *_MATRIX,
    *_MATRIX,
    _POINTER,
    *_MATRIX,
    _INT,
)


class Matrices(NamedTuple):
    """A batch of matrices as cuBLAS reads it.

    Attributes:
        array: of all matrices.
        turned: whether columns are contiguous, and not rows.
        apart: entries from one row (turned: column) to the next. step: from one matrix to the next,
            0 for one that all share.
    """

    array: Array
    turned: bool
    apart: int
    step: int


def matrices(xp: Any, x: Array, lead: tuple[int, ...]) -> Matrices:
    """x (..., r, c) as a batch for cuBLAS, with leading axes broadcast to `lead` (CUDA-15).

    It is copied only where cuBLAS cannot read its layout.
    """
    wide = x if x.shape[:-2] == lead else xp.broadcast_to(x, (*lead, *x.shape[-2:]))
    found = _as_it_lies(wide) or _as_it_lies(xp.ascontiguousarray(wide))
    assert found is not None  # contiguous matrices always can be read
    return found


def _as_it_lies(x: Array) -> Matrices | None:
    *lead, rows, columns = x.shape
    *steps, down, right = (each // x.dtype.itemsize for each in x.strides)
    step = _one_step(lead, steps)
    if step is None:
        return None
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return Matrices(x, False, max(down if rows > 1 else 0, columns, 1), step)
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return Matrices(x, True, max(right if columns > 1 else 0, rows, 1), step)
    return None


def _one_step(lead: list[int], steps: list[int]) -> int | None:
    """The step from one matrix to the next where the leading axes can be joined, else None."""
    axes = [(n, step) for n, step in zip(lead, steps, strict=True) if n != 1]
    if any(outer != n * inner for (_, outer), (n, inner) in itertools.pairwise(axes)):
        return None
    return axes[-1][1] if axes else 0


class Products:
    """Products by cuBLAS on a stream (CUDA-15).

    Attributes:
        handle: of cuBLAS, made by CuPy, which sets its own stream on it before each call of its
            own.
    """

    def __init__(
        self, xp: Any, library: Any, handle: int, stream: int, address: Callable[[Array], int]
    ) -> None:
        self._xp, self._library, self.handle, self._stream, self._address = (
            xp,
            library,
            handle,
            stream,
            address,
        )

    def product(self, a: Array, b: Array, out: Array) -> Array:
        """a @ b for arrays of any axes, into `out` unless it is None.

        The result is None where cuBLAS cannot compute it: other types, sizes beyond 32 bits.
        """
        if (
            a.ndim == 0
            or b.ndim == 0
            or a.dtype != b.dtype
            or a.dtype.name not in PRODUCTS
            or (out is not None and out.dtype != a.dtype)
        ):
            return None
        left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
        if left.shape[-1] != right.shape[-2]:
            return None  # the plain product says so in its own words
        shape = (*_broadcast(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
        there = out is not None and out.shape == shape and out.flags.c_contiguous
        there = there and not any(self._xp.may_share_memory(out, x) for x in (a, b))
        made = out if there else self._xp.empty(shape, a.dtype)
        if not self._into(made, left, right):
            return None
        if there:
            return out
        y = made[..., 0] if b.ndim == 1 else made
        y = y if a.ndim > 1 else y[..., 0] if b.ndim == 1 else y[..., 0, :]
        if out is None:
            return y
        out[...] = y
        return out

    def _into(self, made: Array, a: Array, b: Array) -> bool:
        """Compute made = a b.

        cuBLAS stores matrices by columns, so that it computes the transposed product b^T a^T.
        """
        *lead, n, m = made.shape
        k, count = a.shape[-1], made.size // max(1, n * m)
        if made.size == 0 or k == 0:
            made[...] = 0.0
            return True
        first, second = matrices(self._xp, b, tuple(lead)), matrices(self._xp, a, tuple(lead))
        if max(n, m, k, count, first.apart, second.apart) > MOST:
            return False
        name, kind = PRODUCTS[made.dtype.name]
        one, nothing = kind(1.0), kind(0.0)
        given = [
            value for x in (first, second) for value in (self._address(x.array), x.apart, x.step)
        ]
        function = getattr(self._library, name)
        function.argtypes, function.restype = SIGNATURE, ctypes.c_int
        set_stream = self._library.cublasSetStream_v2
        set_stream.argtypes, set_stream.restype = (_POINTER, _POINTER), ctypes.c_int
        _succeeds(set_stream(self.handle, self._stream))
        sizes = (int(first.turned), int(second.turned), m, n, k)
        factors = (ctypes.addressof(one), ctypes.addressof(nothing))
        _succeeds(
            function(
                self.handle,
                *sizes,
                factors[0],
                *given,
                factors[1],
                self._address(made),
                m,
                n * m,
                count,
            )
        )
        return True


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    longest = max(len(a), len(b))
    pairs = zip((1,) * (longest - len(a)) + a, (1,) * (longest - len(b)) + b, strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


def _succeeds(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLAS: status {status}")


@contextlib.contextmanager
def on(cupy: Any, stream: Any) -> Iterator[None]:
    """Let `cupy.matmul` on this stream be recorded until the end of the block (CUDA-15).

    So are np.matmul and einsum of CuPy arrays, which call it. `a @ b` of two CuPy arrays does not:
    write np.matmul.
    """
    plain = cupy.matmul
    made: list[Products] = []

    def matmul(a: Array, b: Array, /, out: Array = None, **settings: Any) -> Array:
        mine = (
            all(isinstance(x, cupy.ndarray) for x in (a, b))
            and not settings
            and cupy.cuda.get_current_stream().ptr == stream.ptr
        )
        if mine:
            made[:] = made or [
                Products(
                    cupy,
                    _library(cupy),
                    cupy.cuda.device.get_cublas_handle(),
                    stream.ptr,
                    lambda x: int(x.data.ptr),
                )
            ]
            found = made[0].product(a, b, out)
            if found is not None:
                return found
        return plain(a, b, **settings) if out is None else plain(a, b, out=out, **settings)

    cupy.matmul = matmul
    try:
        yield
    finally:
        cupy.matmul = plain


def _library(cupy: Any) -> Any:
    """The cuBLAS that CuPy has loaded, found by its name."""
    version = cupy.cuda.runtime.runtimeGetVersion() // 1000
    cupy.cuda.device.get_cublas_handle()  # loads it, where nothing has been multiplied yet
    return ctypes.CDLL(
        f"cublas64_{version}.dll" if sys.platform == "win32" else f"libcublas.so.{version}"
    )
