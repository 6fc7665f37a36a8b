"""Numbered tasks done wherever they are to be done, or found in a log: what a sweep and the making of vectors have in common.

Specified in specs/sweep.md, SWEEP-8 to SWEEP-10.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from atlas_ref.oracle.sweep.cluster import on_dask
from atlas_ref.oracle.sweep.log import Log, plain
from atlas_ref.oracle.sweep.modes import Result, Task, Work, here, on_processes

Line = dict[str, Any]

#: Called with what is being done, how many are done, and how many there are.
Progress = Callable[[str, int, int], None]


def unwatched(doing: str, done: int, of: int) -> None:
    """Progress that nobody watches."""


def _always(line: Line) -> bool:
    """Nothing besides the line is needed."""
    return True


class Tasks(NamedTuple):
    """Tasks of one piece of work.

    Attributes:
        jobs: processes; 1 for this one.
        scheduler: address of a Dask scheduler, in place of `jobs`.
        log: what it holds is not done again.
        line: a result as the log holds it; what a result is kept in besides is kept before the line is.
        there: whether what a line of the log tells of is still there; else its task is done again.
    """

    work: Work
    line: Callable[[Result], Line]
    jobs: int = 1
    scheduler: str | None = None
    log: Log | None = None
    progress: Progress = unwatched
    there: Callable[[Line], bool] = _always

    def lines(self, kind: str, numbers: Sequence[int]) -> list[Line]:
        """What came of each, in the order of their numbers."""
        known = {} if self.log is None else self.log.known
        found = {number: known[kind, number] for number in numbers if (kind, number) in known and self.there(known[kind, number])}
        left = [Task(kind, number) for number in numbers if number not in found]
        self.progress(kind, len(found), len(numbers))
        if left:
            with closing(self._performed(iter(left))) as performed:  # at once, where what follows fails
                for task, result in performed:
                    line = plain({"task": kind, "case": task.number, **self.line(result)})
                    if self.log is not None:
                        self.log.append(line)
                    found[task.number] = line
                    self.progress(kind, len(found), len(numbers))
        return [found[number] for number in sorted(found)]

    def _performed(self, tasks: Iterator[Task]) -> Generator[tuple[Task, Result]]:
        if self.scheduler is not None:
            return on_dask(self.work, tasks, self.scheduler)
        return on_processes(self.work, tasks, self.jobs) if self.jobs > 1 else here(self.work, tasks)
