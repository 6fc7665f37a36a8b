"""Captured functions: the same results, and a reason for each that cannot be captured."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from atlas_ref.engine.cuda import graphs
from tape import constants
from tests.engine.cuda.fake_cupy import FakeCupy, Stream, ndarray
from tests.support.close import EXACT, assert_close, reordered


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    made = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", made)
    # seconds in a process of many tests, and nothing here is in a cycle
    monkeypatch.setattr(graphs.gc, "collect", lambda: 0)
    return made


def doubled(fake: FakeCupy, ran: list[Stream]) -> Any:
    """A function of one launch on the current stream."""

    def double(x: ndarray) -> ndarray:
        out, stream = ndarray(np.zeros_like(x.value)), fake.cuda.get_current_stream()
        ran.append(stream)
        stream.launch(lambda: np.multiply(x.value, 2.0, out=out.value))
        return out

    return double


@pytest.mark.clause("CUDA-13")
def test_replay_runs_on_what_it_is_given_now(fake: FakeCupy) -> None:
    ran: list[Stream] = []
    given = ndarray(np.array([1.0, 2.0]))
    captured = graphs.captured(doubled(fake, ran), given)
    assert len(ran) == graphs.WARM_UPS + 1
    assert ran[0] is not fake.streams[0], "recorded on a stream of its own"
    assert len(fake.allocators) == 1, "with memory of its own"
    given.value[:] = 100.0  # the graph has copies
    first = captured(ndarray(np.array([3.0, 4.0])))
    assert first.value.tolist() == [6.0, 8.0]
    second = captured(ndarray(np.array([5.0, 6.0])))
    assert second is first is captured.outputs
    assert second.value.tolist() == [10.0, 12.0]
    assert len(ran) == graphs.WARM_UPS + 1, "the function itself ran no more"


@pytest.mark.clause("CUDA-13")
def test_it_is_recorded_once_a_run_asks_for_no_more_memory(fake: FakeCupy) -> None:
    for asked, runs in (([0, 9, 9], 2), ([0, 9, 12, 12, 14, 14, 14], 4)):
        fake.pool, ran = asked, []
        graphs.captured(doubled(fake, ran), ndarray(np.ones(2)))
        assert len(ran) == runs + 1
    fake.pool, ran = list(range(100)), []
    graphs.captured(doubled(fake, ran), ndarray(np.ones(2)))
    assert len(ran) == graphs.MOST_WARM_UPS + 1


@pytest.mark.clause("CUDA-13")
def test_a_function_that_waits_cannot_be_captured(fake: FakeCupy) -> None:
    def looks(x: ndarray) -> ndarray:
        fake.cuda.get_current_stream().synchronize()
        return x

    with pytest.raises(
        RuntimeError,
        match=r"looks: cannot be recorded, since it waits for the GPU, .*cudaErrorStreamCaptureUnsupported",
    ):
        graphs.captured(looks, ndarray(np.ones(2)))
    assert len(fake.streams) == 1, "the current stream is what it was"


@pytest.mark.clause("CUDA-13")
def test_a_capture_that_broke_unseen_is_named_at_its_end(fake: FakeCupy) -> None:
    def breaks(x: ndarray) -> ndarray:
        stream = fake.cuda.get_current_stream()
        stream.broken = stream.capturing
        return x

    with pytest.raises(
        RuntimeError, match=r"breaks: cannot be recorded, .*cudaErrorStreamCaptureInvalidated"
    ):
        graphs.captured(breaks, ndarray(np.ones(2)))


@pytest.mark.clause("CUDA-13")
def test_constants_that_a_graph_reads_live_as_long_as_it(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "_movers", {})
    constants.register(ndarray, lambda x: ndarray(np.array(x)))
    mask, used = np.array([True, False]), []

    def masked(x: ndarray) -> ndarray:
        used.append(constants.beside(mask, x))
        return x

    captured = graphs.captured(masked, ndarray(np.ones(2)))
    constants._kept.cache_clear()
    assert any(each is used[-1] for each in captured._constants)
    with constants.held() as later:
        assert constants.beside(mask, ndarray(np.ones(2))) is later[0] is not used[-1]
    assert len(captured._constants) == len(used) == graphs.WARM_UPS + 1
    constants._kept.cache_clear()


@pytest.mark.clause("CUDA-13")
def test_other_shapes_and_types_than_recorded_are_refused(fake: FakeCupy) -> None:
    captured = graphs.captured(doubled(fake, []), ndarray(np.ones(2)))
    with pytest.raises(
        ValueError, match=r"array 0: float64 \(3,\), but float64 \(2,\) was recorded"
    ):
        captured(ndarray(np.ones(3)))
    with pytest.raises(
        ValueError, match=r"array 0: float32 \(2,\), but float64 \(2,\) was recorded"
    ):
        captured(ndarray(np.ones(2, np.float32)))
    with pytest.raises(ValueError, match="2 arrays, but 1 were recorded"):
        captured(ndarray(np.ones(2)), ndarray(np.ones(2)))
    with pytest.raises(TypeError, match="a graph is recorded with CuPy arrays"):
        graphs.captured(lambda x: x, np.ones(2))


@pytest.mark.clause("CUDA-13")
def test_on_a_gpu_a_replay_gives_the_bits_of_the_function(cupy: Any) -> None:
    def function(x: Any, y: Any) -> tuple[Any, Any]:
        product = np.matmul(x, y)
        return (
            product,
            cupy.tanh(product).sum(axis=0),
            np.matmul(x[None, :, :4].swapaxes(-1, -2), y),
            np.einsum("ij,ij->i", x, y),
        )

    random = np.random.default_rng(0)
    recorded, other = (
        tuple(cupy.asarray(random.standard_normal((16, 16))) for _ in range(2)) for _ in range(2)
    )
    captured = graphs.captured(function, *recorded)
    for arrays in (recorded, other):
        for got, want in zip(captured(*arrays), function(*arrays), strict=True):
            assert_close("replay", cupy.asnumpy(got), cupy.asnumpy(want), reordered(16))
        first = [cupy.asnumpy(x) for x in captured(*arrays)]
        for got, want in zip(captured(*arrays), first, strict=True):
            assert_close("again", cupy.asnumpy(got), want, EXACT)
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        graphs.captured(lambda x: x * float(x.sum()), recorded[0])
    with pytest.raises(RuntimeError, match="multiplies by @"):
        graphs.captured(lambda x: x @ x, recorded[0])
