"""Parts in threads: their order, their context, their errors, and processes that fork."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from atlas_ref.backend import threads


def test_results_come_in_order_and_the_first_part_stays_in_the_calling_thread() -> None:
    found = threads.in_threads([lambda i=i: (i, threading.get_ident()) for i in range(5)])
    assert [i for i, _ in found] == list(range(5))
    assert found[0][1] == threading.get_ident()
    assert all(thread != threading.get_ident() for _, thread in found[1:])


def test_every_part_works_under_the_callers_floating_point_errors() -> None:
    def overflow() -> Any:
        return np.array([1e308]) * 10.0

    with np.errstate(over="ignore"):
        assert all(np.isinf(value) for value in threads.in_threads([overflow] * 3))
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        threads.in_threads([lambda: None, overflow])


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_of_one_part_is_raised_after_all_parts_have_ended(failing: int) -> None:
    ended: list[int] = []

    def part(i: int) -> None:
        if i == failing:
            raise KeyError(i)
        time.sleep(0.02)
        ended.append(i)

    with pytest.raises(KeyError):
        threads.in_threads([lambda i=i: part(i) for i in range(3)])
    assert sorted(ended) == [i for i in range(3) if i != failing]


def test_parts_inside_a_part_have_one_processor() -> None:
    assert threads.in_threads([threads.processors, threads.processors]) == [1, 1]
    assert threads.processors() >= 1


def test_one_part_alone_has_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert threads.in_threads([threads.processors]) == [3]


def _forked(answers: Any) -> None:
    answers.put(threads.in_threads([lambda: 1, lambda: 2]))


@pytest.mark.filterwarnings("ignore:.*fork")  # of JAX, where another test loaded it
def test_a_forked_process_has_threads_of_its_own() -> None:
    threads.in_threads([lambda: None, lambda: None])
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_forked, args=(answers,))
    child.start()
    assert answers.get(timeout=30) == [1, 2]
    child.join(30)
    assert child.exitcode == 0


def blas_threads() -> list[int]:
    return [library.get_num_threads() for library in threads._blas()]


def forked() -> list[int]:
    """The BLAS's threads in a child that is forked inside of a part."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(blas_threads)


@pytest.mark.filterwarnings("ignore:.*fork")  # of JAX, where another test loaded it
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_has_the_threads_of_its_blas_back() -> None:
    before = blas_threads()
    for library in threads._blas():
        library.set_num_threads(2)
    try:
        assert threads.in_threads([forked, blas_threads]) == [[2] * len(before), [1] * len(before)]
    finally:
        for library, count in zip(threads._blas(), before, strict=True):
            library.set_num_threads(count)


def fails() -> list[int]:
    raise ArithmeticError


def test_the_blas_has_one_thread_while_parts_have_theirs() -> None:
    """The BLAS's threads during and after parts in threads.

    The old number comes back when the parts are done, also where one failed; a single part changes
    nothing.
    """
    before = blas_threads()
    for library in threads._blas():
        library.set_num_threads(2)
    try:
        assert threads.in_threads([blas_threads, blas_threads]) == [[1] * len(before)] * 2
        assert blas_threads() == [2] * len(before)
        with pytest.raises(ArithmeticError):
            threads.in_threads([blas_threads, fails])
        assert blas_threads() == [2] * len(before)
        assert threads.in_threads([blas_threads]) == [[2] * len(before)]
        with threads.one_for_products():
            assert blas_threads() == [1] * len(before)
        assert blas_threads() == [2] * len(before)
    finally:
        for library, count in zip(threads._blas(), before, strict=True):
            library.set_num_threads(count)
