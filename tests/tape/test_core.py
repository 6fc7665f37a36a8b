"""The list and the sweep: order, levels, sharing, cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tape
from tape import core, ops, shapes
from tests.support.close import ANALYTIC, EXACT, assert_close


def entries(variable: Any) -> int:
    return len(variable.tape.entries)


@pytest.mark.clause("TAPE-1")
def test_every_op_is_one_entry_and_parents_come_before_it() -> None:
    with core.recording() as tape_:
        x = tape_.variable(np.ones((2, 2)))
        y = ops.tanh(x @ x + 1.0)
        y = ops.concatenate([y, x])[0]
    assert len(tape_.entries) == 6
    assert y.index == 5
    for index, edges in enumerate(tape_.entries):
        for parents, _ in edges:
            assert all(
                p is None or p < index
                for p in (parents if isinstance(parents, tuple) else (parents,))
            )


@pytest.mark.clause("TAPE-3")
def test_plain_arrays_record_nothing_while_a_tape_is_open() -> None:
    with core.recording() as tape_:
        tape_.variable(np.ones(2))
        ops.sum(ops.tanh(np.ones(2)) * 2.0)
    assert len(tape_.entries) == 1


@pytest.mark.clause("TAPE-1")
def test_a_chain_of_20000_ops_needs_no_recursion() -> None:
    def chain(x: Any) -> Any:
        for _ in range(20_000):
            x = x * 1.0001
        return x

    assert_close("gradient", tape.grad(chain)(1.0), chain(1.0), ANALYTIC)


@pytest.mark.clause("TAPE-7")
def test_a_variable_used_many_times_receives_the_sum() -> None:
    assert_close(
        "x + ... + x", tape.grad(lambda x: sum((x for _ in range(999)), x))(2.0), 1000.0, EXACT
    )
    assert_close("x * x * x + x", tape.grad(lambda x: x * x * x + x)(3.0), 28.0, EXACT)
    x = np.arange(4.0)
    assert_close("same operand twice", tape.grad(lambda x: x @ x)(x), 2 * x, EXACT)
    assert_close(
        "joined with itself",
        tape.grad(lambda x: ops.sum(ops.stack([x, 2.0 * x, x])))(x),
        np.full(4, 4.0),
        EXACT,
    )


@pytest.mark.clause("TAPE-7")
def test_contributions_are_added_in_the_reverse_order_of_the_records() -> None:
    """The order of additions as it shows in the bits, also under an outer tape.

    (-1e16 + 1e16) + 1 is 1 and (1 + 1e16) - 1e16 is 0.
    """
    small, large = np.array([1.0]), np.array([1e16])

    def by_product(x: Any) -> Any:
        return x * small + (x * large + x * -large)

    def by_index(x: Any) -> Any:
        return x[0] * small + (x[0] * large + x[0] * -large)

    def mixed(x: Any) -> Any:
        return x[:] * small + (x * large + x[np.array([0])] * -large)

    for f in (by_product, by_index, mixed):
        assert tape.grad(lambda x, f=f: ops.sum(f(x)))(np.ones(1)) == 1.0
        assert (
            tape.vjp(lambda y, f=f: tape.grad(lambda x: ops.sum(f(x) * y))(np.ones(1)), np.ones(1))[
                0
            ]
            == 1.0
        )


@pytest.mark.clause("TAPE-7")
def test_plain_and_recorded_cotangents_of_one_array_keep_their_order() -> None:
    """The sum of -1e16, 1e16 y and 1, of which only the second is a variable of the outer tape.

    It is added second all the same.
    """

    def inner(y: Any) -> Any:
        return tape.grad(lambda x: x[0] * 1.0 + (x[0] * 1e16 * y + x[0] * -1e16))(np.ones(1))

    assert tape.vjp(inner, 1.0)[0] == 1.0


@pytest.mark.clause("TAPE-7")
def test_what_the_result_does_not_depend_on_receives_zeros_in_its_dtype() -> None:
    gradients = tape.grad(lambda p: p["a"] * 2.0)(
        {"a": 1.0, "b": np.ones((2, 3), np.float32), "c": 3.0, "d": np.ones(2) + 1j}
    )
    assert_close("b", gradients["b"], np.zeros((2, 3), np.float32), EXACT)
    assert_close("d", gradients["d"], np.zeros(2, complex), EXACT)
    assert gradients["c"] == 0.0


@pytest.mark.clause("TAPE-7")
def test_a_constant_result_has_gradient_zero() -> None:
    assert tape.grad(lambda x: 3.0)(2.0) == 0.0
    assert tape.hvp(lambda x: ops.sum(3.0 * x))(np.ones(2), np.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.clause("TAPE-21")
@pytest.mark.parametrize("T", [50, 400])
def test_a_loop_over_x_t_scatters_into_one_buffer(T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_scatters(monkeypatch)
    x = np.random.default_rng(0).standard_normal((T, 3))
    gradient = tape.grad(lambda x: loop_over_rows(x, T) + ops.sum(x))(x)
    assert made == [1]
    assert_close("gradient", gradient, np.cos(x) * x + np.sin(x) + 1.0, ANALYTIC)


@pytest.mark.clause("TAPE-21")
def test_a_loop_over_x_t_is_linear_in_entries_and_memory_under_a_second_derivative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, peaks, counts = count_scatters(monkeypatch), [], []
    for T in (100, 400):
        x = np.random.default_rng(0).standard_normal((T, 50))

        def slope(x: Any, T: int = T) -> Any:
            gradient = tape.grad(lambda x: loop_over_rows(x, T))(x)
            counts.append(entries(gradient))
            return ops.sum(gradient * gradient)

        made[0] = 0
        tracemalloc.start()
        second = tape.grad(slope)(x)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        first = np.cos(x) * x + np.sin(x)
        assert_close("gradient", second, 2 * first * (2 * np.cos(x) - np.sin(x) * x), ANALYTIC)
        assert made[0] <= 3
    assert counts[1] <= 4.1 * counts[0]
    assert peaks[1] <= 5 * peaks[0]


def loop_over_rows(x: Any, T: int) -> Any:
    total = 0.0
    for t in range(T):
        total = total + ops.sum(ops.sin(x[t]) * x[t])
    return total


def count_scatters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made, scatter = [0], shapes._scatter.function

    def counting(*args: Any, **settings: Any) -> Any:
        made[0] += 1
        return scatter(*args, **settings)

    monkeypatch.setattr(shapes._scatter, "function", counting)
    return made


@pytest.mark.clause("TAPE-7")
def test_indexed_and_whole_uses_of_one_array_mix_in_any_order() -> None:
    x, v = np.arange(1.0, 5.0), np.array([1.0, -2.0, 0.5, 3.0])
    uses: list[Callable[[Any], Any]] = [
        lambda x: x[1] * x[2],
        lambda x: ops.sum(x * x),
        lambda x: ops.sum(x[::2] * x[np.array([0, 0])]),
        lambda x: x @ x * x[0],
        lambda x: ops.sum(ops.tanh(x[None, :])),
    ]
    for turn in range(len(uses)):
        order = uses[turn:] + uses[:turn]
        tape.check.check_gradient(lambda x, order=order: sum(f(x) for f in order), x)
        tape.check.check_second(lambda x, order=order: sum(f(x) for f in order), x, v)


@pytest.mark.clause("TAPE-7")
def test_an_array_without_axes_may_be_indexed_and_used_whole() -> None:
    f = lambda x: ops.sum(x[None]) + x * 2.0 + ops.sum(x[None]) * x + x[()]  # noqa: E731
    assert tape.grad(lambda x: f(ops.sum(x)))(np.array([1.5])) == 1 + 2 + 3 + 1


@pytest.mark.clause("TAPE-7")
def test_a_scatter_widens_its_buffer_for_a_wider_cotangent() -> None:
    x, narrow, wide = np.ones(2, np.float32), lambda x: x[0] * 1.0, lambda x: x[0] * (1.0 + 1j)
    for f in (lambda x: (narrow(x), wide(x)), lambda x: (wide(x), narrow(x))):
        gradient = tape.vjp(f, x)[1]((np.float32(1.0), np.float32(1.0)))[0]
        assert_close("complex", gradient, np.array([2.0 + 1j, 0.0], np.complex64), EXACT)


@pytest.mark.clause("TAPE-7")
def test_the_sweep_never_writes_into_the_callers_cotangent() -> None:
    cotangent = np.ones(3)
    _, pullback = tape.vjp(lambda x: x + 0.0 * x[0] + x[1], np.arange(3.0))
    first = pullback(cotangent)[0]
    assert_close("cotangent", cotangent, np.ones(3), EXACT)
    assert_close("again", pullback(cotangent)[0], first, EXACT)
    for gradient in tape.vjp(lambda a, b: a + b, np.ones(3), np.ones(3))[1](cotangent):
        gradient *= 5.0
    assert_close("after writing into gradients", cotangent, np.ones(3), EXACT)
