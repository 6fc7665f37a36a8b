"""Where the cases of a sweep are computed: in this process, or in several (on a Dask cluster: sweep_dask.py).

Every mode yields the same results, in whatever order they are ready. Specified in specs/sweep.md, SWEEP-8 and SWEEP-10.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import IO, Any, NamedTuple, Protocol

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sources.answers import Source
from atlas_ref.oracle.sweep.run import Named

#: Processes that may end under one task before it is given up.
ATTEMPTS = 4

#: Seconds that a process has to end its implementation, before it is killed.
LEAVE = 3.0

Result = Any


class Plans(Protocol):
    """What a piece of work depends on, but its number; it goes to other processes."""

    def perform(self, source: Any, kind: str, number: int) -> Result:
        """The result of one task."""


class Task(NamedTuple):
    """One piece of work: `judge` or `shrink` a case of a sweep, or what another plan calls its tasks."""

    kind: str
    number: int


class Work(NamedTuple):
    """What every process is told."""

    plan: Plans
    source: Named | Source | None


def performed(work: Work, source: Source | None, task: Task) -> Result:
    """A task, in this process."""
    return work.plan.perform(source, task.kind, task.number)


def here(work: Work, tasks: Iterable[Task]) -> Generator[tuple[Task, Result]]:
    """One task after the other, in this process."""
    with opened(work.source) as source:
        for task in tasks:
            yield task, performed(work, source, task)


@contextlib.contextmanager
def opened(source: Named | Source | None) -> Iterator[Source | None]:
    if isinstance(source, Named):
        with source.opened() as made:
            yield made
    else:
        yield source


# -- processes ----------------------------------------------------------------------------------------


def on_processes(work: Work, tasks: Iterable[Task], jobs: int) -> Generator[tuple[Task, Result]]:
    """On `jobs` processes of this machine; a process that ends under a task is replaced and the task done again (SWEEP-10).

    Raises:
        CaseError: an implementation that cannot be sent there, or one task that ends every process.
    """
    packed, waiting, taking = as_bytes(work), iter(tasks), threading.Lock()
    finished: queue.Queue[Any] = queue.Queue()
    children = [Child(packed) for _ in range(jobs)]

    def serve(child: Child) -> None:
        try:
            while True:
                with taking:
                    task = next(waiting, None)
                if task is None:
                    break
                finished.put((task, child.ask(task)))
            finished.put(None)
        except BaseException as error:
            finished.put(error)

    threads = [threading.Thread(target=serve, args=(child,), daemon=True) for child in children]
    try:
        for thread in threads:
            thread.start()
        left = jobs
        while left:
            found = finished.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for child in children:
            child.close()


class Child:
    """A process that performs one task after the other, started when it is first asked.

    Not a fork: what that would inherit, threads of a library above all, is no use to an implementation.
    """

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, task: Task) -> Result:
        """The result of a task.

        Raises:
            CaseError: bad input; or every process ended under this task.
        """
        for _ in range(ATTEMPTS):
            try:
                kind, found = self._exchange(task)
            except (EOFError, OSError, pickle.UnpicklingError):  # it has ended, perhaps in the middle of an answer
                self._end()
                if self._closed:
                    break
                continue
            if kind == "bad":
                raise CaseError(found)
            result: Result = found
            return result
        raise CaseError(f"sweep: case {task.number}: every process that computed it ended before its answer, {ATTEMPTS} of them")

    def _exchange(self, task: Task) -> tuple[str, Any]:
        if self._process is None:
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)}
            words = [sys.executable, "-m", "atlas_ref.oracle.sweep.worker"]
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
            self._send(self._packed)
        self._send(pickle.dumps(task))
        assert self._process.stdout is not None
        found: tuple[str, Any] = pickle.load(self._process.stdout)
        return found

    def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()  # which lets it end its implementation
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


def answers(questions: IO[bytes], replies: IO[bytes]) -> None:
    """The other side of `Child`: what to compute, then tasks, until there are no more, or one cannot be done."""

    def reply(kind: str, found: Any) -> None:
        pickle.dump((kind, found), replies)
        replies.flush()

    work: Work = pickle.load(questions)
    try:
        with opened(work.source) as source:
            while True:
                reply("done", performed(work, source, pickle.load(questions)))
    except CaseError as error:
        reply("bad", str(error))
    except EOFError:
        return


def as_bytes(work: Work) -> bytes:
    """What every process is sent.

    Raises:
        CaseError: an implementation that cannot be.
    """
    try:
        return pickle.dumps(work)
    except Exception as error:
        raise CaseError(f"sweep: this implementation cannot be sent to other processes, give its name instead: {error}") from None
