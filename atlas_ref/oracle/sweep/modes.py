"""Where the cases of a sweep are computed: in this process, or in several (on a Dask cluster:
cluster.py).

Every mode yields the same results, in the order in which they are ready. Specified in
specs/sweep.md, SWEEP-8 and SWEEP-10.
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
from atlas_ref.oracle.judge.answers import Source
from atlas_ref.oracle.sources.programs import WAIT
from atlas_ref.oracle.sweep.run import Named

#: Processes that may end under one task before it is given up.
ATTEMPTS = 4

#: Seconds that a process has to end its implementation, before it is killed.
LEAVE = 3.0

Result = Any


class Plans(Protocol):
    """Everything that a task depends on but its number.

    It is sent to other processes.
    """

    def perform(self, source: Any, kind: str, number: int) -> Result:
        """The result of one task."""


class Task(NamedTuple):
    """One piece of work: `judge` or `shrink` a case of a sweep, or a task of another plan."""

    kind: str
    number: int


class Work(NamedTuple):
    """The plan and the implementation, which every process is sent."""

    plan: Plans
    source: Named | Source | None


def perform(work: Work, source: Source | None, task: Task) -> Result:
    """Perform a task in this process."""
    return work.plan.perform(source, task.kind, task.number)


def here(work: Work, tasks: Iterable[Task]) -> Generator[tuple[Task, Result]]:
    """Results of one task after the other, in this process."""
    with open_source(work.source) as source:
        for task in tasks:
            yield task, perform(work, source, task)


@contextlib.contextmanager
def open_source(source: Named | Source | None) -> Iterator[Source | None]:
    if isinstance(source, Named):
        with source.open() as implementation:
            yield implementation
    else:
        yield source


# -- processes -------------------------------------------------------------------------------------


def on_processes(work: Work, tasks: Iterable[Task], jobs: int) -> Generator[tuple[Task, Result]]:
    """Results of tasks from `jobs` processes of this machine (SWEEP-10).

    A process that ends under a task is replaced, and the task is done again.

    Raises:
        CaseError: an implementation that cannot be sent there, or one task that ends every process.
    """
    packed, waiting, taking = as_bytes(work), iter(tasks), threading.Lock()
    results: queue.Queue[Any] = queue.Queue()
    children = [Child(packed) for _ in range(jobs)]

    def serve(child: Child) -> None:
        try:
            while True:
                with taking:
                    task = next(waiting, None)
                if task is None:
                    break
                results.put((task, child.ask(task)))
            results.put(None)
        except BaseException as error:
            results.put(error)

    threads = [threading.Thread(target=serve, args=(child,), daemon=True) for child in children]
    try:
        for thread in threads:
            thread.start()
        running = jobs
        while running:
            try:
                item = results.get(timeout=WAIT)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for child in children:
            child.forbid()
        for child in children:
            child.close()


class Child:
    """A process that performs one task after the other, started when it is first asked.

    Not a fork: an implementation has no use for its inheritance, threads of a library above all.
    """

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._process: subprocess.Popen[bytes] | None = None
        self._closed, self._starting = False, threading.Lock()

    def ask(self, task: Task) -> Result:
        """The result of a task.

        Raises:
            CaseError: bad input; or every process ended under this task.
        """
        for _ in range(ATTEMPTS):
            # it has ended, perhaps in the middle of an answer
            try:
                kind, answer = self._exchange(task)
            except (
                EOFError,
                OSError,
                pickle.UnpicklingError,
            ):
                self._end()
                if self._closed:
                    break
                continue
            if kind == "bad":
                raise CaseError(answer)
            result: Result = answer
            return result
        raise CaseError(
            f"sweep: case {task.number}: every process that computed it ended before its "
            f"answer, {ATTEMPTS} of them"
        )

    def _exchange(self, task: Task) -> tuple[str, Any]:
        with self._starting:
            if self._closed:
                raise EOFError
            fresh = self._process is None
            process = self._process = self._process or _worker()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write((self._packed if fresh else b"") + pickle.dumps(task))
        process.stdin.flush()
        answer: tuple[str, Any] = pickle.load(process.stdout)
        return answer

    def forbid(self) -> None:
        """Start no process any more, in place of one that the same signal ends, for one."""
        with self._starting:
            self._closed = True

    def close(self) -> None:
        """End the process, even in the middle of a task."""
        self.forbid()
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


def _worker() -> subprocess.Popen[bytes]:
    """A process that waits for work."""
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    env = {**os.environ, "PYTHONPATH": path}
    # -P: it imports from where this process does, not from the current folder before that
    words = [sys.executable, "-P", "-m", "atlas_ref.oracle.sweep.worker"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)


def answers(questions: IO[bytes], replies: IO[bytes]) -> None:
    """Answer a `Child`: read the work, then perform its tasks.

    It ends when there are no more, or when one is bad input.
    """

    def reply(kind: str, answer: Any) -> None:
        pickle.dump((kind, answer), replies)
        replies.flush()

    work: Work = pickle.load(questions)
    try:
        with open_source(work.source) as source:
            while True:
                reply("done", perform(work, source, pickle.load(questions)))
    except CaseError as error:
        reply("bad", str(error))
    except EOFError:
        return


def as_bytes(work: Work) -> bytes:
    """The work as bytes, for other processes.

    Raises:
        CaseError: an implementation that cannot be.
    """
    try:
        return pickle.dumps(work)
    except Exception as error:
        raise CaseError(
            "sweep: this implementation cannot be sent to other processes, give its name "
            f"instead: {error}"
        ) from None
