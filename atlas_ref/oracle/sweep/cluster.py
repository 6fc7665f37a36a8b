"""The cases of a sweep on the workers of a Dask scheduler.

Needs the extra `cluster`, which is imported on first use. Specified in specs/sweep.md, SWEEP-8 and
SWEEP-10.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from atlas_ref.messages import install
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sweep.modes import Result, Task, Work, as_bytes, opened, performed

#: Seconds to wait for a scheduler, and for workers to come (back).
PATIENCE = 30.0


def on_dask(work: Work, tasks: Iterable[Task], address: str) -> Generator[tuple[Task, Result]]:
    """Results of tasks from the workers of a Dask scheduler (SWEEP-10).

    The tasks of a lost worker are done by another.

    Raises:
        CaseError: dask is not installed, nothing answers at the address, the scheduler is lost, or
            no worker is left.
    """
    try:
        import distributed
    except ImportError:
        raise CaseError(
            f"scheduler: dask and distributed are needed: {install('cluster')}"
        ) from None
    folder = "" if work.source is None else os.getcwd()
    perform = partial(remote, as_bytes(work), folder)
    with _client(distributed, address) as client:
        try:
            yield from _on_client(distributed, client, perform, tasks)
        except (OSError, CancelledError) as error:
            raise CaseError(
                f"scheduler: the connection to {address} was lost: {type(error).__name__}"
            ) from None


def _on_client(
    distributed: Any, client: Any, perform: Callable[[Task], Result], tasks: Iterable[Task]
) -> Generator[tuple[Task, Result]]:
    """Results of tasks from a client, with a few tasks per thread under way at a time."""
    waiting = iter(tasks)
    under_way: dict[Any, Task] = {}
    while True:
        threads = max(1, sum(client.nthreads().values()))
        for task in waiting:
            under_way[client.submit(perform, task, pure=False)] = task
            if len(under_way) >= 2 * threads:
                break
        if not under_way:
            return
        for future in _finished(distributed, client, under_way):
            task = under_way.pop(future)
            try:
                result = future.result()
            except distributed.KilledWorker:
                raise CaseError(
                    f"scheduler: case {task.number}: every worker that computed it was lost"
                ) from None
            yield task, result


@contextlib.contextmanager
def _client(distributed: Any, address: str) -> Iterator[Any]:
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")  # of versions that differ, and of ports in use
        client = _connected(distributed, address)
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            with client.as_current():
                yield client
        except TimeoutError:
            raise CaseError(f"scheduler: {address} has had no worker for {PATIENCE:g} s") from None
        finally:
            client.close(timeout=5)


def _connected(distributed: Any, address: str) -> Any:
    """A client of the scheduler at an address.

    A client that could not connect closes when it is collected, and takes a lock for it that the
    start of another client holds while it waits for its thread. So it is collected here, which
    needs an exception without references to it.
    """
    try:
        return distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        problem = " ".join(str(error).split())[:120]
    gc.collect()
    raise CaseError(f"scheduler: nothing answers at {address!r}: {problem}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the loggers of the cluster's libraries, whose errors are raised as well."""
    names = [
        name
        for name in logging.root.manager.loggerDict
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio")
    ]
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _finished(distributed: Any, client: Any, under_way: Iterable[Any]) -> list[Any]:
    """At least one future that is ready."""
    while True:
        try:
            return list(
                distributed.wait(
                    list(under_way), timeout=PATIENCE, return_when="FIRST_COMPLETED"
                ).done
            )
        except TimeoutError:
            # a slow case is no reason to stop, a cluster without workers is
            client.wait_for_workers(1, timeout=PATIENCE)


_per_thread = threading.local()


def remote(packed: bytes, folder: str, task: Task) -> Result:
    """Perform a task in a thread of a Dask worker.

    The implementation stays open for the next task.

    Args:
        folder: of the implementation; empty where there is none.
    """
    if getattr(_per_thread, "packed", None) != packed:
        if getattr(_per_thread, "stack", None) is not None:
            _per_thread.stack.close()
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)  # last, as for a function of this process (SRC-6)
        work: Work = pickle.loads(packed)
        _per_thread.stack = contextlib.ExitStack()
        _per_thread.source = _per_thread.stack.enter_context(opened(work.source))
        _per_thread.work, _per_thread.packed = work, packed
    return performed(_per_thread.work, _per_thread.source, task)
