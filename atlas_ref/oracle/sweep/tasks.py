"""Numbered tasks, performed in one of the modes or read from a log.

A sweep and the making of vectors share them. Specified in specs/sweep.md, SWEEP-8 to SWEEP-10.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from atlas_ref.messages import Progress, unwatched
from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.oracle.sweep.cluster import on_dask
from atlas_ref.oracle.sweep.log import Log, plain
from atlas_ref.oracle.sweep.modes import Result, Task, Work, here, on_processes

Line = dict[str, Any]


def _always(line: Line) -> bool:
    """Accept every line, where nothing besides it is needed."""
    return True


class Tasks(NamedTuple):
    """Tasks of one piece of work.

    Attributes:
        jobs: processes; 1 for this one.
        scheduler: address of a Dask scheduler, in place of `jobs`.
        log: its tasks are not done again.
        line: the line of a result in the log; other files of the result are saved before it is
            returned.
        there: whether the files that a line of the log names still exist; else its task is done
            again.
        proved: whether every task is done here, so that the log is no source of results; a line of
            it that says something else is refused.
    """

    work: Work
    line: Callable[[Result], Line]
    jobs: int = 1
    scheduler: str | None = None
    log: Log | None = None
    progress: Progress = unwatched
    there: Callable[[Line], bool] = _always
    proved: bool = False

    def lines(
        self, kind: str, numbers: Sequence[int], *, last: Callable[[Line], bool] | None = None
    ) -> list[Line]:
        """The lines of tasks, in the order of their numbers.

        Args:
            last: whether a line is the last one, so that tasks of higher numbers are left out; the
                first that is, by number, whatever mode computes them in which order.

        Raises:
            CaseError: the log holds another outcome of a task than the one that is proved here.
        """
        log = {} if self.log is None else self.log.known
        lines = {
            number: log[kind, number]
            for number in numbers
            if (kind, number) in log and self.there(log[kind, number]) and not self.proved
        }
        tasks = [Task(kind, number) for number in numbers if number not in lines]
        self.progress(kind, len(lines), len(numbers))
        if tasks and not (last is not None and _are_enough(lines, numbers, last)):
            # closed at once where what follows fails
            with closing(self._perform(iter(tasks))) as performed:
                for task, result in performed:
                    line = plain({"task": kind, "case": task.number, **self.line(result)})
                    if self.log is not None:
                        self._log(self.log, line)
                    lines[task.number] = line
                    self.progress(kind, len(lines), len(numbers))
                    if last is not None and _are_enough(lines, numbers, last):
                        break
        return _until(lines, last)

    def _log(self, log: Log, line: Line) -> None:
        """Append a line, unless the log is to be proved and holds it."""
        earlier = log.known.get((line["task"], line["case"])) if self.proved else None
        if earlier is None:
            log.append(line)
        elif earlier != line:
            raise CaseError(
                f"{log.path}: {line['task']} {line['case']}: holds something else than was "
                "computed here; remove the log, and repeat the command"
            )

    def _perform(self, tasks: Iterator[Task]) -> Generator[tuple[Task, Result]]:
        if self.scheduler is not None:
            return on_dask(self.work, tasks, self.scheduler)
        return (
            on_processes(self.work, tasks, self.jobs) if self.jobs > 1 else here(self.work, tasks)
        )


def _are_enough(
    lines: dict[int, Line], numbers: Sequence[int], last: Callable[[Line], bool]
) -> bool:
    """Whether there is a last line, with all before it."""
    end = min((number for number, line in lines.items() if last(line)), default=None)
    return end is not None and all(number in lines for number in numbers if number < end)


def _until(lines: dict[int, Line], last: Callable[[Line], bool] | None) -> list[Line]:
    """Lines in the order of their numbers, up to the last one."""
    found = list[Line]()
    for number in sorted(lines):
        found.append(lines[number])
        if last is not None and last(lines[number]):
            break
    return found
