"""The checks themselves: the truth accepted, each kind of wrong gradient caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tests.support.close import ANALYTIC, FINITE_DIFFERENCE, assert_close

X = np.array([0.3, -1.2, 0.7])


def wrong_by(change: Any) -> Any:
    """sin, with a rule whose cotangent is changed."""
    op = tape.primitive(np.sin, "wrong")
    tape.defvjp(op, lambda y, x: lambda g: change(g, ops.cos(x)))
    return op


@pytest.mark.clause("TAPE-14")
def test_the_complex_step_is_exact_at_any_scale() -> None:
    for scale in (1e-200, 1e-8, 1.0, 1e8):
        got = check.complex_step(lambda x, s=scale: ops.sum(s * ops.exp(x)), X)
        assert_close("gradient / scale", got / scale, np.exp(X), ANALYTIC)


@pytest.mark.clause("TAPE-14")
def test_the_complex_step_takes_nested_parameters() -> None:
    got = check.complex_step(lambda p: ops.sum(p["a"] * p["b"][0]), {"a": X, "b": (2.0,)})
    assert_close("a", got["a"], np.full(3, 2.0), ANALYTIC)
    assert_close("b", got["b"][0], X.sum(), ANALYTIC)


@pytest.mark.clause("TAPE-15")
def test_central_differences_take_functions_that_are_not_analytic() -> None:
    got = check.central_difference(
        lambda p: np.sum(np.abs(p["a"])) + p["s"] ** 3, {"a": X, "s": 2.0}
    )
    assert_close("a", got["a"], np.sign(X), FINITE_DIFFERENCE)
    assert_close("s", got["s"], 12.0, FINITE_DIFFERENCE)


@pytest.mark.clause("TAPE-15")
def test_central_differences_confirm_the_complex_step() -> None:
    f = lambda x: ops.sum(ops.tanh(x) * ops.softplus(x))  # noqa: E731
    assert_close(
        "gradient", check.central_difference(f, X), check.complex_step(f, X), FINITE_DIFFERENCE
    )


@pytest.mark.clause("TAPE-14")
@pytest.mark.parametrize(
    "change",
    [
        lambda g, d: g * d * (1 + 1e-11),
        lambda g, d: -g * d,
        lambda g, d: g,
        lambda g, d: g * d * np.nan,
        lambda g, d: g * d + 1e-11,
    ],
    ids=["scaled", "sign", "factor", "nan", "shifted"],
)
def test_a_wrong_gradient_is_caught(change: Any) -> None:
    with pytest.raises(
        AssertionError, match=r"(?s)gradient\['w'\]: relative error .* > 1e-12.got .*want "
    ):
        check.check_gradient(
            lambda p: ops.sum(wrong_by(change)(p["w"])) + ops.sum(p["v"]), {"w": X, "v": X}
        )


@pytest.mark.clause("TAPE-14")
def test_a_wrong_gradient_of_vanishing_size_is_caught() -> None:
    with pytest.raises(AssertionError, match="relative error"):
        check.check_gradient(lambda x: ops.sum(1e-250 * wrong_by(lambda g, d: 2.0 * g * d)(x)), X)


@pytest.mark.clause("TAPE-14")
def test_a_gradient_whose_derivative_was_cut_is_caught() -> None:
    cut = wrong_by(lambda g, d: g * ops.stop_gradient(d))
    check.check_gradient(lambda x: ops.sum(cut(x)), X)
    with pytest.raises(AssertionError, match="second derivative: relative error"):
        check.check_second(lambda x: ops.sum(cut(x)), X, np.ones(3))


@pytest.mark.clause("TAPE-14")
def test_compare_names_the_worst_leaf_and_trusts_neither_nan_nor_another_shape() -> None:
    good = {"a": X, "b": X, "c": X}
    assert check.compare({**good, "b": X + 1e-3}, good).path == "gradient['b']"
    for bad in (X * np.nan, X[:, None], X[0]):
        for name in good:
            found = check.compare({**good, name: bad}, {**good, "b": X * (1 + 1e-3)})
            assert not found.error <= 1.0
            assert found.path == f"gradient['{name}']"
    assert check.compare(X * 0, X * 0).error == 0.0
    assert check.compare(np.ones((3, 1)), np.ones(3)).error == np.inf
    with pytest.raises(ValueError, match="nothing to compare"):
        check.compare({}, {})
    with pytest.raises(tape.TapeError, match=r"want\['c'\] is missing"):
        check.compare(good, {"a": X, "b": X})


@pytest.mark.clause("TAPE-16")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g, d: g * g * d, "argument 0: the pullback is not linear, relative distance"),
        (lambda g, d: 1e-20 * g * g * d, "argument 0: the pullback is not linear"),
        (lambda g, d: g * d + 1.0, "argument 0: the pullback is not linear"),
        (lambda g, d: g * d * np.nan, "argument 0: the pullback is not linear"),
        (lambda g, d: ops.absolute(g) * d, "argument 0: the pullback is not linear"),
        (lambda g, d: g * d + 1e-30, "argument 0: the pullback of zero is not zero"),
    ],
)
def test_a_pullback_that_is_not_linear_is_caught(change: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check.check_linear(wrong_by(change), X)


@pytest.mark.clause("TAPE-16")
def test_a_linear_pullback_of_any_size_passes() -> None:
    for scale in (1e-200, 1.0, 1e200):
        check.check_linear(lambda x, y, s=scale: s * ops.sin(x) * y, X, X)
