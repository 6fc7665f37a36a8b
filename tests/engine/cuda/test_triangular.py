"""Inverses of unit lower triangular matrices by a kernel, against recursive halves and where sums
of powers fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atlas_ref.engine.cuda import launch, triangular
from atlas_ref.engine.group.triangular import inverse_unit_lower
from tests.engine.cuda.conftest import Place
from tests.support.close import ANALYTIC, assert_close, reordered


@pytest.mark.clause("CUDA-11")
@pytest.mark.parametrize("n", [1, 2, 5, 31, 33, 64, 70])
def test_equals_recursive_halves_and_reads_nothing_above_the_diagonal(place: Place, n: int) -> None:
    random = np.random.default_rng(n)
    for dtype in (np.float64, np.float32):
        strict = (np.tril(random.standard_normal((2, 3, n, n)), -1) / np.sqrt(n)).astype(dtype)
        poisoned = strict + np.triu(np.full((n, n), np.nan, dtype))
        got = place.back(triangular.inverse_unit_lower(place.to(poisoned), device=place.device))
        tolerance = (
            ANALYTIC if dtype == np.float64 else reordered(n, dtype=dtype, amplification=4.0)
        )
        assert_close("inverse", got, inverse_unit_lower(strict), tolerance)
        assert np.array_equal(np.triu(got), np.broadcast_to(np.eye(n, dtype=dtype), got.shape))


@pytest.mark.clause("CUDA-11", "EXACT-5")
def test_64_equal_keys_are_inverted_exactly(place: Place) -> None:
    got = place.back(
        triangular.inverse_unit_lower(
            place.to(np.tril(np.ones((1, 64, 64)), -1)), device=place.device
        )
    )
    assert np.array_equal(got[0], np.eye(64) - np.eye(64, k=-1))


@pytest.mark.clause("CUDA-3")
def test_a_matrix_that_a_block_cannot_hold_is_refused(host: Any) -> None:
    with pytest.raises(
        launch.DoesNotFit, match=r"inverse_unit_lower<double>: 323200 bytes of shared memory"
    ):
        triangular.inverse_unit_lower(np.zeros((1, 200, 200)), device=host)
    with pytest.raises(launch.DoesNotFit, match="strict: 1025 rows"):
        triangular.inverse_unit_lower(np.zeros((1, 1025, 1025)), device=host)
    assert triangular.inverse_unit_lower(np.zeros((0, 3, 3)), device=host).shape == (0, 3, 3)
    assert host.launches == []
