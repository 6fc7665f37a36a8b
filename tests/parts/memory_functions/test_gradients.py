"""Derivatives of memory functions: the complex step, the tape's gradient, and those of the hand
gradient itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from atlas_ref.parts import memory_functions
from atlas_ref.parts.memory_functions import MemoryFunction, mlp_matrices, tensors
from tape import check, ops
from tape.shapes import unbroadcast
from tests.support.close import ANALYTIC, EXACT, FINITE_DIFFERENCE, assert_close
from tests.support.counting import counted, multiply_adds
from tests.support.memory_functions import FUNCTIONS, LEADING, Drawn, drawn

#: Those without an error function, which CuPy does not have of complex arrays.
ANALYTIC_FUNCTIONS = [
    name
    for name, function in FUNCTIONS.items()
    if function.activation != "gelu" or function.kind == "linear" or function.depth == 1
]
ERF_FUNCTIONS = [name for name in FUNCTIONS if name not in ANALYTIC_FUNCTIONS]
LAYOUTS = ["shared", "mixed", "no axis of x"]
on_host = pytest.mark.host("the error function of complex arrays is SciPy's alone")

#: Settings for a look at the products of each stage.
GATED = MemoryFunction(kind="polynomial", key_width=3, expansion=2, gated=True, compress=5)


def loss(function: MemoryFunction, gy: Any) -> Callable[[Any], Any]:
    """sum gy M(x), as a function of (params, x)."""
    return lambda at: ops.sum(memory_functions.apply(function, at[0], at[1]) * gy)


def by_hand(function: MemoryFunction, at: Any, gy: Any) -> Any:
    """The hand gradient of that loss, summed over the rows that share a parameter."""
    by_name, gx = memory_functions.gradient(function, at[0], at[1], gy)
    own = {name: unbroadcast(g, at[0][name].shape) for name, g in by_name.items()}
    return own, unbroadcast(gx, at[1].shape)


def compare(got: Any, want: Any) -> None:
    for name in want[0]:
        assert_close(name, got[0][name], want[0][name], ANALYTIC)
    assert_close("x", got[1], want[1], ANALYTIC)


@pytest.mark.clause("MEMFUN-3", "MEMFUN-6")
@pytest.mark.parametrize("leading", LEADING)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_hand_gradient_is_the_tapes(name: str, leading: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, leading)
    compare(by_hand(function, (params, x), gy), tape.grad(loss(function, gy))((params, x)))


def complex_step(name: str, leading: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, leading, d_in=3, n=2)
    want = check.complex_step(loss(function, gy), (params, x))
    compare(by_hand(function, (params, x), gy), want)
    compare(tape.grad(loss(function, gy))((params, x)), want)


@pytest.mark.clause("MEMFUN-5", "MEMFUN-6")
@pytest.mark.parametrize("leading", LAYOUTS)
@pytest.mark.parametrize("name", ANALYTIC_FUNCTIONS)
def test_both_gradients_are_the_complex_step(name: str, leading: str) -> None:
    complex_step(name, leading)


@on_host
@pytest.mark.clause("MEMFUN-5", "MEMFUN-6")
@pytest.mark.parametrize("leading", LAYOUTS)
@pytest.mark.parametrize("name", ERF_FUNCTIONS)
def test_both_gradients_are_the_complex_step_of_the_error_function(name: str, leading: str) -> None:
    complex_step(name, leading)


@pytest.mark.clause("MEMFUN-5", "MEMFUN-6")
@pytest.mark.parametrize("name", ERF_FUNCTIONS)
def test_the_hand_gradient_of_the_error_function_is_its_difference(name: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, d_in=3, n=2)
    want = check.central_difference(loss(function, gy), (params, x))
    got = by_hand(function, (params, x), gy)
    for each, gradient in want[0].items():
        assert_close(each, got[0][each], gradient, FINITE_DIFFERENCE)
    assert_close("x", got[1], want[1], FINITE_DIFFERENCE)


def direction(drawn_at: Drawn) -> tuple[Any, Any]:
    draw = np.random.default_rng(9)
    along = {name: draw.standard_normal(array.shape) for name, array in drawn_at.params.items()}
    return along, draw.standard_normal(drawn_at.x.shape)


def moved(at: Any, along: Any, step: complex) -> Any:
    return (
        {name: array + step * along[0][name] for name, array in at[0].items()},
        at[1] + step * along[1],
    )


def second_derivative(name: str, leading: str) -> None:
    function = FUNCTIONS[name]
    given = drawn(function, leading)
    at, along, gy = (given.params, given.x), direction(given), given.gy
    stepped = by_hand(function, moved(at, along, 1e-40j), gy)
    want = (
        {each: np.imag(g) / 1e-40 for each, g in stepped[0].items()},
        np.imag(stepped[1]) / 1e-40,
    )
    compare(tape.hvp(loss(function, gy))(at, along), want)

    def slope(at: Any) -> Any:
        own, gx = by_hand(function, at, gy)
        return sum((ops.sum(g * along[0][each]) for each, g in own.items()), ops.sum(gx * along[1]))

    compare(tape.grad(slope)(at), want)  # the Hessian is symmetric


@pytest.mark.clause("MEMFUN-6")
@pytest.mark.parametrize("leading", LAYOUTS)
@pytest.mark.parametrize("name", ANALYTIC_FUNCTIONS)
def test_the_directional_derivative_of_the_hand_gradient_is_the_hessians_product(
    name: str, leading: str
) -> None:
    second_derivative(name, leading)


@on_host
@pytest.mark.clause("MEMFUN-6")
@pytest.mark.parametrize("leading", LAYOUTS)
@pytest.mark.parametrize("name", ERF_FUNCTIONS)
def test_the_hand_gradient_of_the_error_function_has_a_derivative_too(
    name: str, leading: str
) -> None:
    second_derivative(name, leading)


@pytest.mark.clause("MEMFUN-6")
@pytest.mark.parametrize("name", ["swiglu", "mlp 3 silu", "geglu"])
def test_the_cotangent_gy_has_a_derivative_too(name: str) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, "mixed")
    along = direction(Drawn(params, x, gy))

    def slope(gy: Any) -> Any:
        by_name, gx = memory_functions.gradient(function, params, x, gy)
        total = ops.sum(gx * along[1])
        for each, g in by_name.items():
            total = total + ops.sum(unbroadcast(g, params[each].shape) * along[0][each])
        return total

    # <gradient(gy), v> = <gy, J v>, so its derivative by gy is J v
    above, below = (
        memory_functions.apply(function, *moved((params, x), along, step)) for step in (5e-7, -5e-7)
    )
    assert_close("gy", tape.grad(slope)(gy), (above - below) / 1e-6, FINITE_DIFFERENCE)


# -- what is asked for -----------------------------------------------------------------------------


@pytest.mark.clause("MEMFUN-6")
@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_part_of_the_gradient_has_the_bits_of_the_whole(name: str, needs_input: bool) -> None:
    function = FUNCTIONS[name]
    params, x, gy = drawn(function, "mixed")
    whole, of_x = memory_functions.gradient(function, params, x, gy)
    parts: list[tuple[str, ...]] = [(), *[(each,) for each in whole], mlp_matrices(function)]
    for part in parts:
        by_name, gx = memory_functions.gradient(
            function, params, x, gy, names=part, needs_input=needs_input
        )
        assert list(by_name) == list(part)
        for each, gradient in by_name.items():
            assert_close(each, gradient, whole[each], EXACT)
        if needs_input:
            assert_close("x", gx, of_x, EXACT)
        else:
            assert gx is None


@pytest.mark.host("counts products of NumPy")
@pytest.mark.clause("MEMFUN-6")
def test_what_is_not_asked_for_costs_no_product() -> None:
    given = drawn(GATED, n=7)
    tokens = given.x.size // given.x.shape[-1]
    size = {
        name: tokens * int(np.prod(shape))
        for name, shape in tensors(GATED, 4, 4).items()
        if len(shape) == 2
    }
    params = {name: counted(array) for name, array in given.params.items()}

    def cost(*names: str, needs_input: bool = False) -> int:
        return multiply_adds(
            lambda: memory_functions.gradient(
                GATED, params, counted(given.x), given.gy, names=names, needs_input=needs_input
            )
        )

    forward = sum(size.values())
    assert cost() == cost("read_scale") == cost("read_norm/gain", "read_norm/bias") == forward
    assert cost("W_up") == forward + size["W_up"]
    above = forward + size["W_up"]  # the cotangent of o
    assert cost("W_out") == above + size["W_out"]
    above += size["W_out"]  # of s
    assert cost("W_value") == above + size["W_value"]
    of_mlp = sum(size[name] for name in ("W_in", "W_value", "W_out"))
    assert cost(*mlp_matrices(GATED)) == above + of_mlp
    above += size["W_in"] + size["W_value"]  # of the compressed features
    assert cost("W_compress") == above + size["W_compress"]
    above += size["W_compress"]  # of the normed features
    assert cost("feature_norm/gain") == cost("feature_norm/bias") == above
    above += tokens * 3 * 3  # of z, through the pairs
    assert cost("W_down") == above + size["W_down"]
    assert cost(needs_input=True) == above + size["W_down"]
    assert cost(*params, needs_input=True) == 3 * forward + tokens * 3 * 3


@pytest.mark.clause("MEMFUN-6")
def test_an_unknown_name_is_refused() -> None:
    function = FUNCTIONS["gelu"]
    given = drawn(function)
    with pytest.raises(
        ValueError, match=r"^names: 'W_value' is no parameter of kind polynomial: W_down, feature"
    ):
        memory_functions.gradient(function, *given, names=("W_in", "W_value"))


@pytest.mark.clause("MEMFUN-3", "MEMFUN-6")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_stays_float32(name: str) -> None:
    function = FUNCTIONS[name]
    given = drawn(function, "mixed")
    params = {each: array.astype(np.float32) for each, array in given.params.items()}
    x, gy = given.x.astype(np.float32), given.gy.astype(np.float32)
    by_name, gx = memory_functions.gradient(function, params, x, gy)
    for each, value in memory_functions.pieces(function, params, x).items():
        assert value.dtype == np.float32, each
    want, of_x = memory_functions.gradient(function, *given)
    for each, got, exact in [("x", gx, of_x), *[(e, g, want[e]) for e, g in by_name.items()]]:
        assert got.dtype == np.float32, each
        assert np.linalg.norm(got - exact) <= 2e-5 * np.linalg.norm(exact), each


@pytest.mark.clause("MEMFUN-6", "MEMFUN-11")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_from_a_forward_pass_is_the_one_that_computes_its_own(name: str) -> None:
    function, given = FUNCTIONS[name], drawn(FUNCTIONS[name])
    value = memory_functions.forward(function, given.params, given.x)
    assert_close("y", value.y, memory_functions.apply(function, given.params, given.x), EXACT)
    found, gx = memory_functions.gradient(function, given.params, given.x, given.gy, of=value)
    want, of_x = memory_functions.gradient(function, given.params, given.x, given.gy)
    assert_close("x", gx, of_x, EXACT)
    for each, cotangent in want.items():
        assert_close(each, found[each], cotangent, EXACT)
