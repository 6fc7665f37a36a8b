"""The batches of a step over workers: processes of this machine, or of a Dask scheduler.

    with workers.opened(settings, count=4) as elsewhere:
        task, moment = run.prepare(folder, settings)
        run.run(folder, task, moment, elsewhere=elsewhere)

Specified in specs/train.md (TRAIN-20, TRAIN-21).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from atlas_ref import backend
from atlas_ref.backend import cluster, threads
from atlas_ref.models import language_model
from atlas_ref.train import loop
from atlas_ref.train.loop import Batch, Diverged, Lost, Task
from atlas_ref.train.sampler import Rows
from atlas_ref.train.settings import Settings


class Job(NamedTuple):
    """What every step needs beside parameters and rows, which each worker is sent once."""

    config: language_model.Config
    documents: bool


class Workers:
    """What computes batches on the workers of a cluster: an `Elsewhere` of the loop (TRAIN-20).

    Attributes:
        client: of the cluster.
        threads: of all workers, when they were counted.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.threads = sum(client.nthreads().values())
        self._job: Any = None

    def __call__(
        self, own: Task, params: language_model.Params, batches: Sequence[Rows]
    ) -> Iterator[Batch]:
        """What batches give, in their order; those of a lost worker are computed by another.

        Raises:
            Lost: no worker is left, or the scheduler is not (TRAIN-21).
            ValueError: what is not finite, as in one process.
        """
        client = self.client
        try:
            if self._job is None:
                self._job = client.submit(held, Job(own.config, own.documents), pure=False)
            # results of tasks, not data: lost with their worker, they are sent to another
            sent = client.submit(held, params, pure=False)
            futures = [
                client.submit(computed, self._job, sent, batch, pure=False) for batch in batches
            ]
            while futures:
                yield self._result(futures.pop(0))  # whose numbers the worker then forgets
        except TimeoutError:
            raise Lost(f"every worker was lost, none came for {cluster.PATIENCE:g} s") from None
        except (OSError, CancelledError) as error:
            raise Lost(f"the scheduler of the workers was lost: {type(error).__name__}") from None

    def _result(self, future: Any) -> Batch:
        cluster.finished(self.client, [future])
        try:
            found: Batch | str = future.result()
        except (OSError, CancelledError):
            raise
        except cluster.library("workers").KilledWorker:
            raise Lost("every worker that computed one of its batches was lost") from None
        except Exception as error:
            text = " ".join(str(error).split())[:120]
            raise Lost(f"a worker failed: {type(error).__name__}: {text}") from None
        if isinstance(found, str):
            raise ValueError(found)
        return found


def held(value: Any) -> Any:
    """A value, which the worker that is asked for it holds, and others fetch from there."""
    return value


def computed(job: Job, params: language_model.Params, batch: Rows) -> Batch | str:
    """What a batch gives, in a thread of a worker; words about what is not finite (TRAIN-20)."""
    try:
        with threads.alone(), loop.finite():
            return loop.of_batch(job.config, params, None, batch, documents=job.documents)
    except Diverged as error:
        return str(error)


@contextlib.contextmanager
def opened(
    settings: Settings, *, count: int | None = None, scheduler: str | None = None
) -> Iterator[Workers | None]:
    """Workers for the batches of a run (TRAIN-20).

    Until the end of the block the calling thread computes alone, as each of them does.

    Args:
        count: processes of this machine, which are started and ended.
        scheduler: address of a Dask scheduler, in their place.

    Returns:
        None where neither is given.

    Raises:
        ValueError: the run has no batches to share; the extra `cluster` is missing; nothing
            answers at the address, or it has no worker.
    """
    if count is None and scheduler is None:
        yield None
        return
    require_shared(settings, count, scheduler)
    one = cluster.connected(scheduler) if scheduler is not None else cluster.started(count or 1)
    with one as client, threads.alone():
        yield Workers(client)


def require_shared(settings: Settings, count: int | None, scheduler: str | None) -> None:
    """Refuse workers for a run whose steps they cannot share (TRAIN-20).

    Raises:
        ValueError: names the option, and why.
    """
    option, batches = "workers" if scheduler is None else "scheduler", settings.accumulation
    if count is not None and scheduler is not None:
        raise ValueError("scheduler: takes the place of workers; give one of them")
    if settings.carried:
        raise ValueError(
            f"{option}: the state is carried from batch to batch, so that each waits for the one "
            "before it; state fresh is needed"
        )
    if count is not None and count > batches:
        raise ValueError(
            f"workers: {count}, but a step has {batches} to share; "
            f"--gradient-accumulation-steps {count} gives each a batch"
        )
    if backend.current() is not backend.NUMPY:
        raise ValueError(f"{option}: compute with numpy, not with {backend.current().name}")
