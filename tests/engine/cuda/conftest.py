"""Where kernels run in the tests: on the host in three thread orders, and on a GPU if present."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from atlas_ref.backend.scratch import scratch
from atlas_ref.engine.cuda.launch import Device
from tests.engine.cuda import emulated

ORDERS = {
    "forwards": emulated.FORWARDS,
    "backwards": emulated.BACKWARDS,
    "shuffled": emulated.SHUFFLED,
}


@pytest.fixture(autouse=True)
def _work_space_is_given_back() -> Iterator[None]:
    """Open a frame of work space, since plain code is called by its parts here, without a group."""
    with scratch.frame():
        yield


class Place(NamedTuple):
    """A device, the way there, and the way back.

    `device` is None for the one that CuPy's arrays are on.
    """

    device: Device | None
    cupy: Any = None

    def to(self, x: Any) -> Any:
        """Arrays, or tuples of them, as the device takes them."""
        if isinstance(x, tuple):
            there = [self.to(each) for each in x]
            return type(x)(*there) if hasattr(x, "_fields") else tuple(there)
        return x if self.cupy is None or not isinstance(x, np.ndarray) else self.cupy.asarray(x)

    def back(self, x: Any) -> Any:
        """Arrays, or tuples of them, as NumPy's."""
        if isinstance(x, tuple):
            return tuple(self.back(each) for each in x)
        return x if self.cupy is None or x is None else self.cupy.asnumpy(x)


def gpu() -> Any:
    """CuPy with a GPU, or the reason why not."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no GPU: {error}"
    return cupy if count else "CuPy finds no GPU"


@pytest.fixture
def cupy() -> Any:
    found = gpu()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(params=[*ORDERS, "cupy"])
def place(request: pytest.FixtureRequest) -> Place:
    """Every place where kernels can run."""
    if request.param == "cupy":
        return Place(None, request.getfixturevalue("cupy"))
    if emulated.compiler() is None:
        pytest.skip("g++ is not installed, which the kernels are compiled with on the host")
    return Place(emulated.Emulated(ORDERS[request.param]))


@pytest.fixture
def host() -> emulated.Emulated:
    """The host alone, threads forwards."""
    if emulated.compiler() is None:
        pytest.skip("g++ is not installed, which the kernels are compiled with on the host")
    return emulated.Emulated()
