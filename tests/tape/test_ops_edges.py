"""Ops at points that need care: extreme values, missing derivatives, nan, zeros of powers,
dtypes.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tape
from tape import ops
from tests.support.close import ANALYTIC, EXACT, assert_close

EXTREMES = [-1e308, -745.0, -700.0, -40.0, -1.0, -1e-300, 0.0, 1e-300, 1.0, 40.0, 700.0, 1e308]


def by_entry(name: str, got: Any, want: Any) -> None:
    """Assert that every entry agrees to a few units in its own last place, however large it is."""
    for i, (a, b) in enumerate(zip(np.ravel(got), np.ravel(want), strict=True)):
        assert abs(a - b) <= 4 * np.spacing(abs(b)), f"{name}[{i}]: got {a!r}, want {b!r}"


@pytest.mark.clause("TAPE-19")
@pytest.mark.parametrize("x", EXTREMES)
def test_sigmoid_and_its_derivative_have_full_relative_precision_everywhere(x: float) -> None:
    e = math.exp(-abs(x))
    by_entry("value", ops.sigmoid(x), e / (1.0 + e) if x < 0 else 1.0 / (1.0 + e))
    by_entry("gradient", tape.grad(ops.sigmoid)(x), e / (1.0 + e) / (1.0 + e))


@pytest.mark.clause("TAPE-19")
@pytest.mark.parametrize("x", EXTREMES)
def test_softplus_and_its_derivative_have_full_relative_precision_everywhere(x: float) -> None:
    e = math.exp(-abs(x))
    by_entry("value", ops.softplus(x), max(x, 0.0) + math.log1p(e))
    by_entry("gradient", tape.grad(ops.softplus)(x), e / (1.0 + e) if x < 0 else 1.0 / (1.0 + e))


@pytest.mark.clause("TAPE-19")
@pytest.mark.parametrize("x", [*EXTREMES, -6.0, -2.5, -0.3, 0.3, 0.9, 2.5, 5.5, 27.0])
def test_erf_and_its_derivative_have_full_relative_precision_everywhere(x: float) -> None:
    by_entry("value", ops.erf(x), math.erf(x))
    with np.errstate(over="ignore"):  # of the square of 1e308, whose exponential is 0
        slope = tape.grad(ops.erf)(np.float64(x))
    want = 2.0 / math.sqrt(math.pi) * math.exp(-min(x * x, 1e3))
    # the square is rounded before the exponential, which makes its error x^2 times as large
    assert abs(slope - want) <= np.finfo(float).eps * (4.0 + min(x * x, 1e3)) * want


@pytest.mark.clause("TAPE-19")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.complex64])
def test_erf_keeps_the_dtype(dtype: Any) -> None:
    x = np.array([-0.5, 0.25, 1.5], dtype)
    value, gradient = ops.erf(x), tape.grad(lambda x: ops.sum(ops.erf(x)))(x)
    assert value.dtype == dtype
    near = 2.0 * float(ml_dtypes.finfo(dtype).eps)
    for i, entry in enumerate((-0.5, 0.25, 1.5)):
        assert abs(complex(value[i]) - math.erf(entry)) <= near
        slope = 2.0 / math.sqrt(math.pi) * math.exp(-entry * entry)
        assert abs(complex(gradient[i]) - slope) <= near


@pytest.mark.clause("TAPE-19")
def test_scipy_is_imported_at_the_first_use_of_erf() -> None:
    asked = "'scipy' in sys.modules"
    code = f"import sys; from tape import ops; print({asked}, ops.erf(0.0) == 0.0, {asked})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True", "True"]


@pytest.mark.clause("TAPE-19")
def test_erf_of_whole_numbers_is_a_float() -> None:
    assert ops.erf(np.array([0, 1])).dtype == np.float64
    by_entry("value", ops.erf(np.array([0, 1])), [0.0, math.erf(1.0)])


@pytest.mark.clause("TAPE-19")
@pytest.mark.parametrize("gap", [0.0, 1e-9, 1.0, 40.0, 700.0, 1e308])
@pytest.mark.parametrize("top", [-1e306, 0.0, 1e306])
def test_logsumexp_and_softmax_neither_overflow_nor_lose_small_terms(
    gap: float, top: float
) -> None:
    x = np.array([top, top - gap])
    gap = top - x[1]
    e = math.exp(-gap)
    by_entry(
        "value",
        ops.logsumexp(x),
        top + (math.log(2.0) + math.log1p((e - 1) / 2) if e == 1.0 else math.log1p(e)),
    )
    by_entry("softmax", ops.softmax(x), [1.0 / (1.0 + e), e / (1.0 + e)])
    by_entry("gradient", tape.grad(ops.logsumexp)(x), [1.0 / (1.0 + e), e / (1.0 + e)])


@pytest.mark.clause("TAPE-19")
def test_logsumexp_of_zero_and_x_is_softplus() -> None:
    for x in (-745.0, -40.0, -1.0, 0.0, 2.0, 800.0):
        by_entry("value", ops.logsumexp(np.array([0.0, x])), ops.softplus(x))


@pytest.mark.clause("TAPE-19")
def test_a_masked_entry_of_softmax_has_no_weight_and_no_gradient() -> None:
    x = np.array([0.5, -np.inf, 1.5])
    assert ops.softmax(x)[1] == 0.0
    assert tape.grad(lambda x: ops.softmax(x)[0])(x)[1] == 0.0
    assert tape.grad(ops.logsumexp)(x)[1] == 0.0


@pytest.mark.clause("TAPE-19")
def test_expm1_keeps_its_small_derivative() -> None:
    by_entry("gradient", tape.grad(ops.expm1)(-40.0), math.exp(-40.0))
    by_entry("elu", tape.grad(ops.elu)(-700.0), math.exp(-700.0))


@pytest.mark.clause("TAPE-19")
def test_elu_does_not_overflow_in_the_branch_that_is_not_taken() -> None:
    x = np.array([-1e308, 1e308])
    assert_close("value", ops.elu(x), np.array([-1.0, 1e308]), EXACT)
    assert_close(
        "gradient", tape.grad(lambda x: ops.sum(ops.elu(x)))(x), np.array([0.0, 1.0]), EXACT
    )


@pytest.mark.clause("TAPE-20")
@pytest.mark.parametrize(
    ("f", "x", "want"),
    [
        (ops.norm, np.zeros(3), np.zeros(3)),
        (
            lambda x: ops.sum(ops.norm(x, axis=-1)),
            np.array([[0.0, 0.0], [3.0, 4.0]]),
            np.array([[0.0, 0.0], [0.6, 0.8]]),
        ),
        (ops.absolute, 0.0, 1.0),
        (ops.elu, 0.0, 1.0),
        (ops.stop_gradient, 2.0, 0.0),
        (lambda x: ops.stop_gradient(x) * x, 2.0, 2.0),
    ],
    ids=["norm", "norm of a row", "absolute", "elu", "stop_gradient", "stop_gradient of a factor"],
)
def test_points_without_a_derivative_have_the_stated_one(
    f: Callable[[Any], Any], x: Any, want: Any
) -> None:
    assert_close("gradient", tape.grad(f)(x), want, ANALYTIC)


@pytest.mark.clause("TAPE-20")
@pytest.mark.parametrize("op", [ops.maximum, ops.minimum], ids=["maximum", "minimum"])
def test_at_a_tie_the_first_argument_is_differentiated(op: Callable[..., Any]) -> None:
    assert tape.grad(op, (0, 1))(1.5, 1.5) == (1.0, 0.0)


@pytest.mark.clause("TAPE-20")
def test_stop_gradient_stops_at_every_level() -> None:
    assert tape.grad(lambda x: tape.grad(lambda y: y * ops.stop_gradient(x * y))(2.0))(3.0) == 0.0


@pytest.mark.clause("TAPE-13")
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_maximum_and_minimum_pass_nan_on_as_numpy_does(op: str) -> None:
    a, b = np.array([np.nan, 1.0, np.nan, 1.0]), np.array([1.0, np.nan, np.nan, 2.0])
    assert_close(op, np.isnan(getattr(ops, op)(a, b)), np.isnan(getattr(np, op)(a, b)), EXACT)


@pytest.mark.clause("TAPE-4")
def test_powers_at_zero_have_the_derivatives_of_polynomials() -> None:
    """Derivatives of (1, x, x^2, x^3) at 0, with exponents as an array or one by one.

    They are (0, 1, 0, 0).
    """
    together = tape.jacobian(lambda x: x ** np.arange(4))
    one_by_one = tape.jacobian(lambda x: ops.stack([x**p for p in range(4)]))
    for name, jacobian in (("array", together), ("numbers", one_by_one)):
        assert_close(name, jacobian(0.0), np.array([0.0, 1.0, 0.0, 0.0]), EXACT)
    assert_close(
        "second", tape.grad(tape.grad(lambda x: ops.sum(x ** np.arange(4))))(0.0), 2.0, EXACT
    )


@pytest.mark.clause("TAPE-5")
def test_the_mixed_derivative_of_a_power_is_right_at_exponent_zero() -> None:
    """The mixed derivative at p = 0, which is 1 / a.

    d/da d/dp a^p = a^(p - 1) (1 + p log a).
    """
    a, p = np.array([0.5, 2.0]), np.array([0.0, 3.0])
    mixed = tape.grad(lambda p: ops.sum(tape.grad(lambda a: ops.sum(a**p))(a)))(p)
    assert_close("mixed", mixed, a ** (p - 1) * (1 + p * np.log(a)), ANALYTIC)


@pytest.mark.clause("TAPE-4")
def test_power_of_zero_has_derivative_zero_in_the_exponent() -> None:
    assert tape.grad(lambda p: 0.0**p)(2.0) == 0.0


@pytest.mark.clause("TAPE-4")
def test_power_keeps_the_precision_of_a_wide_exponent_on_a_narrow_base() -> None:
    base, p = np.float32(2.0), np.array([1.0, 2.0])
    assert_close(
        "exponent", tape.grad(lambda p: ops.sum(base**p))(p), np.log(2.0) * 2.0**p, ANALYTIC
    )


@pytest.mark.clause("TAPE-4")
def test_a_discarded_branch_of_where_passes_no_infinity() -> None:
    taken = np.array([True, False])
    _, pullback = tape.vjp(lambda a, b: ops.where(taken, a, b), np.ones(2), np.ones(2))
    for got, want in zip(
        pullback(np.array([1.0, np.inf])), ([1.0, 0.0], [0.0, np.inf]), strict=True
    ):
        assert got.tolist() == want


@pytest.mark.clause("TAPE-4")
@pytest.mark.parametrize(
    ("row", "window"), [((4,), (2, 3, 4)), ((2, 4), (2, 3, 4)), ((1, 4), (2, 3, 4))]
)
def test_slide_sums_the_cotangent_of_a_row_that_it_repeated(
    row: tuple[int, ...], window: tuple[int, ...]
) -> None:
    gradients = tape.vjp(ops.slide, np.ones(window), np.ones(row))[1](np.ones(window))
    assert [g.shape for g in gradients] == [window, row]
    assert gradients[1].sum() == 8.0


@pytest.mark.clause("TAPE-4")
def test_settings_may_be_given_by_position_or_by_name() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for by_name, by_position in (
        (lambda v: ops.reshape(v, shape=(3, 2)), lambda v: ops.reshape(v, (3, 2))),
        (lambda v: ops.broadcast_to(v, shape=(4, 2, 3)), lambda v: ops.broadcast_to(v, (4, 2, 3))),
        (lambda v: ops.swapaxes(v, axis1=0, axis2=1), lambda v: ops.swapaxes(v, 0, 1)),
        (lambda v: ops.moveaxis(v, source=0, destination=1), lambda v: ops.moveaxis(v, 0, 1)),
        (lambda v: ops.expand_dims(v, axis=0), lambda v: ops.expand_dims(v, 0)),
        (lambda v: ops.flip(v, axis=0), lambda v: ops.flip(v, 0)),
        (lambda v: ops.tril(v, k=1), lambda v: ops.tril(v, 1)),
        (lambda v: ops.sum(v, axis=1, keepdims=True), lambda v: ops.sum(v, 1, True)),
        (lambda v: ops.cumsum(v, axis=0), lambda v: ops.cumsum(v, 0)),
    ):
        named, positional = tape.vjp(by_name, x), tape.vjp(by_position, x)
        assert_close("value", named[0], positional[0], EXACT)
        assert_close("gradient", named[1](named[0])[0], positional[1](positional[0])[0], EXACT)


@pytest.mark.clause("TAPE-13")
def test_astype_changes_precision_and_keeps_complex_complex() -> None:
    assert ops.astype(np.ones(2), np.float32).dtype == np.float32
    assert ops.astype(np.ones(2) + 1j, np.float32).dtype == np.complex64
    assert ops.astype(1.5, np.float32).dtype == np.float32
    value, pullback = tape.vjp(lambda x: ops.astype(x, np.float32), np.array([1.0, 2.0]))
    assert value.dtype == np.float32
    assert_close("gradient", pullback(np.ones(2, np.float32))[0], np.ones(2), EXACT)


@pytest.mark.clause("TAPE-19")
def test_a_solve_needs_row_exchanges_and_a_singular_matrix_alone_gives_nan() -> None:
    swap, b = np.array([[0.0, 2.0], [4.0, 0.0]]), np.array([[6.0], [8.0]])
    assert_close("exchanged", ops.solve(swap, b), np.array([[2.0], [3.0]]), EXACT)
    both = ops.solve(np.stack([swap, np.ones((2, 2))]), b)
    assert_close("beside a singular one", both[0], np.array([[2.0], [3.0]]), EXACT)
    assert np.isnan(both[1]).all()


@pytest.mark.clause("TAPE-19")
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_a_solve_in_a_narrow_format_is_that_of_float32_rounded(kind: Any) -> None:
    a, b = np.array([[3.0, 1.0], [1.0, 2.0]], kind), np.array([[1.0], [1.0]], kind)
    wide = np.linalg.solve(a.astype(np.float32), b.astype(np.float32))
    got = ops.solve(a, b)
    assert got.dtype == kind
    assert_close("rounded", got.astype(np.float32), wide.astype(kind).astype(np.float32), EXACT)


@pytest.mark.clause("TAPE-19")
def test_solve_triangular_reads_neither_the_other_triangle_nor_a_unit_diagonal() -> None:
    a, b = np.tril(np.arange(1.0, 10.0).reshape(3, 3)), np.arange(6.0).reshape(3, 2)
    poisoned = a + np.triu(np.full((3, 3), np.nan), 1)
    assert_close("lower", ops.solve_triangular(poisoned, b), np.linalg.solve(a, b), ANALYTIC)
    np.fill_diagonal(poisoned, np.nan)
    unit = np.tril(a, -1) + np.eye(3)
    assert_close(
        "unit", ops.solve_triangular(poisoned, b, unit=True), np.linalg.solve(unit, b), ANALYTIC
    )
    gradient = tape.grad(lambda a: ops.sum(ops.solve_triangular(a, b, unit=True)))(poisoned)
    assert_close("gradient outside", np.triu(gradient), np.zeros((3, 3)), EXACT)
