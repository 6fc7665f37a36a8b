"""Products for a graph: the calls to cuBLAS, answered by a host library written from cuBLAS's
manual.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atlas_ref.engine.cuda import products
from atlas_ref.engine.cuda.products import Products
from tests.support.close import EXACT, assert_close, reordered


def by_columns(kind: Any, at: int, rows: int, columns: int, apart: int) -> np.ndarray[Any, Any]:
    """The matrix (rows, columns) whose columns begin `apart` entries from one another."""
    size = (columns - 1) * apart + rows
    flat = np.ctypeslib.as_array((kind * size).from_address(at))
    return np.lib.stride_tricks.as_strided(
        flat, (rows, columns), (flat.itemsize, apart * flat.itemsize)
    )


class Library:
    """cuBLAS by its manual: C = one op(A) op(B) + nothing C for a count of column-major
    matrices.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.streams: list[tuple[int, int]] = []
        self.status = 0
        taken = ctypes.CFUNCTYPE(ctypes.c_int, *products.SIGNATURE)
        self.cublasSgemmStridedBatched = taken(self._product(ctypes.c_float))
        self.cublasDgemmStridedBatched = taken(self._product(ctypes.c_double))
        self.cublasSetStream_v2 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
            self._stream
        )

    def _stream(self, handle: int, stream: int) -> int:
        self.streams.append((handle, stream))
        return 0

    def _product(self, kind: Any) -> Callable[..., int]:
        def product(handle: int, *given: int) -> int:
            (
                turned_a,
                turned_b,
                m,
                n,
                k,
                one,
                A,
                lda,
                step_a,
                B,
                ldb,
                step_b,
                nothing,
                C,
                ldc,
                step_c,
                count,
            ) = given
            size = ctypes.sizeof(kind)
            assert kind.from_address(one).value == 1.0
            assert kind.from_address(nothing).value == 0.0
            assert lda >= (k if turned_a else m) >= 1
            assert ldb >= (n if turned_b else k) >= 1
            assert ldc >= m
            self.calls.append((turned_a, turned_b, m, n, k, count))
            for i in range(count):
                a = by_columns(kind, A + i * step_a * size, *((k, m) if turned_a else (m, k)), lda)
                b = by_columns(kind, B + i * step_b * size, *((n, k) if turned_b else (k, n)), ldb)
                by_columns(kind, C + i * step_c * size, m, n, ldc)[...] = (
                    a.T if turned_a else a
                ) @ (b.T if turned_b else b)
            return self.status

        return product


@pytest.fixture
def made() -> tuple[Products, Library]:
    library = Library()
    return Products(np, library, 11, 22, lambda x: int(x.ctypes.data)), library


def drawn(*shape: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng([*shape]).standard_normal(shape).astype(dtype)


# overlap, and step unevenly
WINDOWS = np.lib.stride_tricks.as_strided(drawn(2, 11, 3), (2, 3, 5, 3), (11 * 24, 3 * 24, 24, 8))
CASES: dict[str, tuple[Any, Any]] = {
    "two matrices": (drawn(3, 4), drawn(4, 5)),
    "a stack": (drawn(2, 6, 3, 4), drawn(2, 6, 4, 5)),
    "turned": (drawn(2, 4, 3).swapaxes(-1, -2), drawn(2, 5, 4).swapaxes(-1, -2)),
    "parts of rows": (drawn(2, 3, 9)[..., 2:6], drawn(2, 9, 5)[:, 3:7]),
    "every second column": (drawn(2, 3, 8)[..., ::2], drawn(2, 4, 5)),
    "backwards": (drawn(2, 3, 4)[:, ::-1], drawn(2, 4, 5)[..., ::-1]),
    "one for all": (drawn(4, 3, 4), drawn(4, 5)),
    "broadcast along inner axes": (drawn(2, 1, 3, 4), drawn(2, 6, 4, 5)),
    "broadcast along outer axes": (drawn(3, 4), drawn(2, 6, 4, 5)),
    "windows": (WINDOWS, drawn(2, 3, 3, 4)),
    "windows turned": (drawn(2, 3, 4, 5), WINDOWS),
    "rows of one entry": (drawn(2, 3, 1), drawn(2, 1, 5)),
    "one row": (drawn(2, 1, 4), drawn(2, 4, 1)),
    "a row that is repeated": (np.broadcast_to(drawn(1, 4), (3, 4)), drawn(4, 5)),
    "a vector behind": (drawn(2, 3, 4), drawn(4)),
    "a vector in front": (drawn(4), drawn(2, 4, 5)),
    "two vectors": (drawn(4), drawn(4)),
    "float32": (drawn(2, 3, 4, dtype=np.float32), drawn(2, 4, 5, dtype=np.float32)),
    "nothing to add": (drawn(2, 3, 0), drawn(2, 0, 5)),
    "no rows": (drawn(2, 0, 4), drawn(2, 4, 5)),
    "no matrices": (drawn(0, 3, 4), drawn(0, 4, 5)),
}


@pytest.mark.clause("CUDA-15")
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_numpy_however_the_factors_lie(
    made: tuple[Products, Library], name: str
) -> None:
    (a, b), (ours, library) = CASES[name], made
    want = np.matmul(a, b)
    tolerance = reordered(max(1, a.shape[-1]), dtype=want.dtype)
    assert_close(name, np.asarray(ours.product(a, b, None)), np.asarray(want), tolerance)
    if want.shape:
        for out in (
            np.full_like(want, np.nan, order="C"),
            np.full((*want.shape, 2), np.nan, want.dtype)[..., 0],
        ):
            assert ours.product(a, b, out) is out
            assert_close(name, out, want, tolerance)
    assert set(library.streams) <= {(11, 22)}


@pytest.mark.clause("CUDA-15")
def test_stacks_are_one_call_and_turned_factors_no_copy(made: tuple[Products, Library]) -> None:
    ours, library = made
    ours.product(*CASES["a stack"], None)
    ours.product(*CASES["turned"], None)
    ours.product(*CASES["one for all"], None)
    assert library.calls == [(0, 0, 5, 3, 4, 12), (1, 1, 5, 3, 4, 2), (0, 0, 5, 3, 4, 4)]


@pytest.mark.clause("CUDA-15")
def test_a_result_over_a_factor_is_that_of_the_factors_before(
    made: tuple[Products, Library],
) -> None:
    x = drawn(4, 4)
    want = x @ x
    assert_close("x", made[0].product(x, x, x), want, reordered(4))


@pytest.mark.clause("CUDA-15")
def test_what_cublas_has_no_name_for_is_left_to_cupy(made: tuple[Products, Library]) -> None:
    x = drawn(2, 2)
    pairs = [
        (x, x.astype(np.float32)),
        (x.astype(complex), x.astype(complex)),
        (x, np.array(1.0)),
        (x, drawn(3, 2)),
    ]
    assert [made[0].product(a, b, None) for a, b in pairs] == [None] * 4
    assert made[0].product(x, x, x.astype(np.float32)) is None
    assert made[1].calls == []


@pytest.mark.clause("CUDA-15")
def test_a_failure_is_named(made: tuple[Products, Library]) -> None:
    made[1].status = 13
    with pytest.raises(RuntimeError, match="cuBLAS: status 13"):
        made[0].product(*CASES["two matrices"], None)


@pytest.mark.clause("CUDA-15")
def test_only_products_on_the_stream_are_led_past_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array(np.ndarray):  # type: ignore[type-arg]
        data = property(lambda self: types.SimpleNamespace(ptr=self.ctypes.data))

    current, library, plain = types.SimpleNamespace(ptr=5), Library(), np.matmul
    cupy: Any = types.SimpleNamespace(
        ndarray=np.ndarray,
        matmul=plain,
        empty=lambda shape, kind: np.empty(shape, kind).view(Array),
        may_share_memory=np.may_share_memory,
        cuda=types.SimpleNamespace(
            get_current_stream=lambda: current,
            device=types.SimpleNamespace(get_cublas_handle=lambda: 7),
        ),
    )
    monkeypatch.setattr(products, "_library", lambda _: library)
    x = drawn(3, 3).view(Array)
    with products.on(cupy, types.SimpleNamespace(ptr=5)):
        assert_close("x", np.asarray(cupy.matmul(x, x)), np.asarray(plain(x, x)), reordered(3))
        assert library.streams == [(7, 5)]
        current.ptr = 6
        assert_close("x", np.asarray(cupy.matmul(x, x)), np.asarray(plain(x, x)), EXACT)
        current.ptr = 5
        assert cupy.matmul(x, x.astype(int)).shape == (3, 3)
        out = np.empty((3, 3), np.float32)
        cupy.matmul(x, x, out=out, casting="same_kind")
        assert library.streams == [(7, 5)]
    assert cupy.matmul is plain
