"""The cases of a sweep on the workers of a Dask scheduler.

Specified in specs/sweep.md, SWEEP-8 and SWEEP-10.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from atlas_ref.backend import cluster
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sweep.modes import Result, Task, Work, as_bytes, open_source, perform


def on_dask(work: Work, tasks: Iterable[Task], address: str) -> Generator[tuple[Task, Result]]:
    """Results of tasks from the workers of a Dask scheduler (SWEEP-10).

    The tasks of a lost worker are done by another.

    Raises:
        CaseError: dask is not installed, nothing answers at the address, the scheduler is lost, or
            no worker is left.
    """
    folder, problem = "" if work.source is None else os.getcwd(), None
    perform = partial(remote, as_bytes(work), folder)
    try:
        with cluster.connected(address) as client:
            try:
                yield from _on_client(client, perform, tasks)
            except (OSError, CancelledError) as error:
                raise CaseError(
                    f"scheduler: the connection to {address} was lost: {type(error).__name__}"
                ) from None
    except cluster.ClusterError as error:
        problem = str(error)
    if problem is not None:  # raised without a reference to the client
        raise CaseError(problem)


def _on_client(
    client: Any, perform: Callable[[Task], Result], tasks: Iterable[Task]
) -> Generator[tuple[Task, Result]]:
    """Results of tasks from a client, with a few tasks per thread under way at a time."""
    waiting, lost = iter(tasks), cluster.library("scheduler").KilledWorker
    under_way: dict[Any, Task] = {}
    while True:
        threads = max(1, sum(client.nthreads().values()))
        for task in waiting:
            under_way[client.submit(perform, task, pure=False)] = task
            if len(under_way) >= 2 * threads:
                break
        if not under_way:
            return
        for future in cluster.finished(client, under_way):
            task = under_way.pop(future)
            try:
                result = future.result()
            except lost:
                raise CaseError(
                    f"scheduler: case {task.number}: every worker that computed it was lost"
                ) from None
            yield task, result


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
        _per_thread.source = _per_thread.stack.enter_context(open_source(work.source))
        _per_thread.work, _per_thread.packed = work, packed
    return perform(_per_thread.work, _per_thread.source, task)
