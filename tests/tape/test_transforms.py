"""grad, value_and_grad, vjp, jacobian and hvp: results, nesting and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tests.support.close import ANALYTIC, EXACT, assert_close

X = np.array([[0.3, -1.2, 0.7], [1.1, 0.4, -0.5]])
V = np.array([[0.2, 0.9, -0.4], [-1.3, 0.1, 0.6]])


def smooth(x: Any) -> Any:
    """A smooth function that reuses x, mixes entries, indexes and joins."""
    y = ops.tanh(x @ ops.transpose(x)) @ x
    return ops.sum(
        ops.concatenate([y * x, ops.softmax(x)])[1:] / (2.0 + x[0] * x[0])
    ) + ops.logsumexp(y[0])


@pytest.mark.clause("TAPE-8", "TAPE-14")
def test_grad_and_hvp_of_a_composite_equal_the_complex_step() -> None:
    check.check_gradient(smooth, X)
    check.check_second(smooth, X, V)


@pytest.mark.clause("TAPE-8")
def test_value_and_grad_gives_both_and_grad_the_second() -> None:
    value, gradient = tape.value_and_grad(smooth)(X)
    assert_close("value", value, smooth(X), EXACT)
    assert_close("gradient", gradient, tape.grad(smooth)(X), EXACT)


@pytest.mark.clause("TAPE-8")
def test_argnums_choose_arguments_and_keywords_pass_through() -> None:
    def f(a: Any, b: Any, c: Any, *, power: int) -> Any:
        return ops.sum(a * b**power) + c * c

    a, b = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    assert_close("second", tape.grad(f, 1)(a, b, 2.0, power=2), 2 * a * b, EXACT)
    first, third = tape.grad(f, (0, 2))(a, b, 2.0, power=3)
    assert_close("first", first, b**3, EXACT)
    assert third == 4.0
    last, front = tape.value_and_grad(f, (2, 0))(a, b, 2.0, power=1)[1]
    assert last == 4.0
    assert_close("front", front, b, EXACT)


@pytest.mark.clause("TAPE-8")
def test_a_gradient_has_the_precision_of_its_argument_also_under_an_outer_tape() -> None:
    narrow, wide = np.ones(2, np.float32), np.array([2.0, 3.0])
    assert tape.grad(lambda x: ops.sum(x * wide))(narrow).dtype == np.float32
    value, pullback = tape.vjp(lambda y: tape.grad(lambda x: ops.sum(x * y))(narrow), wide)
    assert value.dtype == np.float32
    assert_close("outer", pullback(np.ones(2, np.float32))[0], np.ones(2), EXACT)


@pytest.mark.clause("TAPE-8")
@pytest.mark.parametrize("argnums", [-1, 2, (0, 0), (0, 5)])
def test_argnums_that_are_no_positions_are_refused(argnums: Any) -> None:
    with pytest.raises(tape.TapeError, match="name each position from 0 once"):
        tape.grad(lambda a, b: a * b, argnums)(1.0, 2.0)


@pytest.mark.clause("TAPE-17")
def test_a_refused_argument_is_named_by_the_position_it_was_given_at() -> None:
    with pytest.raises(
        tape.TapeError,
        match=r"argument 1 of 2\['n'\]: 3 of type int has no derivative; write it as a float",
    ):
        tape.grad(lambda a, b: a * b["n"], 1)(1.0, {"n": 3})


@pytest.mark.clause("TAPE-8")
def test_grad_of_what_is_not_one_number_says_what_to_use() -> None:
    for result, message in (
        (lambda x: x, r"shape \(2,\), not one number; sum it, or use vjp or jacobian"),
        (lambda x: ops.sum(x, keepdims=True), r"shape \(1,\), not one number"),
        (
            lambda x: {"loss": ops.sum(x)},
            "returned dict, not one array; return one number, or use vjp",
        ),
        (lambda x: (ops.sum(x), x), "returned tuple, not one array"),
        (lambda x: None, "returned NoneType, not one array"),
        (lambda x: 3, "value: 3 of type int has no derivative; write it as a float"),
    ):
        with pytest.raises(tape.TapeError, match=message):
            tape.grad(result)(np.ones(2))


@pytest.mark.clause("TAPE-8")
def test_vjp_of_several_outputs_pulls_one_cotangent_for_each() -> None:
    def f(x: Any, w: Any) -> Any:
        return {"y": x @ w, "s": (ops.sum(x), x), "constant": np.ones(2), "name": "f"}

    w = np.arange(6.0).reshape(3, 2)
    value, pullback = tape.vjp(f, X, w)
    assert value["name"] == "f"
    assert_close("y", value["y"], X @ w, EXACT)
    g, h = np.array([[1.0, -2.0], [0.5, 3.0]]), V
    x_bar, w_bar = pullback({"y": g, "s": (2.0, h), "constant": np.ones(2)})
    assert_close("x", x_bar, g @ w.T + 2.0 + h, ANALYTIC)
    assert_close("w", w_bar, X.T @ g, ANALYTIC)


@pytest.mark.clause("TAPE-8")
def test_one_variable_returned_twice_receives_both_cotangents() -> None:
    _, pullback = tape.vjp(lambda x: (x, x, x * 1.0), np.ones(2))
    assert_close(
        "sum",
        pullback((np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.zeros(2)))[0],
        np.array([11.0, 22.0]),
        EXACT,
    )


@pytest.mark.clause("TAPE-8")
@pytest.mark.parametrize(
    ("cotangent", "message"),
    [
        (
            {"a": np.ones(2), "b": np.ones(3)},
            r"cotangent\['b'\] has shape \(3,\); give the shape of the value, \(2,\)",
        ),
        ({"a": np.ones(2), "b": 1.0}, r"cotangent\['b'\] has shape \(\)"),
        ({"a": np.ones(2)}, r"cotangent\['b'\] is missing; give an array for every leaf, zeros"),
        (
            {"a": np.ones(2), "b": np.ones(2), "c": 1.0},
            r"cotangent\['c'\] belongs to nothing; leave it out",
        ),
        (
            {"a": np.ones(2), "b": [1, 1]},
            r"cotangent\['b'\]\[0\]: 1 of type int has no derivative; write it as a float",
        ),
    ],
)
def test_a_cotangent_that_does_not_fit_the_value_is_named(cotangent: Any, message: str) -> None:
    _, pullback = tape.vjp(lambda x: {"a": x, "b": 2.0 * x}, np.ones(2))
    with pytest.raises(tape.TapeError, match=message):
        pullback(cotangent)


@pytest.mark.clause("TAPE-8")
def test_leaves_are_matched_by_name_and_not_by_order() -> None:
    value = {"a": np.ones(2), "b": np.ones(2)}
    _, pullback = tape.vjp(lambda x: {"a": x, "b": 10.0 * x}, np.ones(2))
    assert_close(
        "vjp",
        pullback({"b": np.array([1.0, 0.0]), "a": np.array([0.0, 1.0])})[0],
        np.array([10.0, 1.0]),
        EXACT,
    )
    product = tape.hvp(lambda p: ops.sum(p["a"] ** 2) + ops.sum(p["b"] ** 3))(
        value, {"b": np.zeros(2), "a": np.ones(2)}
    )
    assert_close("a", product["a"], np.full(2, 2.0), EXACT)
    assert_close("b", product["b"], np.zeros(2), EXACT)


@pytest.mark.clause("TAPE-8")
@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: ops.outer(x, ops.sin(x)), np.array([0.5, -1.0])),
        (lambda x: x @ x, np.array([0.5, -1.0])),
        (lambda x: ops.transpose(x) * x[0], np.array([[0.5], [2.0]])),
        (lambda x: ops.stack([x * x, 2.0 * x]), 0.7),
        (ops.tanh, 0.7),
    ],
)
def test_jacobian_has_the_axes_of_the_value_and_then_those_of_the_argument(
    f: Callable[[Any], Any], x: Any
) -> None:
    units = np.eye(np.size(x)).reshape(-1, *np.shape(x))
    want = np.stack([np.imag(f(x + 1e-30j * unit)) / 1e-30 for unit in units], axis=-1)
    assert_close(
        "jacobian", tape.jacobian(f)(x), want.reshape((*np.shape(f(x)), *np.shape(x))), ANALYTIC
    )


@pytest.mark.clause("TAPE-8")
def test_jacobian_of_jacobian_is_the_hessian_and_hvp_its_product() -> None:
    hessian = tape.jacobian(tape.grad(smooth))(X)
    assert_close("symmetric", hessian, hessian.transpose(2, 3, 0, 1), ANALYTIC)
    assert_close("hvp", tape.hvp(smooth)(X, V), np.tensordot(hessian, V, 2), ANALYTIC)
    assert_close("jacobian twice", tape.jacobian(tape.jacobian(smooth))(X), hessian, ANALYTIC)


@pytest.mark.clause("TAPE-8")
def test_jacobian_of_an_empty_value_is_empty() -> None:
    assert tape.jacobian(lambda x: x[:0])(np.ones(3)).shape == (0, 3)


@pytest.mark.clause("TAPE-8")
def test_jacobian_and_hvp_refuse_what_they_cannot_arrange() -> None:
    with pytest.raises(tape.TapeError, match="the value is a tuple, not one array; use vjp"):
        tape.jacobian(lambda x: (x, x))(np.ones(2))
    with pytest.raises(tape.TapeError, match="x is a dict, not one array; use vjp"):
        tape.jacobian(lambda p: p["a"])({"a": np.ones(2)})
    with pytest.raises(
        tape.TapeError, match=r"direction has shape \(3,\); give the shape of the argument, \(2,\)"
    ):
        tape.hvp(ops.sum)(np.ones(2), np.ones(3))
    with pytest.raises(tape.TapeError, match=r"direction\['a'\] is missing"):
        tape.hvp(lambda p: ops.sum(p["a"]))({"a": np.ones(2)}, {})


def d(f: Callable[[Any], Any], n: int = 1) -> Callable[[Any], Any]:
    return f if n == 0 else tape.grad(d(f, n - 1))


@pytest.mark.clause("TAPE-2")
@pytest.mark.parametrize(
    ("f", "third"),
    [
        (lambda x: x**5, lambda x: 60 * x**2),
        (ops.sin, lambda x: -np.cos(x)),
        (ops.exp, np.exp),
        (lambda x: 1.0 / x, lambda x: -6 / x**4),
        (ops.log, lambda x: 2 / x**3),
        (ops.sqrt, lambda x: 0.375 * x**-2.5),
        (ops.tanh, lambda x: -2 * (1 - np.tanh(x) ** 2) * (1 - 3 * np.tanh(x) ** 2)),
        (lambda x: ops.exp(2.0 * x) * x, lambda x: np.exp(2 * x) * (12 + 8 * x)),
        (lambda x: ops.sum(ops.stack([x, x * x, x]) ** 3), lambda x: 6 + 120 * x**3 + 6),
    ],
)
def test_third_derivatives_are_those_found_by_hand(
    f: Callable[[Any], Any], third: Callable[[Any], Any]
) -> None:
    assert_close("third", d(f, 3)(0.8), third(0.8), ANALYTIC)


@pytest.mark.clause("TAPE-2")
def test_fifth_derivative_of_a_power() -> None:
    assert_close("fifth", d(lambda x: x**7, 5)(1.5), 2520 * 1.5**2, ANALYTIC)


@pytest.mark.clause("TAPE-2")
@pytest.mark.parametrize(
    ("f", "want"),
    [
        (lambda x: x * tape.grad(lambda y: x + y)(1.0), 1.0),
        (lambda x: x * tape.grad(lambda y: x * y * y)(2.0), 24.0),
        (lambda x: tape.grad(lambda y: x * y)(x), 1.0),
        (lambda x: tape.grad(lambda y: y * y * x)(x), 12.0),
        (lambda x: tape.grad(lambda y: tape.grad(lambda z: x * y * z)(y) * y)(x), 12.0),
        (lambda x: tape.grad(lambda y: x)(2.0) + x, 1.0),
        (lambda x: tape.vjp(lambda y: x * y, 2.0)[1](x)[0], 6.0),
        (lambda x: ops.sum(tape.jacobian(lambda y: ops.stack([x * y, y * y]))(x)), 3.0),
        (
            lambda x: ops.sum(tape.hvp(lambda y: ops.sum(y * y * y * x))(np.ones(2), np.ones(2))),
            12.0,
        ),
        (lambda x: tape.value_and_grad(lambda y: x * y)(x)[0], 6.0),
        (lambda x: tape.grad(lambda y: tape.vjp(lambda z: z * z * y * x, x)[1](y)[0])(2.0), 48.0),
    ],
)
def test_levels_are_not_confused_by_captured_variables(
    f: Callable[[Any], Any], want: float
) -> None:
    """A nested derivative at x = 3, with expected numbers by hand."""
    assert_close("gradient", tape.grad(f)(3.0), want, ANALYTIC)


@pytest.mark.clause("TAPE-2")
def test_a_pullback_made_outside_is_differentiated_in_its_cotangent() -> None:
    """The gradient of <P(g), v> in g for the linear P(g) = J^T g: it is J v."""
    _, pullback = tape.vjp(lambda x: ops.tanh(x) * x, X)
    got = tape.grad(lambda g: ops.vdot(pullback(g)[0], V))(X)
    assert_close("J v", got, (np.tanh(X) + X * (1 - np.tanh(X) ** 2)) * V, ANALYTIC)


@pytest.mark.clause("TAPE-2")
def test_a_gradient_step_is_differentiated_in_its_start_and_its_data() -> None:
    """One step w - lr * dL/dw of least squares, and the loss after it, by hand in matrices."""
    A, b, w, lr = X, np.array([0.4, -0.8]), np.array([0.1, 0.2, -0.3]), 0.05
    loss = lambda w, A: ops.sum((A @ w - b) ** 2)  # noqa: E731
    after = lambda w, A: loss(w - lr * tape.grad(loss)(w, A), A)  # noqa: E731
    step = w - lr * 2 * A.T @ (A @ w - b)
    hand = (np.eye(3) - 2 * lr * A.T @ A) @ (2 * A.T @ (A @ step - b))
    assert_close("start", tape.grad(after)(w, A), hand, ANALYTIC)
    check.check_gradient(lambda A: after_by_hand(w, A, b, lr), A)
    assert_close(
        "data",
        tape.grad(after, 1)(w, A),
        check.complex_step(lambda A: after_by_hand(w, A, b, lr), A),
        ANALYTIC,
    )


def after_by_hand(w: Any, A: Any, b: Any, lr: float) -> Any:
    step = w - 2.0 * lr * (A.T @ (A @ w - b))
    return ops.sum((A @ step - b) ** 2)
