"""Workers of a Dask cluster: processes of this machine, or those of a scheduler at an address.

Sweeps and training share it. Needs the extra `cluster`, which is imported on first use. Specified
in specs/sweep.md (SWEEP-8, SWEEP-10) and specs/train.md (TRAIN-20, TRAIN-21).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from atlas_ref.messages import install

#: Seconds to wait for a scheduler, and for workers to come (back).
PATIENCE = 30.0

#: Seconds between two looks at whether any worker is left.
BEAT = 2.0


class ClusterError(ValueError):
    """A cluster that cannot be used, in one line that begins with the option."""


def library(option: str) -> Any:
    """The module `distributed`.

    Raises:
        ClusterError: it is not installed.
    """
    try:
        import distributed
    except ImportError:
        raise ClusterError(
            f"{option}: dask and distributed are needed: {install('cluster')}"
        ) from None
    return distributed


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the scheduler at an address, which has a worker.

    Raises:
        ClusterError: dask is not installed, nothing answers at the address, or it has no worker.
    """
    distributed = library("scheduler")
    with _quiet():
        client = _client(distributed, address)
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            with client.as_current():
                yield client
        except TimeoutError:
            raise ClusterError(
                f"scheduler: {address} has had no worker for {PATIENCE:g} s"
            ) from None
        finally:
            client.close(timeout=5)


@contextlib.contextmanager
def started(count: int) -> Iterator[Any]:
    """A client of so many processes of this machine, with one thread each.

    A process that ends is replaced. As for all processes that Python starts anew, the program that
    asks for them begins behind `if __name__ == "__main__":`.

    Raises:
        ClusterError: dask is not installed, or the processes do not start.
    """
    distributed = library("workers")
    with (
        _quiet(),
        unwatched(),
        _environment_kept(),
        tempfile.TemporaryDirectory(prefix="atlas-ref-") as place,
    ):
        try:
            cluster = distributed.LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                dashboard_address="127.0.0.1:0",
                memory_limit=0,  # what a step needs is no reason to end its process
                silence_logs=logging.CRITICAL,
                local_directory=place,
                preload=[__name__],
            )
        except (OSError, RuntimeError) as error:
            raise ClusterError(f"workers: {count} do not start: {_line(error)}") from None
        try:
            with distributed.Client(cluster, set_as_default=False) as client, client.as_current():
                yield client
        finally:
            with contextlib.suppress(TimeoutError):  # on a busy machine; they end with this one
                cluster.close()


def unwatched() -> Any:
    """Settings of Dask under which no worker looks into its threads a hundred times a second.

    It asks for the frames of all threads under a lock, in which a collection of garbage may wait
    for ever (Python 3.11).
    """
    import dask.config

    return dask.config.set({"distributed.worker.profile.enabled": False})


def dask_setup(worker: Any) -> None:
    """Let an interrupt of the terminal reach the leading process alone.

    Dask calls it in each process that `started` starts. The leading process ends the others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def finished(client: Any, under_way: Iterable[Any]) -> list[Any]:
    """At least one future that is ready.

    Raises:
        TimeoutError: there has been no worker for `PATIENCE`.
    """
    wait, futures = library("scheduler").wait, list(under_way)
    while True:
        try:
            return list(
                wait(futures, timeout=min(BEAT, PATIENCE), return_when="FIRST_COMPLETED").done
            )
        except TimeoutError:
            # slow work is no reason to stop, a cluster without workers is
            client.wait_for_workers(1, timeout=PATIENCE)


def _client(distributed: Any, address: str) -> Any:
    """A client of the scheduler at an address.

    A client that could not connect closes when it is collected, and takes a lock for it that the
    start of another client holds while it waits for its thread. So it is collected here, which
    needs an exception without references to it.
    """
    try:
        return distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        problem = _line(error)
    gc.collect()
    raise ClusterError(f"scheduler: nothing answers at {address!r}: {problem}")


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Take back variables that Dask sets in this process for those that it starts."""
    import dask.config

    own = {"PYTHONHASHSEED", *dask.config.get("distributed.nanny.pre-spawn-environ", {})}
    before = set(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - before:
            if name in own or "DASK" in name:
                del os.environ[name]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and loggers of the cluster's libraries, whose errors are raised as well.

    The warnings are of versions that differ and of ports in use.
    """
    names = [
        name
        for name in logging.root.manager.loggerDict
        if name.partition(".")[0] in ("distributed", "tornado", "asyncio")
    ]
    before = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in names:
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)
