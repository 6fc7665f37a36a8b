"""The function checkpoint: the same value and derivatives, one entry, less memory, no lost
gradient.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tape
from tape import check, ops
from tests.support.close import ANALYTIC, EXACT, assert_close

X = np.random.default_rng(1).standard_normal((3, 3))
W = np.random.default_rng(2).standard_normal((3, 3))
CAPTURED = "captured a tape variable; pass it as an argument"


def step(x: Any, w: Any) -> Any:
    return ops.tanh(x @ w) + x * x[0]


def through(x: Any, w: Any, wrap: Any) -> Any:
    f = wrap(step)
    return ops.sum(f(f(x, w), ops.transpose(w)) * w)


def unwrapped(f: Any) -> Any:
    return f


def nested_twice(f: Any) -> Any:
    return tape.checkpoint(lambda *args: tape.checkpoint(f)(*args) * 1.0)


@pytest.mark.clause("TAPE-10")
@pytest.mark.parametrize("wrap", [tape.checkpoint, nested_twice], ids=["once", "nested"])
def test_checkpoint_equals_the_function_in_value_gradient_and_second_derivative(wrap: Any) -> None:
    assert_close("plain", through(X, W, wrap), through(X, W, unwrapped), EXACT)
    for argnum in (0, 1):
        value, gradient = tape.value_and_grad(through, argnum)(X, W, wrap)
        value_want, gradient_want = tape.value_and_grad(through, argnum)(X, W, unwrapped)
        assert_close("value", value, value_want, EXACT)
        assert_close("gradient", gradient, gradient_want, ANALYTIC)
    check.check_gradient(lambda p: through(*p, wrap), (X, W))
    check.check_second(lambda p: through(*p, wrap), (X, W), (W, X))


@pytest.mark.clause("TAPE-10")
def test_third_derivative_through_a_checkpoint() -> None:
    cube = tape.checkpoint(lambda x: x * x * x)
    assert tape.grad(tape.grad(tape.grad(cube)))(2.0) == 6.0


@pytest.mark.clause("TAPE-10")
def test_checkpoint_takes_nested_parameters_and_several_levels_of_arguments() -> None:
    f = tape.checkpoint(lambda p, y: ops.sum(p["a"] * p["b"][0] * y))
    p = {"a": X, "b": [W]}
    gradient = tape.grad(lambda p: tape.grad(lambda y: f(p, y) * y)(2.0))(p)
    assert_close("a", gradient["a"], 4.0 * W, ANALYTIC)
    assert_close("b", gradient["b"][0], 4.0 * X, ANALYTIC)


@pytest.mark.clause("TAPE-10")
def test_an_argument_that_is_not_used_receives_zeros() -> None:
    gradient = tape.grad(lambda p: ops.sum(tape.checkpoint(lambda a, b: a * 2.0)(*p)))((X, W))
    assert_close("unused", gradient[1], np.zeros((3, 3)), EXACT)


@pytest.mark.clause("TAPE-10")
def test_a_gradient_may_be_taken_inside_a_checkpoint() -> None:
    f = tape.checkpoint(lambda x: tape.grad(lambda y: ops.sum(y * y * x))(x))
    assert_close("gradient", tape.grad(lambda x: ops.sum(f(x)))(X), 4.0 * X, ANALYTIC)


@pytest.mark.clause("TAPE-10")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: tape.checkpoint(lambda y: ops.sum(y * x))(x),
        lambda x: tape.checkpoint(lambda y: ops.sum(y * x))(np.ones(2)),
        lambda x: tape.checkpoint(lambda y: x)(x),
        lambda x: tape.checkpoint(lambda y: ops.sum(tape.grad(lambda z: ops.sum(z * x))(y)))(
            np.ones(2)
        ),
        lambda x: tape.grad(lambda y: tape.checkpoint(lambda z: ops.sum(z * x))(y))(np.ones(2))[0],
        lambda x: tape.grad(lambda y: tape.checkpoint(lambda z: ops.sum(z * y))(x))(np.ones(2))[0],
        lambda x: tape.checkpoint(lambda y: tape.checkpoint(lambda z: ops.sum(z * y))(y))(x),
        lambda x: ops.sum(
            tape.checkpoint(
                lambda y: tape.opaque(lambda a: a * x, lambda a: (a * x, a), lambda r, g: (g,))(y)
            )(x)
        ),
    ],
    ids=[
        "used",
        "with plain arguments",
        "returned",
        "inner gradient",
        "outer level",
        "inner level",
        "nested",
        "opaque",
    ],
)
def test_a_captured_variable_of_any_level_raises(f: Any) -> None:
    with pytest.raises(tape.TapeError, match=CAPTURED):
        tape.grad(f)(np.ones(2))


@pytest.mark.clause("TAPE-10")
def test_the_refusal_names_the_op_that_used_the_captured_variable() -> None:
    with pytest.raises(tape.TapeError, match=r"ops\.matmul: checkpoint: the function " + CAPTURED):
        tape.grad(lambda x: ops.sum(tape.checkpoint(lambda y: ops.tanh(y @ x) * 2.0)(x)))(X)


@pytest.mark.clause("TAPE-10")
def test_recording_goes_on_after_a_refusal() -> None:
    def f(x: Any) -> Any:
        with pytest.raises(tape.TapeError, match=CAPTURED):
            tape.checkpoint(lambda y: y * x)(x)
        return ops.sum(x * x)

    assert_close("gradient", tape.grad(f)(X), 2 * X, EXACT)


@pytest.mark.clause("TAPE-10")
def test_a_result_of_several_arrays_says_what_to_return() -> None:
    with pytest.raises(
        tape.TapeError, match=r"returned tuple; return one array, joined by ops\.concatenate"
    ):
        tape.grad(lambda x: tape.checkpoint(lambda y: (y, y))(x)[0])(1.0)


def deep(x: Any, blocks: int, length: int, wrap: Any, lengths: list[int]) -> Any:
    def block(x: Any) -> Any:
        for _ in range(length):
            x = ops.sin(x) * 1.01
        if isinstance(x, tape.Variable):
            lengths.append(len(x.tape.entries))
        return x

    for _ in range(blocks):
        x = wrap(block)(x)
    if isinstance(x, tape.Variable):
        lengths.append(len(x.tape.entries))
    return ops.sum(x)


@pytest.mark.clause("TAPE-10", "TAPE-21")
def test_a_checkpoint_is_one_entry_and_its_inside_is_on_the_list_only_while_it_is_swept() -> None:
    lengths: list[int] = []
    tape.grad(lambda x: deep(x, 10, 20, tape.checkpoint, lengths))(np.ones(2))
    assert lengths == [11, *[41] * 10]
    lengths.clear()
    tape.grad(lambda x: deep(x, 10, 20, unwrapped, lengths))(np.ones(2))
    assert max(lengths) == 401


@pytest.mark.clause("TAPE-21")
def test_memory_of_checkpointed_blocks_is_that_of_one_block() -> None:
    x, peaks = np.ones(10_000), []
    for wrap in (unwrapped, tape.checkpoint):
        tracemalloc.start()
        tape.grad(lambda x, wrap=wrap: deep(x, 10, 20, wrap, []))(x)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 0.3 * peaks[0]
