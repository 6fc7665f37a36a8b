"""Ops on arrays of another library, which pass through values and gradients without conversion.

`Device` stands in for CuPy where there is no GPU. Like CuPy's arrays it takes part in NumPy's
dispatch, gives arrays without axes where NumPy gives scalars, accepts numbers beside it, and
refuses NumPy arrays and conversion to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from tape import ops
from tests.support.close import EXACT, assert_close


class Device(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that lives elsewhere."""

    def __init__(self, host: Any) -> None:
        self.host = np.asarray(host)

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    real = property(lambda self: Device(self.host.real))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        if any(isinstance(x, tuple | list) for x in inputs):
            return NotImplemented
        return onto_device(
            getattr(ufunc, method)(
                *onto_host(inputs), **{name: onto_host(value) for name, value in settings.items()}
            )
        )

    def __array_function__(self, function: Any, _: Any, args: Any, settings: Any) -> Any:
        return onto_device(function(*onto_host(args), **onto_host(settings)))

    def __getitem__(self, key: Any) -> Device:
        return Device(self.host[key_of(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[key_of(key)] = onto_host(value)

    def __bool__(self) -> bool:
        raise TypeError("a branch on an array waits for the device")

    def astype(self, kind: Any) -> Device:
        return Device(self.host.astype(kind))

    def reshape(self, *shape: Any) -> Device:
        return Device(self.host.reshape(*shape))

    def swapaxes(self, i: int, j: int) -> Device:
        return Device(self.host.swapaxes(i, j))


def onto_host(x: Any) -> Any:
    if isinstance(x, Device):
        return x.host
    if isinstance(x, np.ndarray):
        raise TypeError("a NumPy array beside an array of another library")
    if isinstance(x, tuple | list):
        return type(x)([onto_host(each) for each in x])
    return {name: onto_host(each) for name, each in x.items()} if isinstance(x, dict) else x


def key_of(key: Any) -> Any:
    """An index as NumPy takes it."""
    if isinstance(key, tuple):
        return tuple(key_of(part) for part in key)
    return key.host if isinstance(key, Device) else key


def onto_device(x: Any) -> Any:
    return Device(x) if isinstance(x, np.ndarray | np.generic) else x


@pytest.mark.clause("TAPE-3", "TAPE-19")
def test_every_op_and_its_derivatives_stay_on_the_device(free_case: Any) -> None:
    call = free_case.call
    args = tuple(np.asarray(a) for a in free_case.args)
    far = tuple(Device(a) for a in args)
    host_value, host_pullback = tape.vjp(call, *args)
    value, pullback = tape.vjp(call, *far)
    assert_close("plain value", call(*far).host, np.asarray(host_value), EXACT)
    assert_close("value", value.host, np.asarray(host_value), EXACT)
    weights = np.cos(np.arange(host_value.size, dtype=float)).reshape(host_value.shape)
    for got, want in zip(pullback(Device(weights)), host_pullback(weights), strict=True):
        assert_close("gradient", got.host, np.asarray(want), EXACT)

    def loss(args: Any) -> Any:
        return ops.sum(call(*args) ** 2)

    for got, want in zip(tape.hvp(loss)(far, far), tape.hvp(loss)(args, args), strict=True):
        assert_close("second derivative", got.host, np.asarray(want), EXACT)


@pytest.mark.clause("TAPE-19")
def test_transformations_stay_on_the_device() -> None:
    x = np.arange(1.0, 5.0)
    f = lambda x: tape.checkpoint(lambda y: ops.stack([y[0] * y, ops.zeros_like(y) + y[2]]))(x)  # noqa: E731
    assert_close("jacobian", tape.jacobian(f)(Device(x)).host, tape.jacobian(f)(x), EXACT)
    unused = tape.grad(lambda p: ops.sum(p["a"]))({"a": Device(x), "b": Device(x)})["b"]
    assert_close("unused", unused.host, np.zeros(4), EXACT)
    square = tape.opaque(lambda a: a * a, lambda a: (a * a, a), lambda a, g: (2.0 * a * g,))
    assert_close("opaque", tape.grad(lambda x: ops.sum(square(x)))(Device(x)).host, 2.0 * x, EXACT)


@pytest.mark.clause("TAPE-3", "TAPE-21")
@pytest.mark.parametrize("order", ["C", "F"])
def test_entries_that_an_index_of_several_axes_names_twice_are_added_up(order: Any) -> None:
    x, weights = np.arange(12.0).reshape(3, 4), np.asarray([[1.0, 2.0], [4.0, 8.0]], order=order)
    rows, columns = np.array([[0], [2]]), np.array([[1, 1]])
    _, pullback = tape.vjp(lambda x: x[rows, columns], x)
    want = np.zeros((3, 4))
    want[0, 1], want[2, 1] = 1.0 + 2.0, 4.0 + 8.0
    assert_close("on the host", pullback(weights)[0], want, EXACT)
    _, pullback = tape.vjp(lambda x: x[Device(rows), Device(columns)], Device(x))
    assert_close("gradient", pullback(Device(weights))[0].host, want, EXACT)
