"""Threads for independent parts of a computation, the same to rounding with or without them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Result = TypeVar("Result")


class _Inside(threading.local):
    """Whether this thread works on a part already."""

    yes = False


_inside = _Inside()


def processors() -> int:
    """Processors that this process may use; 1 inside a part, whose own parts run in turn."""
    if _inside.yes:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, processors() - 1), thread_name_prefix="atlas-ref")


@functools.cache
def _blas() -> list[Any]:
    """The BLAS libraries of this process, cached: the search for them takes milliseconds."""
    libraries: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return libraries


class _Alone:
    """A switch that keeps the BLAS to the calling thread, and the number of its callers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers = 0
        self.before: list[int | None] = []

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep each product on one thread: partitioned once more over busy processors, small
        products contend for them.
        """
        with self.lock:
            if self.callers == 0:
                self.before = [library.get_num_threads() for library in _blas()]
                self._set([1] * len(self.before))
            self.callers += 1
        try:
            yield
        finally:
            with self.lock:
                self.callers -= 1
                if self.callers == 0:
                    self._set(self.before)

    def forked(self) -> None:
        """Reset in a forked child, where no thread of the parent goes on."""
        self.lock = threading.Lock()
        if self.callers:
            self.callers = 0
            self._set(self.before)

    def _set(self, counts: Sequence[int | None]) -> None:
        for library, count in zip(_blas(), counts, strict=True):
            if count is not None:
                library.set_num_threads(count)


_alone = _Alone()


def one_for_products() -> contextlib.AbstractContextManager[None]:
    """Keep each matrix product to the calling thread.

    A batch of small products, each partitioned over processors that have other work, waits for
    them at every product: tens of milliseconds in place of a tenth.
    """
    return _alone.held()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep all that follows to the calling thread, products too.

    How work is cut into parts decides the order of sums within products: so numbers are the same
    bit for bit on machines with other numbers of processors (TRAIN-20).
    """
    before, _inside.yes = _inside.yes, True
    try:
        with _alone.held():
            yield
    finally:
        _inside.yes = before


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
    os.register_at_fork(after_in_child=_alone.forked)


def slices(count: int, parts: int) -> list[slice]:
    """`count` items cut into parts whose sizes differ by at most one."""
    bounds = [count * i // parts for i in range(parts + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(bounds)]


def in_threads(parts: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of all parts, in order; the calling thread takes the first. One part alone has all
    processors.

    Floating-point error handling and other context of the caller holds in every part.
    """
    if len(parts) == 1:
        return [parts[0]()]
    with _alone.held():
        others = [_pool().submit(contextvars.copy_context().run, _part, part) for part in parts[1:]]
        try:
            first = _part(parts[0])
        finally:
            # none may still run when the caller goes on
            done = [other.exception() for other in others]
    for error in done:
        if error is not None:
            raise error
    return [first, *(other.result() for other in others)]


def _part(part: Callable[[], Result]) -> Result:
    before, _inside.yes = _inside.yes, True
    try:
        return part()
    finally:
        _inside.yes = before
