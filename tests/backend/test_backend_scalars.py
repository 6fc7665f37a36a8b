"""Arrays without axes on a device.

CuPy takes the shape () of a new array as an absent one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref import backend
from atlas_ref.engine import associative_scan
from tape import ops
from tests.support.close import assert_close, reordered
from tests.support.standin.array import NAME, Refused


@pytest.fixture(params=[NAME, "cupy"])
def there(request: pytest.FixtureRequest) -> backend.Backend:
    try:
        return backend.named(request.param)
    except backend.BackendError as error:
        pytest.skip(str(error))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "scan of numbers": lambda x: associative_scan.scan(x, x),
    "index of an array without axes": lambda x: (
        ops.index(ops.index(x, 0), None) * ops.index(ops.sum(x), ...)
    ),
    "zeros and ones": lambda x: (
        ops.zeros_like(x, shape=()) + ops.ones_like(x, shape=()) * ops.sum(x)
    ),
}


@pytest.mark.clause("BACKEND-2")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_without_axes_are_what_they_are_in_numpy(there: backend.Backend, name: str) -> None:
    function, x = FUNCTIONS[name], np.array([0.5, -2.0, 3.0, 0.25])
    moved = there.from_host(x)
    for each in (function, tape.grad(lambda x: ops.sum(function(x)))):
        got, want = there.to_host(each(moved)), np.asarray(each(x))
        assert got.shape == want.shape
        assert_close(name, got, want, reordered(8, amplification=1e3))


@pytest.mark.clause("BACKEND-12")
def test_the_stand_in_refuses_a_shape_that_cupy_would_not_see() -> None:
    x = backend.named(NAME).from_host(np.ones(3))
    with pytest.raises(Refused, match=r"zeros_like: shape=\(\) is taken for none given"):
        np.zeros_like(x, shape=())
