"""The GPU's clock, memory and copies, on a CuPy that only counts.

This is what a machine without a GPU can show of that code.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import devices
from benchmarks.gpu.devices import Cpu, Cuda, Unavailable
from tests.support import fake_cupy


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    for variable in ("CUPY_TF32", "ATLAS_REF_TF32", "TRITON_F32_DEFAULT"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module())
    monkeypatch.setattr(devices, "_torch", lambda: None)
    return Cuda()


def test_seconds_are_those_between_two_events(cuda: Cuda) -> None:
    def work() -> None:
        fake_cupy.Event.now += 250.0  # milliseconds

    assert cuda.seconds(work) == 0.25


def test_the_peak_is_what_the_pool_took_meanwhile(cuda: Cuda) -> None:
    cuda.pool.held = 1000

    def work() -> None:
        cuda.pool.held += 24

    assert cuda.peak(work).bytes == 24  # what was kept from before is given back first


def test_free_memory_is_asked_after_both_allocators_gave_back(cuda: Cuda) -> None:
    cuda.pool.held = 5
    assert cuda.free() == 7
    assert cuda.pool.held == 0


def test_the_device_is_described(cuda: Cuda) -> None:
    found = cuda.describe()
    assert found["device"] == "A GPU"
    assert found["memory"] == "141 GB"
    assert found["torch"] == "none that can be used"


def test_out_of_memory_is_known_by_its_kind(cuda: Cuda) -> None:
    assert cuda.is_out_of_memory(fake_cupy.OutOfMemoryError())
    assert not cuda.is_out_of_memory(MemoryError())
    assert Cpu().is_out_of_memory(MemoryError())


def test_inputs_are_repeated_on_the_device(cuda: Cuda) -> None:
    found = cuda.tiled(cuda.ours(np.arange(6.0).reshape(2, 3)), (3, 4))
    assert np.array_equal(found, [[0, 1, 2, 0], [3, 4, 5, 3], [0, 1, 2, 0]])


@pytest.mark.parametrize(("asked", "value", "triton"), [(False, "0", "ieee"), (True, "1", "tf32")])
def test_tf32_is_off_everywhere_unless_it_is_asked_for(
    cuda: Cuda, asked: bool, value: str, triton: str
) -> None:
    Cuda(tf32=asked)
    assert os.environ["CUPY_TF32"] == os.environ["ATLAS_REF_TF32"] == value
    assert os.environ["TRITON_F32_DEFAULT"] == triton


class Torch:
    """PyTorch with a GPU, as far as its settings go."""

    def __init__(self) -> None:
        settings: Any = type("settings", (), {})
        self.backends: Any = settings()
        self.backends.cuda, self.backends.cudnn = settings(), settings()
        self.backends.cuda.matmul = settings()
        self.cuda: Any = settings()
        self.cuda.is_available = lambda: True


@pytest.mark.parametrize("asked", [False, True])
def test_pytorch_gets_the_same_setting(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    torch = Torch()
    monkeypatch.setattr(devices, "_torch", lambda: torch)
    assert Cuda(tf32=asked).torch is torch
    assert torch.backends.cuda.matmul.allow_tf32 is asked
    assert torch.backends.cudnn.allow_tf32 is asked


def test_without_a_gpu_one_line_says_so(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(gpus=0))
    with pytest.raises(Unavailable, match="CuPy finds no GPU"):
        Cuda()
