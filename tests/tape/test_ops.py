"""Every op: NumPy's value, and the derivatives of the complex step."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tape.core import Op
from tests.support.close import ANALYTIC, EXACT, assert_close


def weighted(case: Any) -> Callable[[Any], Any]:
    """Sum of the value with fixed random weights, as a function of the tuple of arguments."""
    weights = np.random.default_rng(3).standard_normal(np.shape(case.literal(*case.args)))
    return lambda args: ops.sum(weights * case.call(*args))


def directions(case: Any) -> tuple[Any, ...]:
    draw = np.random.default_rng(4)
    return tuple(draw.standard_normal(np.shape(a)) for a in case.args)


@pytest.mark.clause("TAPE-19")
def test_every_op_has_a_case(ops_with_cases: set[str]) -> None:
    defined = {
        name
        for name, f in vars(ops).items()
        if isinstance(f, Op | FunctionType) and not name.startswith("_")
    }
    assert defined == set(ops.__all__)
    assert ops_with_cases == set(ops.__all__)


@pytest.mark.clause("TAPE-3")
def test_value_on_plain_arrays_is_numpys(case: Any) -> None:
    assert_close(
        case.op, case.call(*case.args), case.literal(*case.args), EXACT if case.exact else ANALYTIC
    )


@pytest.mark.clause("TAPE-3")
def test_recorded_value_has_the_same_bits_as_the_plain_one(case: Any) -> None:
    assert_close(case.op, tape.vjp(case.call, *case.args)[0], case.call(*case.args), EXACT)


@pytest.mark.clause("TAPE-13")
def test_value_on_complex_arrays_is_numpys_by_real_parts(case: Any) -> None:
    args = [np.asarray(a + 0.2j * np.cos(a)) for a in case.args]
    assert_close(case.op, case.call(*args), case.literal(*args), ANALYTIC)


@pytest.mark.clause("TAPE-4", "TAPE-14")
def test_gradient_of_every_argument_is_the_complex_step(case: Any) -> None:
    check.check_gradient(weighted(case), case.args)


@pytest.mark.clause("TAPE-5", "TAPE-14")
def test_second_derivative_is_the_complex_step_of_the_gradient(case: Any) -> None:
    check.check_second(weighted(case), case.args, directions(case))


@pytest.mark.clause("TAPE-5")
def test_third_derivative_is_the_complex_step_of_the_second(case: Any) -> None:
    v = directions(case)

    def slope(args: Any) -> Any:
        return ops.sum(
            ops.stack(
                [ops.vdot(g, d) for g, d in zip(tape.grad(weighted(case))(args), v, strict=True)]
            )
        )

    check.check_second(slope, case.args, v, tolerance=1e-10)


@pytest.mark.clause("TAPE-16")
def test_pullback_is_linear(case: Any) -> None:
    check.check_linear(case.call, *case.args)


@pytest.mark.clause("TAPE-13")
def test_gradient_at_complex_arguments_is_holomorphic(case: Any) -> None:
    """Central differences along the real and the imaginary axis, which both give f', not its
    conjugate.
    """
    z = tuple(np.asarray(a + 0.2j * np.cos(a)) for a in case.args)
    v, f, h = directions(case), weighted(case), 1e-5
    slope = sum(np.sum(g * d) for g, d in zip(tape.grad(f)(z), v, strict=True))
    for unit in (1.0, 1j):
        above, below = ([a + s * h * unit * d for a, d in zip(z, v, strict=True)] for s in (1, -1))
        difference = (f(above) - f(below)) / (2 * h * unit)
        assert abs(slope - difference) <= 1e-7 * max(1.0, abs(difference))


@pytest.mark.clause("TAPE-8", "TAPE-19")
def test_float32_stays_float32_in_value_and_gradient(case: Any) -> None:
    if case.op == "astype":
        return  # the case asks for float64; see test_astype_*
    args = [np.float32(a) for a in case.args]
    value, pullback = tape.vjp(case.call, *args)
    assert value.dtype == np.float32
    assert all(g.dtype == np.float32 for g in pullback(np.ones(value.shape, np.float32)))


@pytest.mark.clause("TAPE-4")
def test_gradients_are_writeable_memory_of_their_own(case: Any) -> None:
    value, pullback = tape.vjp(case.call, *case.args)
    cotangent = np.ones(np.shape(value))
    gradients = pullback(cotangent)
    arrays = [g for g in [*gradients, cotangent, *case.args] if isinstance(g, np.ndarray)]
    assert all(g.flags.writeable for g in gradients if np.ndim(g))
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


@pytest.mark.clause("TAPE-4")
@pytest.mark.parametrize("n", [0, 1])
def test_axes_of_length_zero_and_one_keep_the_shape_of_the_argument(n: int) -> None:
    x, row = np.ones((n, 3)), np.ones((1, 3))
    for got, want in zip(
        tape.vjp(lambda a, b: a * b + b, x, row)[1](np.ones((n, 3))), (x, row), strict=True
    ):
        assert got.shape == want.shape
    assert tape.grad(lambda a: ops.sum(ops.sum(a, axis=0)) + ops.sum(a @ np.ones((3, 2))))(
        x
    ).shape == (n, 3)


@pytest.mark.clause("TAPE-3")
def test_python_numbers_leave_the_dtype_of_arrays_alone_when_recorded() -> None:
    """(1 - a) x is float32 for a Python float a, recorded or not."""
    x = np.ones(3, np.float32)
    value, pullback = tape.vjp(lambda a, x: (1.0 - a * a) ** 2 / a * -a * x, 0.5, x)
    assert value.dtype == x.dtype == pullback(x)[1].dtype
    assert np.asarray(pullback(x)[0]).dtype == np.float64


@pytest.mark.clause("TAPE-2")
@pytest.mark.parametrize(
    "number",
    [2, 2.0, np.float64(2.0), np.float32(2.0), np.array(2.0), np.full((2, 2), 2.0)],
    ids=repr,
)
def test_operators_take_numbers_and_arrays_on_either_side(number: Any) -> None:
    x, one = np.array([[1.0, 2.0], [3.0, 5.0]]), np.ones((2, 2))
    for f, want in (
        (lambda v: number + v, one),
        (lambda v: v - number, one),
        (lambda v: number - v, -one),
        (lambda v: number * v, 2 * one),
        (lambda v: v / number, one / 2),
        (lambda v: number / v, -2 / x**2),
        (lambda v: v**number, 2 * x),
        (lambda v: number**v, np.log(2.0) * 2.0**x),
        (lambda v: -v, -one),
    ):
        assert_close("gradient", tape.grad(lambda v, f=f: ops.sum(f(v)))(x), want, ANALYTIC)


@pytest.mark.clause("TAPE-2")
def test_matrix_product_of_array_and_variable_is_recorded_from_either_side() -> None:
    a, x = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    assert_close("a @ x", tape.grad(lambda x: ops.sum(a @ x))(x), a.T @ np.ones((2, 2)), ANALYTIC)
    assert_close("x @ a", tape.grad(lambda x: ops.sum(x @ a))(x), np.ones((3, 3)) @ a.T, ANALYTIC)
    assert_close(
        "x.T", tape.grad(lambda x: ops.sum(x.T @ x))(x), 2 * np.full((3, 2), 2.0), ANALYTIC
    )


@pytest.mark.clause("TAPE-13")
def test_choices_give_plain_booleans_of_real_parts() -> None:
    seen: dict[str, Any] = {}

    def f(z: Any) -> Any:
        seen.update(less=ops.less(z, 1.0), greater=ops.greater(z, 1.0), equal=ops.equal(z, 1.0))
        return ops.sum(z)

    tape.grad(f)(np.array([0.5, 1.0 + 9j, 2.0 - 9j]))
    assert {name: found.tolist() for name, found in seen.items()} == {
        "less": [True, False, False],
        "greater": [False, False, True],
        "equal": [False, True, False],
    }


@pytest.mark.clause("TAPE-19")
def test_zeros_like_and_ones_like_are_plain_in_dtype_and_shape() -> None:
    made: list[Any] = []

    def f(x: Any) -> Any:
        made.extend([ops.zeros_like(x), ops.ones_like(x, shape=(4,))])
        return ops.sum(x)

    tape.grad(f)(np.ones((2, 3), np.float32))
    assert_close("zeros", made[0], np.zeros((2, 3), np.float32), EXACT)
    assert_close("ones", made[1], np.ones(4, np.float32), EXACT)
