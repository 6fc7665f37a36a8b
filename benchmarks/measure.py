"""How every figure here is taken.

A candidate and its reference run in turn, reference, candidate, reference, ..., and each candidate is divided by the mean
of the references before and after it. What slows the machine for a while slows both, so the quartiles of that ratio
stay put where the times themselves wander. Neighbouring traps:

- Memory touched for the first time is twenty times slower than memory written again: everything runs once before it is timed.
- The threads of the BLAS spin for a tenth of a second after a large product: `settle` waits until they sleep.
- Other work on the machine takes wall time: work on one thread is timed by its CPU time. Work on several threads is not,
  since threads that wait in a loop spend CPU time too.
"""

from __future__ import annotations

import os
import platform
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Work = Callable[[], Any]
Clock = Callable[[], float]

SPIN = 0.15  # seconds after which the threads of the BLAS sleep


class Spread(NamedTuple):
    """Quartiles of a sample."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float], scale: float = 1.0) -> Spread:
        """Quartiles of a sample, each times `scale`."""
        low, median, high = np.quantile(sample, [0.25, 0.5, 0.75]) * scale
        return cls(float(low), float(median), float(high))


class Target(NamedTuple):
    """A bound on the ratio, and where there is one, on our own figure."""

    sense: str  # "at most" or "at least"
    ratio: float
    ours: float | None = None

    def met(self, ours: float, ratio: float) -> bool:
        """Whether the medians keep the bounds."""
        kept = ratio <= self.ratio if self.sense == "at most" else ratio >= self.ratio
        return kept and (self.ours is None or ours <= self.ours)


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        name: what is measured, with its sizes.
        unit: of `ours` and `theirs`.
        ours, theirs: the candidate and its reference.
        reference: what the reference is.
        ratio: candidate over reference, or for rates their quotient.
        target: None for a figure that only informs.
        error, reference_error: relative error of the values against float64.
        note: memory, threads, clock.
    """

    name: str
    unit: str
    ours: Spread
    reference: str
    theirs: Spread
    ratio: Spread
    target: Target | None = None
    error: float | None = None
    reference_error: float | None = None
    note: str = ""


class Timing(NamedTuple):
    """Seconds of both sides, sample by sample, and their ratio."""

    ours: list[float]
    theirs: list[float]
    ratio: list[float]


def bracketed(ours: Work, reference: Work, *, samples: int, clock: Clock = time.process_time, settle: float = 0.0) -> Timing:
    """Time `ours` between two runs of `reference`, `samples` times, after one run of each to warm up.

    Args:
        clock: seconds; CPU time of this process unless stated.
        settle: seconds to sleep after each reference.
    """

    def seconds(work: Work) -> float:
        start = clock()
        work()
        return clock() - start

    def settled() -> float:
        spent = seconds(reference)
        time.sleep(settle)
        return spent

    ours()
    settled()
    found = Timing([], [settled()], [])
    for _ in range(samples):
        found.ours.append(seconds(ours))
        found.theirs.append(settled())
        found.ratio.append(found.ours[-1] / ((found.theirs[-2] + found.theirs[-1]) / 2))
    return found


def repeated(work: Work, times: int) -> Work:
    """`times` runs as one, for work that is short against the resolution of the clock."""

    def run() -> None:
        for _ in range(times):
            work()

    return run


def relative_error(got: Any, truth: Any) -> float:
    """||got - truth|| / ||truth||, the largest over a sequence of arrays; the truth is in float64."""
    pairs = zip(got, truth, strict=True) if isinstance(truth, tuple | list) else [(got, truth)]
    return max(float(np.linalg.norm(np.asarray(g, float) - t) / np.linalg.norm(t)) for g, t in pairs)


def peak_memory(work: Work) -> float:
    """Megabytes that `work` holds at its peak beyond what was held before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - before) / 1e6


def machine() -> dict[str, Any]:
    """What the figures depend on: processors, their load, versions, and the threads of the BLAS."""
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    blas = [f"{each['internal_api']} {each['version']}, {each['num_threads']} threads" for each in threadpool_info()]
    return {
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": "; ".join(blas),
    }
