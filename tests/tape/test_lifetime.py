"""The life of a tape: memory set free, refusals afterwards, checking mode, threads."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import tape
from tape import core, nested, ops
from tests.support.close import ANALYTIC, EXACT, assert_close


class Pair(BaseModel):
    """A model with two parts."""

    y: Any
    z: Any


FOUR = np.arange(1.0, 17.0).reshape(4, 4)


@pytest.mark.clause("TAPE-21")
def test_a_differentiation_frees_its_arrays_without_the_garbage_collector() -> None:
    alive: list[weakref.ref[Any]] = []

    def f(x: Any) -> Any:
        y = ops.tanh(x)
        alive.append(weakref.ref(y.value))
        return ops.sum(y * y)

    gc.disable()
    try:
        tape.grad(f)(np.ones(5))
        assert alive[0]() is None
    finally:
        gc.enable()


@pytest.mark.clause("TAPE-21")
@pytest.mark.parametrize("nest", [dict, tuple, list, "model"])
def test_a_checkpoint_of_a_nest_frees_its_arrays_likewise(nest: Any) -> None:
    """What puts leaves back into a nest keeps the nest's kind, and not its first leaves."""
    alive: list[weakref.ref[Any]] = []
    of_two = {
        dict: lambda y: {"y": y, "z": (y,)},
        tuple: lambda y: (y, [y]),
        list: lambda y: [y, {"z": y}],
        "model": lambda y: Pair(y=y, z={"z": y}),
    }[nest]
    inside = tape.checkpoint(lambda tree: ops.sum(ops.tanh(nested.flatten(tree)[0][0])))

    def f(x: Any) -> Any:
        y = x * 2.0
        alive.append(weakref.ref(y.value))
        return inside(of_two(y))

    gc.disable()
    try:
        tape.grad(f)(np.ones(5))
        assert alive[0]() is None
    finally:
        gc.enable()


@pytest.mark.clause("TAPE-21")
def test_an_op_that_was_made_for_one_call_goes_with_it() -> None:
    held = np.ones(5)
    alive = weakref.ref(held)
    op = core.primitive(lambda x, held=held: x * held, "scaled")
    core.defvjp(op, lambda value, x: lambda g: g)
    gc.disable()
    try:
        del held, op
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.clause("TAPE-21")
def test_the_sweep_lets_go_of_a_cotangent_when_it_has_been_pulled_back() -> None:
    """A long chain of ops that keep nothing, in a few arrays forward and backward."""
    x = np.ones(10_000)

    def chain(x: Any) -> Any:
        for _ in range(100):
            x = x * 1.01
        return ops.sum(x)

    tracemalloc.start()
    tape.grad(chain)(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * x.nbytes


@pytest.mark.clause("TAPE-4")
@pytest.mark.parametrize(
    "op",
    [
        lambda z: z + 1.0,
        lambda z: 1.0 - z,
        lambda z: -z,
        lambda z: z * FOUR,
        lambda z: z / FOUR,
        lambda z: z @ FOUR,
        lambda z: FOUR @ z,
        lambda z: FOUR[0] @ z,
        lambda z: z @ FOUR[0],
        lambda z: ops.where(FOUR > 0, z, 1.0),
        lambda z: ops.maximum(0.0, z),
        ops.mean,
        ops.transpose,
        ops.cumsum,
        ops.tril,
        lambda z: ops.reshape(z, (16,)) * 1.0,
        lambda z: ops.broadcast_to(z, (2, 4, 4)) * 1.0,
        lambda z: ops.squeeze(ops.expand_dims(z, 0)) * 1.0,
        lambda z: ops.astype(z, np.float32),
        lambda z: z[1:, [0, 0]] * z[0, 1],
        lambda z: ops.concatenate([z, FOUR]),
        lambda z: ops.stack([z, FOUR]),
        lambda z: ops.slide(z, FOUR[0]),
        lambda z: ops.slide(FOUR, z[0]),
        lambda z: ops.solve_triangular(np.eye(4), z),
    ],
)
def test_a_linear_op_does_not_keep_its_argument(op: Callable[[Any], Any]) -> None:
    """A rule whose outer stage uses the shape and lets the array go."""

    def f(x: Any) -> Any:
        z = x * 2.0
        alive = weakref.ref(z.value)
        y = op(z) * 1.0
        del z
        assert alive() is None
        return ops.sum(y)

    tape.grad(f)(FOUR)


@pytest.mark.clause("TAPE-18")
def test_a_variable_used_after_its_differentiation_is_refused() -> None:
    kept: list[Any] = []
    tape.grad(lambda x: kept.append(x) or ops.sum(x))(np.ones(2))
    for use in (
        lambda: kept[0] * 2.0,
        lambda: ops.exp(kept[0]),
        lambda: tape.grad(lambda y: ops.sum(y * kept[0]))(np.ones(2)),
        lambda: tape.grad(lambda y: kept[0][0])(1.0),
    ):
        with pytest.raises(tape.TapeError, match=r"left the function.*return what you need"):
            use()
    with pytest.raises(tape.TapeError, match=r"left the function.*return it from there"):
        tape.vjp(lambda y: (y, kept[0]), 1.0)


@pytest.mark.clause("TAPE-18")
def test_the_pullback_of_a_finished_tape_may_be_used_any_number_of_times() -> None:
    _, pullback = tape.vjp(ops.square, np.arange(3.0))
    for scale in (1.0, 2.0, -1.0):
        assert_close("cotangent", pullback(np.full(3, scale))[0], 2 * scale * np.arange(3.0), EXACT)


@pytest.mark.clause("TAPE-18")
def test_an_exception_inside_leaves_no_tape_open() -> None:
    def fails(x: Any) -> Any:
        tape.grad(lambda y: y * x)(1.0)
        raise KeyError("inside")

    for f in (tape.grad(fails), tape.checkpoint(fails), tape.grad(tape.checkpoint(fails))):
        with pytest.raises(KeyError, match="inside"):
            f(2.0)
        assert core._open.tapes == []
    with core.recording() as tape_:
        assert tape_.level == 1


@pytest.mark.clause("TAPE-12")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("argument", r"ops\.matmul: argument 1, shape \(2, 2\)"),
        ("result", r"ops\.matmul: the result"),
        ("value", r"ops\.exp: the result, shape \(2,\)"),
        ("key", r"ops\.index: argument 1, shape \(2,\)"),
    ],
)
def test_checking_mode_names_the_array_that_changed(change: str, named: str) -> None:
    w, key = np.ones((2, 2)), np.array([0, 1])

    def f(x: Any) -> Any:
        y = ops.exp((x @ w)[key, 0])
        if change == "argument":
            w[0, 0] = 5.0
        if change == "key":
            key[0] = 1
        if change == "value":
            y.value[0] = 3.0
        if change == "result":
            (x @ w).value[0] = 9.0
        return ops.sum(y)

    with tape.checking(), pytest.raises(tape.TapeError, match=named + ".*pass a copy"):
        tape.grad(f)(np.ones((2, 2)))


@pytest.mark.clause("TAPE-12")
def test_checking_mode_says_nothing_of_arrays_that_stay_and_ends_with_its_block() -> None:
    w = np.ones(2)
    with tape.checking():
        assert_close(
            "nested",
            tape.hvp(lambda x: ops.sum(w * x[0] * x * x))(np.ones(2), np.ones(2)),
            np.array([8.0, 4.0]),
            EXACT,
        )
        _, pullback = tape.vjp(lambda x: x * w, np.ones(2))
    w[0] = 7.0
    with pytest.raises(tape.TapeError, match=r"ops\.multiply: argument 1"):
        pullback(np.ones(2))
    _, unchecked = tape.vjp(lambda x: x * w, np.ones(2))
    w[0] = 8.0
    assert unchecked(np.ones(2))[0][0] == 8.0


def in_threads(*work: Callable[[], None]) -> list[BaseException]:
    failures: list[BaseException] = []

    def run(f: Callable[[], None]) -> None:
        try:
            f()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(f,)) for f in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.clause("TAPE-2")
def test_two_threads_differentiate_at_once() -> None:
    meet, found = threading.Barrier(2, timeout=10), {}

    def work(scale: float) -> None:
        def f(x: Any) -> Any:
            for _ in range(50):
                meet.wait()
                x = ops.sin(x) * scale
            return tape.grad(lambda y: y * y * x)(scale)

        found[scale] = tape.grad(f)(0.5)

    assert in_threads(lambda: work(1.1), lambda: work(0.9)) == []
    for scale, gradient in found.items():
        f = lambda x, scale=scale: 2 * scale * iterate(x, scale)  # noqa: E731
        assert_close("gradient", gradient, np.imag(f(0.5 + 1e-30j)) / 1e-30, ANALYTIC)


def iterate(x: complex, scale: float) -> complex:
    for _ in range(50):
        x = np.sin(x) * scale
    return x


@pytest.mark.clause("TAPE-2")
def test_a_variable_of_another_thread_is_refused() -> None:
    def f(x: Any) -> Any:
        for use in (
            lambda: x * 2.0,
            lambda: -x,
            lambda: ops.sum(x),
            lambda: tape.grad(lambda y: y * x)(1.0),
            lambda: tape.grad(lambda y: x * y)(1.0),
        ):
            (failure,) = in_threads(use)
            assert isinstance(failure, tape.TapeError)
            assert "another thread; open the differentiation in that thread" in str(failure)
        return x * 1.0

    assert tape.grad(f)(2.0) == 1.0
