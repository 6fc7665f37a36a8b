"""Threads for work that falls into independent parts; each part computes the same whether or not it has a thread of its own."""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class _Inside(threading.local):
    """Whether this thread works on a part already."""

    yes = False


_inside = _Inside()


def processors() -> int:
    """Processors that this process may use; 1 inside a part, whose own parts then follow one another."""
    if _inside.yes:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, processors() - 1), thread_name_prefix="atlas-ref")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def in_threads(parts: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of all parts, in order; the calling thread takes the first.

    Floating-point error handling and other context of the caller holds in every part.
    """
    others = [_pool().submit(contextvars.copy_context().run, _part, part) for part in parts[1:]]
    try:
        first = _part(parts[0])
    finally:
        done = [other.exception() for other in others]  # none may still run when the caller goes on
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
