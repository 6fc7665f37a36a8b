"""The inter-chunk loops of the exact form by a kernel, against array operations chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda import exact, launch
from atlas_ref.engine.group.cotangents import Cotangents, CotangentSums, Into
from atlas_ref.engine.group.layout import Arrays, Layout
from atlas_ref.engine.masked import backward as masked_backward
from atlas_ref.engine.masked import forward as masked_forward
from atlas_ref.engine.masked import rows as masked_rows
from tests.engine.cuda.conftest import Place
from tests.support.close import ANALYTIC, EXACT, assert_close, reordered

#: chunk, window, chunks, d, o: odd sizes, windows with columns of their own, more columns and
#: features than a tile has rows.
SIZES = [(1, 1, 1, 1, 1), (4, 1, 3, 3, 5), (3, 3, 2, 4, 3), (67, 1, 2, 5, 3), (5, 2, 2, 70, 9)]


class Drawn(NamedTuple):
    """A group of chunks under the running reference, run in array operations."""

    layout: Layout
    given: Arrays
    made: Any
    loop: exact.LoopInputs
    bars: Cotangents


def drawn(
    size: tuple[int, ...], dtype: Any, *, momentum: bool, per_dimension: bool, before_error: bool
) -> Drawn:
    C, c, g, d, o = size
    layout = Layout(C, c, (False,) * g, "running", before_error, "after", False, 0)
    random = np.random.default_rng(size)
    B, n = 2, C * g

    def gate(scale: float) -> Any:
        value = random.uniform(0.2, 0.95, (B, n, o if per_dimension else 1))
        value[:, 1::4], value[:, 2::5] = 0.0, 1.0
        return (scale * value).astype(dtype)

    def rows(*shape: int, scale: float = 1.0) -> Any:
        return (scale * random.standard_normal(shape)).astype(dtype)

    given = Arrays(
        keys=rows(B, c - 1 + n, d, scale=0.6 / np.sqrt(d)),
        values=rows(B, c - 1 + n, o),
        queries=rows(B, n, d),
        retain=gate(1.0),
        momentum=gate(1.0) if momentum else None,
        rate_in=gate(0.5 / c),
        rate_out=gate(1.0),
        weights=random.uniform(0.2, 1.0, (B, n, c)).astype(dtype),
        M=rows(B, o, d),
        S=rows(B, o, d) if momentum else None,
        reference=None,
        residuals=None,
    )
    made = masked_forward.forward(layout, given, masked_forward.rows_of(layout, given))
    retain = made.gates.retain if before_error else None
    loop = exact.LoopInputs(
        made.phi,
        masked_rows.spread(layout, given.values),
        made.inverse,
        made.D,
        made.X,
        retain,
        c,
    )
    return Drawn(
        layout,
        given,
        made,
        loop,
        Cotangents(M=rows(B, o, d), S=rows(B, o, d) if momentum else None),
    )


@pytest.fixture(autouse=True)
def work_space() -> Iterator[None]:
    with scratch.frame():
        yield


@pytest.mark.sample(48)
@pytest.mark.clause("CUDA-9", "CUDA-10")
@pytest.mark.parametrize("before_error", [False, True])
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_both_loops_are_those_of_the_array_operations(
    place: Place, size: tuple[int, ...], momentum: bool, per_dimension: bool, before_error: bool
) -> None:
    C, c, g, d, _ = size
    for dtype in (np.float64, np.float32):
        if dtype == np.float32 and before_error:
            continue
        case = drawn(
            size, dtype, momentum=momentum, per_dimension=per_dimension, before_error=before_error
        )
        tolerance = (
            ANALYTIC
            if dtype == np.float64
            else reordered(g * (C * c + d), dtype=dtype, amplification=4.0)
        )
        start = masked_forward.side_by_side(case.given)
        found = exact.inter_chunk_loop(place.to(case.loop), place.to(start), device=place.device)
        for name, got in found._asdict().items():
            assert_close(name, place.back(got), getattr(case.made, name), tolerance)
        random = np.random.default_rng(7)
        E_bar, states_bar = (
            random.standard_normal(x.shape).astype(dtype)
            for x in (case.made.E, case.made.states[:, 1:])
        )
        last = masked_backward._first_state(case.given, case.bars)
        asked = place.to((last, E_bar, states_bar))
        back = exact.inter_chunk_loop_backward(place.to(case.loop), *asked, device=place.device)
        for name, want in plain_back(case, E_bar.copy(), states_bar.copy())._asdict().items():
            assert_close(name, place.back(getattr(back, name)), want, tolerance)


def plain_back(case: Drawn, E_bar: Any, states_bar: Any) -> exact.LoopCotangents:
    """The backward inter-chunk loop as `masked_backward` writes it."""
    pulled = CotangentSums(None, None, None, None, E_bar, states_bar, None)
    ends, F = np.empty_like(states_bar), np.empty_like(case.made.scaled)
    into = Into(None, None, None)
    start, _, _ = masked_backward._through_running(
        case.layout, case.given, case.made, case.bars, pulled, ends, F, into
    )
    return exact.LoopCotangents(start, ends, F, E_bar)


@pytest.mark.clause("CUDA-2", "CUDA-9")
def test_the_width_of_a_block_changes_no_bit(place: Place) -> None:
    case = drawn(
        (4, 2, 2, 6, 11), np.float64, momentum=True, per_dimension=False, before_error=False
    )
    start = masked_forward.side_by_side(case.given)
    found = [
        exact.inter_chunk_loop(
            place.to(case.loop), place.to(start), width=width, device=place.device
        )
        for width in (2, 5, 8, 16)
    ]
    for other in found[1:]:
        for name, got, want in zip(other._fields, other, found[0], strict=True):
            assert_close(name, place.back(got), place.back(want), EXACT)


@pytest.mark.clause("CUDA-3")
def test_a_block_without_the_memory_is_refused(host: Any) -> None:
    case = drawn(
        (4, 1, 1, 3, 2), np.float64, momentum=True, per_dimension=False, before_error=False
    )
    host.limit = 20_000
    with pytest.raises(
        launch.DoesNotFit, match="bytes of shared memory a block, of which the device has 20000"
    ):
        exact.inter_chunk_loop(case.loop, masked_forward.side_by_side(case.given), device=host)
    with pytest.raises(launch.DoesNotFit, match="width: 1 output dimensions"):
        exact.inter_chunk_loop(
            case.loop, masked_forward.side_by_side(case.given), width=1, device=host
        )
