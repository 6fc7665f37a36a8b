"""Small steps of a group of chunks by kernels, against the array operations of `masked_forward`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda import pieces
from atlas_ref.engine.group.coefficients import GateRows
from atlas_ref.engine.masked import backward as masked_backward
from atlas_ref.engine.masked import forward as masked_forward
from tests.engine.cuda.conftest import Place
from tests.support.close import ANALYTIC, assert_close, reordered

B, G_CHUNKS, C, K, D_IN, D_OUT = 2, 3, 4, 6, 5, 7
KINDS = [(np.float64, ANALYTIC), (np.float32, reordered(64, dtype=np.float32))]


@pytest.fixture(autouse=True)
def work_space() -> Iterator[None]:
    with scratch.frame():
        yield


def rows(dtype: Any, *, momentum: bool, per_dimension: bool) -> tuple[GateRows, Any, Any, Any]:
    """Gates with a `momentum` alone, coefficient rows, and a draw of arrays."""
    random = np.random.default_rng(3)

    def draw(*shape: int) -> Any:
        return random.standard_normal(shape).astype(dtype)

    shape = (C + 1, B, G_CHUNKS, D_OUT if per_dimension else 1, (2 if momentum else 1) + K)
    gates = GateRows(None, 1.0 if momentum else None, None, None, None)
    return gates, draw(*shape), draw(*shape) if momentum else None, draw


@pytest.mark.clause("CUDA-12")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
def test_states_carried_over_chunks_and_back(
    place: Place, momentum: bool, per_dimension: bool
) -> None:
    for dtype, tolerance in KINDS:
        gates, D, X, draw = rows(dtype, momentum=momentum, per_dimension=per_dimension)
        wide = gates.bases * D_OUT
        keep, change = masked_forward.kept(gates, D, X, D_OUT), draw(B, G_CHUNKS, D_IN, wide)
        states = draw(B, G_CHUNKS + 1, D_IN, wide)
        got = pieces.carried(*place.to((states[:, 0].copy(), change, D, X)), device=place.device)
        for k in range(G_CHUNKS):
            masked_forward.pass_on(keep, states, k, change[:, k])
        assert_close("states", place.back(got), states, tolerance)
        last, asked = draw(B, D_IN, wide), draw(B, G_CHUNKS, D_IN, wide)
        start, after = pieces.carried_backward(*place.to((last, asked, D, X)), device=place.device)
        ends, bar = np.empty_like(asked), last
        for k in range(G_CHUNKS - 1, -1, -1):
            ends[:, k] = bar
            bar = asked[:, k].copy()
            masked_backward._hand_back(keep, ends[:, k], k, bar)
        assert_close("after", place.back(after), ends, tolerance)
        assert_close("start", place.back(start), bar, tolerance)
