"""Small steps of a group of chunks by kernels, against the array operations of `masked_forward`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda import pieces
from atlas_ref.engine.group.coefficients import GateRows
from atlas_ref.engine.group.layout import Layout
from atlas_ref.engine.masked import backward as masked_backward
from atlas_ref.engine.masked import forward as masked_forward
from atlas_ref.engine.masked import rows as masked_rows
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


@pytest.mark.clause("CUDA-12")
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
def test_residuals_scaled_and_reads_combined(
    place: Place, momentum: bool, per_dimension: bool
) -> None:
    for dtype, tolerance in KINDS:
        gates, D, X, draw = rows(dtype, momentum=momentum, per_dimension=per_dimension)
        nb, E = gates.bases, draw(B, G_CHUNKS, K, D_OUT)
        want = np.empty((B, G_CHUNKS, K, nb * D_OUT), dtype)
        left = [-D[-1, ..., nb:]] if X is None else [-D[-1, ..., nb:], X[-1, ..., nb:]]
        masked_forward.scale_residuals(
            E, np.stack([masked_rows.factor(x) for x in left], axis=-1), want
        )
        # written to with gaps between chunks
        room = place.to(np.full((B, 2 * G_CHUNKS, K, nb * D_OUT), np.nan, dtype))
        pieces.scaled_residuals(*place.to((E, D, X)), room[:, ::2], device=place.device)
        assert_close("scaled", place.back(room)[:, ::2], want, tolerance)
        assert np.isnan(place.back(room)[:, 1::2]).all()
        asked, mixed = draw(B, G_CHUNKS, C, nb * D_OUT), draw(B, G_CHUNKS, C, D_OUT)
        for read in (D[1:], D[:-1]):
            factors = np.moveaxis(np.moveaxis(read, 0, -2)[..., :nb], -3, -2)
            got = place.to(np.full(mixed.shape, np.nan, dtype))
            pieces.combined_reads(*place.to((asked, mixed, read)), got, device=place.device)
            assert_close(
                "y", place.back(got), masked_forward.combined(asked, factors) - mixed, tolerance
            )


@pytest.mark.clause("CUDA-12")
@pytest.mark.parametrize(("chunk", "window"), [(1, 1), (4, 1), (3, 3), (2, 6), (5, 4), (1, 5)])
@pytest.mark.parametrize("reference", ["frozen", "running"])
def test_columns_gathered_into_rows(place: Place, chunk: int, window: int, reference: str) -> None:
    layout = Layout(chunk, window, (False,) * 4, reference, False, "after", False, 0)
    for dtype, tolerance in KINDS:
        random = np.random.default_rng([chunk, window])
        columns = random.standard_normal((B, 4, layout.columns, D_IN)).astype(dtype)
        held = random.standard_normal((B, window - 1 + 4 * chunk, D_IN)).astype(dtype)
        there = place.to(held.copy())
        pieces.gathered(
            place.to(columns),
            there,
            chunk,
            window,
            own_columns=layout.stride > 1 or window == 1,
            device=place.device,
        )
        masked_rows.gathered(layout, columns, held)
        assert_close("rows", place.back(there), held, tolerance)
