"""Coefficient rows and their cotangents by a kernel, against the array operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.engine.cuda import coefficients
from atlas_ref.engine.group import coefficients as plain
from tests.engine.cuda.conftest import Place
from tests.support.close import ANALYTIC, assert_close, reordered

#: chunk, window, chunks, memories, gates: odd sizes, a window longer than the chunk, more columns
#: than a block has threads.
SIZES = [(1, 1, 1, 1, 1), (5, 3, 2, 2, 1), (3, 7, 3, 1, 4), (13, 11, 1, 2, 1), (4, 1, 5, 3, 3)]


def drawn(
    size: tuple[int, ...], momentum: bool, dtype: Any, *, shared: bool
) -> tuple[plain.GateRows, np.random.Generator]:
    """Gates of some chunks, a few of them exactly 0 and 1; weights shared by the memories or
    not.
    """
    C, c, g, B, G = size
    random = np.random.default_rng(size)

    def gate() -> Any:
        value = random.uniform(0.2, 0.95, (B, C * g, G))
        value[:, 1::4], value[:, 2::5] = 0.0, 1.0
        return value.astype(dtype)

    weights = random.uniform(-0.5, 1.0, (1 if shared else B, C * g, c)).astype(dtype)
    return plain.gate_rows(C, gate(), gate() if momentum else None, gate(), gate(), weights), random


@pytest.mark.sample(10)
@pytest.mark.clause("CUDA-2", "CUDA-4", "CUDA-5")
@pytest.mark.parametrize("own_columns", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_and_their_cotangents_are_those_of_the_array_operations(
    place: Place, size: tuple[int, ...], momentum: bool, own_columns: bool
) -> None:
    C, c, *_ = size
    for dtype in (np.float64, np.float32):
        gates, random = drawn(size, momentum, dtype, shared=own_columns)
        columns, stride = (C * c, c) if own_columns else (C + c - 1, 1)
        D, X = plain.coefficient_rows(gates, columns, stride)
        tolerance = ANALYTIC if dtype == np.float64 else reordered(4 * C * (C + c), dtype=dtype)
        found = place.back(
            coefficients.coefficient_rows(place.to(gates), columns, stride, device=place.device)
        )
        for name, got, want in zip(("D", "X"), found, (D, X), strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert_close(name, got, want, tolerance)
        dD, dX = (random.standard_normal(shape).astype(dtype) for shape in (D.shape, D.shape[1:]))
        dX_last = dX if momentum else None
        asked = place.to((D, X, dD, dX_last))
        bars = coefficients.coefficient_rows_backward(
            place.to(gates), *asked, stride, device=place.device
        )
        want_bars = plain.coefficient_rows_backward(gates, D, X, dD.copy(), dX_last, stride)
        for name, want in want_bars._asdict().items():
            got = place.back(getattr(bars, name))
            assert (got is None) == (want is None)
            if want is not None:
                assert_close(name, got, want, tolerance)


@pytest.mark.clause("CUDA-4")
def test_columns_that_no_token_has_reached_are_zero_whatever_the_gates_are(place: Place) -> None:
    gates, _ = drawn((4, 2, 1, 1, 1), True, np.float64, shared=False)
    gates = gates._replace(retain=np.full_like(gates.retain, np.inf))
    D, X = place.back(coefficients.coefficient_rows(place.to(gates), 5, 1, device=place.device))
    for t in range(4):
        assert not D[t, ..., 2 + t + 1 :].any()
        assert not X[t, ..., 2 + t + 1 :].any()


@pytest.mark.clause("CUDA-5")
def test_cotangents_of_unused_columns_change_nothing(place: Place) -> None:
    gates, random = drawn((5, 3, 2, 2, 1), True, np.float64, shared=False)
    D, X = plain.coefficient_rows(gates, 7, 1)
    dD, dX = random.standard_normal(D.shape), random.standard_normal(D.shape[1:])
    poisoned = dD.copy()
    for t in range(5):
        poisoned[t, ..., (2 + t - 1 + 3 if t else 2) :] = np.nan
    found = [
        place.back(
            coefficients.coefficient_rows_backward(
                place.to(gates), *place.to((D, X, each, dX)), 1, device=place.device
            )
        )
        for each in (dD, poisoned)
    ]
    for name, got, want in zip(plain.GateRows._fields, found[1], found[0], strict=True):
        assert_close(name, got, want, ANALYTIC)
