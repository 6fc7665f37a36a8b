"""Compilation of every kernel instantiation for its GPUs, by nvcc and NVRTC, within registers and
shared memory.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atlas_ref.engine.cuda import coefficients, exact, launch, pieces, sequential, triangular
from atlas_ref.engine.group.coefficients import GateRows
from tests.engine.cuda.emulated import INSTANCES

ARCHITECTURES = ("sm_80", "sm_90")
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}  # bytes that a block may have
RESOURCES = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\s+ptxas info\s*: Used (\d+) registers([^\n]*)"
)


def nvcc(
    source: str, names: Sequence[str], architecture: str, folder: Path
) -> list[tuple[int, ...]]:
    """Stack, spill stores, spill loads, registers and bytes of static shared memory of each
    kernel.
    """
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not installed")
    kept = "\n".join(
        f"__device__ void* keep_{i}() {{ return (void*)&{name}; }}" for i, name in enumerate(names)
    )
    (folder / "kernels.cu").write_text(f"{launch.source_text(source)}\n{kept}\n")
    command = [
        found,
        *launch.OPTIONS,
        f"-arch={architecture}",
        "-cubin",
        "-Xptxas",
        "-v",
        "-o",
        folder / "kernels.cubin",
        folder / "kernels.cu",
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert "warning" not in made.stderr, made.stderr
    assert (folder / "kernels.cubin").stat().st_size > 0
    parts = re.findall(
        r"Compiling entry function .*?(?=Compiling entry function|\Z)", made.stderr, re.DOTALL
    )
    resources = []
    for part in parts:
        numbers = RESOURCES.search(part)
        assert numbers is not None, part
        static = re.search(r"(\d+) bytes smem", numbers[5])
        resources.append((*map(int, numbers.groups()[:4]), int(static[1]) if static else 0))
    assert len(resources) == len(names), made.stderr
    return resources


def check(source: str, architecture: str, folder: Path) -> None:
    for stack, stores, loads, registers, static in nvcc(
        source, INSTANCES[source], architecture, folder
    ):
        assert (stack, stores, loads) == (0, 0, 0), "registers spill into memory"
        assert registers <= 255
        assert static == 0, "shared memory beside that which the launch asks for"


@pytest.mark.sample(1)
@pytest.mark.clause("CUDA-3")
@pytest.mark.parametrize("source", ["coefficients", "triangular", "pieces"])
def test_nvcc_compiles_the_small_kernels_without_spills(source: str, tmp_path: Path) -> None:
    check(source, "sm_90", tmp_path)


@pytest.mark.slow
@pytest.mark.clause("CUDA-3")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("source", INSTANCES)
def test_nvcc_compiles_every_kernel_without_spills(
    source: str, architecture: str, tmp_path: Path
) -> None:
    check(source, architecture, tmp_path)


def nvrtc() -> Any:
    """The run-time compiler of CuPy, out of the package that brings it, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else [Path(each) for each in spec.submodule_search_locations or []]
    libraries = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so*")]
    return ctypes.CDLL(str(libraries[0])) if libraries else None


@pytest.mark.slow
@pytest.mark.clause("CUDA-3")
@pytest.mark.parametrize("source", INSTANCES)
def test_nvrtc_compiles_every_kernel_from_one_text(source: str) -> None:
    """Compilation without headers of the host, which nvcc would find."""
    library = nvrtc()
    if library is None:
        pytest.skip("NVRTC is not installed (nvidia-cuda-nvrtc)")
    program = ctypes.c_void_p()
    text = launch.source_text(source).encode()
    assert (
        library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None) == 0
    )
    for name in INSTANCES[source]:
        assert library.nvrtcAddNameExpression(program, name.encode()) == 0
    options = [each.encode() for each in (*launch.OPTIONS, "--gpu-architecture=sm_90")]
    result = library.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert result == 0, log.value.decode()
    for name in INSTANCES[source]:
        lowered = ctypes.c_char_p()
        assert library.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)) == 0, name


class Asked:
    """A device that launches nothing and records the largest request of shared memory."""

    xp = np

    def __init__(self) -> None:
        self.shared = 0

    def shared_limit(self) -> int:
        return 2**31

    def launch(
        self, source: str, name: str, grid: Any, block: Any, shared: int, arguments: Any
    ) -> None:
        assert name in INSTANCES[source]
        assert block[0] * (*block, 1)[1] <= 1024
        self.shared = max(self.shared, shared)


def zeros(*shape: int) -> Any:
    return np.lib.stride_tricks.as_strided(np.zeros(1), shape, (0,) * len(shape))


@pytest.mark.clause("CUDA-3")
@pytest.mark.parametrize("d", [64, 128])
def test_what_the_kernels_are_made_for_fits_a_block_in_float64(d: int) -> None:
    """Sizes of the design: chunks of 64 tokens, d_phi and d_out of 64 and 128, windows up to 16."""
    B, g, C = 1, 2, 64
    for window, chunk in ((1, C), (16, 4)):
        device = Asked()
        K = chunk * window
        gate = np.zeros((chunk, B, g, 1))
        gates = GateRows(gate, gate, gate, gate, np.zeros((chunk, B, g, 1, window)))
        D, X = coefficients.coefficient_rows(gates, K, window, device=device)
        coefficients.coefficient_rows_backward(gates, D, X, D, D[0], window, device=device)
        inverse = triangular.inverse_unit_lower(np.zeros((B, g, 1, K, K)), device=device)
        given = exact.LoopInputs(zeros(B, g, K, d), zeros(B, g, K, d), inverse, D, X, None, window)
        start = np.zeros((B, d, 2 * d))
        made = exact.inter_chunk_loop(given, start, device=device)
        exact.inter_chunk_loop_backward(given, start, made.E, made.states[:, 1:], device=device)
        pieces.carried(start, np.zeros((B, g, d, 2 * d)), D, X, device=device)
        rows, one = np.zeros((B, window - 1 + 9, d)), np.zeros((B, 9, 1))
        M = np.zeros((B, d, d))
        sequential.steps(
            rows,
            rows,
            rows[:, window - 1 :],
            one,
            one,
            one,
            one,
            np.zeros((B, 9, window)),
            M,
            M,
            device=device,
        )
        assert 0 < device.shared <= min(SHARED.values()), device.shared
