"""Kernels before their launch: compilation, arguments and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

from atlas_ref.engine import cuda
from atlas_ref.engine.cuda import launch, triangular
from atlas_ref.engine.cuda.launch import CupyDevice, Struct, View, view
from tests.engine.cuda.emulated import INSTANCES, Emulated
from tests.engine.cuda.fake_cupy import FakeCupy, ndarray


@pytest.mark.clause("CUDA-1")
def test_kernels_are_for_arrays_of_cupy_alone() -> None:
    there = ndarray(np.zeros(3))
    assert cuda.available_for(there, None, there)
    assert not cuda.available_for(np.zeros(3))
    assert not cuda.available_for(there, np.zeros(3))
    assert not cuda.available_for(None)
    with pytest.raises(TypeError, match=re.escape("kernels take CuPy arrays, found numpy.ndarray")):
        triangular.inverse_unit_lower(np.zeros((1, 2, 2)))


@pytest.mark.clause("CUDA-1")
def test_nothing_imports_cupy() -> None:
    code = (
        "import sys, importlib.abc\n"
        "class Refuse(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        assert name.partition('.')[0] != 'cupy', name\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from atlas_ref.engine.cuda import coefficients, exact, graphs, launch, pieces, "
        "sequential, triangular\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.clause("CUDA-3")
def test_a_kernel_is_compiled_once_and_asks_for_shared_memory_beyond_48_kilobytes() -> None:
    fake = FakeCupy()
    device = CupyDevice(fake)
    for n in (2, 90):
        triangular.inverse_unit_lower(np.zeros((3, n, n)), device=device)
    (settings,) = fake.compiled
    assert settings["name_expressions"] == ("inverse_unit_lower<double>",)
    assert settings["options"] == ("-std=c++17",)
    assert "#include" not in settings["code"]
    (_, grid, block, arguments, small), (_, _, _, _, large) = fake.launched
    assert (grid, block, small, large) == ((3,), (32,), 8 * (4 + 4), 8 * (8100 + 180))
    assert fake.most_shared == {"inverse_unit_lower<double>": large}
    assert isinstance(arguments[2], np.int64)
    with pytest.raises(launch.DoesNotFit, match="of which the device has 100000"):
        triangular.inverse_unit_lower(np.zeros((1, 120, 120)), device=device)


@pytest.mark.clause("CUDA-3")
def test_structs_are_passed_by_value_as_addresses_and_strides_in_entries() -> None:
    x = np.zeros((4, 3, 2), np.float32)
    address = x.ctypes.data
    turned = x[::-1].swapaxes(1, 2)
    fake = FakeCupy()
    struct = Struct((view(ndarray(turned)), View(None, 2), ndarray(x), 7))
    launch.run(
        CupyDevice(fake), "pieces", "some<float>", grid=(1,), block=(1,), arguments=(struct,)
    )
    (passed,) = fake.launched[0][3]
    assert passed.size == 1
    assert passed["words"][0].tolist() == [address + 3 * 6 * 4, -6, 1, 2, 0, 0, 0, address, 7]


@pytest.mark.clause("CUDA-3")
def test_what_a_kernel_would_read_wrongly_is_refused() -> None:
    turned = np.zeros((2, 3)).T
    for arguments in ((turned,), (Struct((turned,)),)):
        with pytest.raises(
            ValueError, match=re.escape("an array of shape (3, 2) with gaps or turned axes")
        ):
            launch.run(
                CupyDevice(FakeCupy()),
                "pieces",
                "some<float>",
                grid=(1,),
                block=(1,),
                arguments=arguments,
            )
    with pytest.raises(launch.DoesNotFit, match="70000"):
        launch.run(
            CupyDevice(FakeCupy()),
            "pieces",
            "some<float>",
            grid=(1, 70_000),
            block=(1,),
            arguments=(),
        )
    with pytest.raises(TypeError, match="strict: int64, expected float32 or float64"):
        triangular.inverse_unit_lower(np.zeros((1, 2, 2), int), device=Emulated())


@pytest.mark.clause("CUDA-3")
@pytest.mark.parametrize("source", INSTANCES)
def test_a_source_is_one_text_that_needs_no_folder(source: str) -> None:
    text = launch.source_text(source)
    assert "#include" not in text
    assert text.count("typedef long long int64;") == 1
    for name in INSTANCES[source]:
        assert re.search(
            rf"__global__ void (__launch_bounds__\([^)]*\) )?{name.partition('<')[0]}\(", text
        ), name


def test_the_sources_are_in_the_wheel() -> None:
    """The sources lie in the package, of which the wheel takes everything."""
    assert {path.name for path in launch.SOURCES.iterdir()} == {
        f"{source}.cu" for source in INSTANCES
    } | {"common.cuh"}
    assert (launch.SOURCES.parents[2] / "py.typed").exists()


def test_the_fake_is_passed_what_the_real_one_takes(cupy: Any) -> None:
    """A kernel on a GPU, with a struct by value, a null pointer and 64-bit integers."""
    code = """
    struct View { double* at; long long step; };
    extern "C" __global__ void probe(double* to, View from, double* nothing, long long n) {
        for (long long i = 0; i < n; ++i) to[i] = nothing ? -1.0 : from.at[i * from.step];
    }
    """
    kernel = cupy.RawModule(code=code).get_function("probe")
    x, to = cupy.arange(6.0), cupy.empty(3)
    arguments = tuple(map(launch._passed, (to, view(x[::2]), None, 3)))
    kernel((1,), (1,), arguments, shared_mem=0)
    assert cupy.asnumpy(to).tolist() == [0.0, 2.0, 4.0]


@pytest.mark.clause("CUDA-1")
def test_arrays_of_another_gpu_go_through_array_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = ndarray(np.zeros(3, np.float32)), ndarray(np.zeros(3, np.float32))
    runtime = types.SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setitem(
        sys.modules, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    )
    near.device, far.device = types.SimpleNamespace(id=0), types.SimpleNamespace(id=1)
    assert cuda.available_for(near, near)
    assert not cuda.available_for(near, far)
