"""Measurement of every figure here.

A candidate and its reference run in turn, reference, candidate, reference, ..., and each candidate
is divided by the mean of the references before and after it. What slows the machine for a while
slows both, so the quartiles of that ratio stay put where the times themselves wander. Neighbouring
traps:

- Memory touched for the first time is twenty times slower than memory written again: everything
  runs once before it is timed.
- A virtual machine hands memory that has been free for some seconds back to its host, and waits for
  it when it is touched again, for longer than a run may take. What takes gigabytes has as much
  touched, and freed, less than a second before its runs, which follow each other as fast.
- Processors of a virtual machine that slept may be two halves of one core of its host for the next
  fifth of a second, where two threads are as slow as one (`python -m benchmarks.awake` shows it).
  And the threads of the BLAS spin for a tenth of a second after a large product. So what fills less
  time than that has a `lead`, runs that are not timed.
- Other work on the machine takes wall time: work on one thread is timed by its CPU time. Work on
  several threads is not, since threads that wait in a loop spend CPU time too.
- Two libraries with threads of their own slow each other within one process: PyTorch runs in
  another one (`benchmarks.process`).
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import time
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Work = Callable[[], Any]
Clock = Callable[[], float]

# seconds of untimed runs after which processors that slept are awake and the threads of the BLAS
# sleep
LEAD = 0.25
SPIN = 0.15  # seconds after which the threads of the BLAS sleep
LARGE = 2048  # rows and columns of the product whose rate is the machine's
ERROR_BOUND = 1e-3  # a float32 result further from float64 keeps no target, however fast it came


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

    @classmethod
    def one(cls, value: float = math.nan) -> Spread:
        """A figure that was taken once; nan for one that could not be taken."""
        return cls(value, value, value)


class Target(NamedTuple):
    """A bound on the ratio (None: no bound), and where there is one, on our own figure."""

    sense: str  # "at most", "at least" or "between"
    ratio: float | None
    ours: float | None = None
    high: float = math.inf  # the upper bound of "between"

    def met(self, ours: float, ratio: float) -> bool:
        """Whether the medians keep the bounds."""
        if self.ratio is None:
            within = True
        elif self.sense == "at most":
            within = ratio <= self.ratio
        else:
            within = self.ratio <= ratio <= self.high
        return within and (self.ours is None or ours <= self.ours)


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
        meaning: what the ratio says, where it is not candidate over reference: "times faster".
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
    meaning: str = ""

    @property
    def measured(self) -> bool:
        return not math.isnan(
            self.ours.median
            if self.target is not None and self.target.ratio is None
            else self.ratio.median
        )

    @property
    def met(self) -> bool:
        """Whether the target is kept, by a result that is right."""
        right = self.error is None or self.error <= ERROR_BOUND
        return (
            self.target is not None
            and right
            and self.target.met(self.ours.median, self.ratio.median)
        )


class Report(NamedTuple):
    """The results of a module.

    Attributes:
        rows: lines of the table.
        data: plain numbers behind a figure, for the JSON file.
        draw: writes the figure to a path, and says so by its file name.
    """

    rows: list[Row]
    data: Any = None
    draw: tuple[str, Callable[[Path], None]] | None = None


class Timing(NamedTuple):
    """Seconds of both sides, sample by sample, and their ratio."""

    ours: list[float]
    theirs: list[float]
    ratio: list[float]


def bracketed(
    ours: Work,
    reference: Work,
    *,
    samples: int,
    clock: Clock = time.process_time,
    lead: float = 0.0,
) -> Timing:
    """Time `ours` between two runs of `reference`, `samples` times, after one run of each to warm
    up.

    Args:
        clock: seconds; CPU time of this process unless stated.
        lead: seconds of untimed runs before each of ours.
    """
    ours()
    reference()
    return alternated(timer(ours, clock, lead=lead), timer(reference, clock), samples=samples)


def lead_in(work: Work, seconds: float) -> None:
    """Run `work` for so long, untimed."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        work()


def touch(size: int) -> None:
    """Write to every page of so many bytes of new memory, and free them."""
    np.empty(size, np.uint8)[:: mmap.PAGESIZE] = 0


def timer(work: Work, clock: Clock = time.perf_counter, lead: float = 0.0) -> Callable[[], float]:
    """Seconds of one run of `work`, by the wall unless stated, after a lead of untimed ones."""

    def seconds() -> float:
        lead_in(work, lead)
        start = clock()
        work()
        return clock() - start

    return seconds


def alternated(ours: Callable[[], float], theirs: Callable[[], float], *, samples: int) -> Timing:
    """Time two warm sides in turn, where each times itself."""
    timing = Timing([], [theirs()], [])
    for _ in range(samples):
        timing.ours.append(ours())
        timing.theirs.append(theirs())
        timing.ratio.append(timing.ours[-1] / ((timing.theirs[-2] + timing.theirs[-1]) / 2))
    return timing


def repeated(work: Work, times: int) -> Work:
    """`times` runs as one, for work that is short against the resolution of the clock."""

    def run() -> None:
        for _ in range(times):
            work()

    return run


def runs_within(work: Work, seconds: float) -> int:
    """Number of runs of `work` that fill about that many seconds, at least one.

    It takes two runs to measure.
    """
    work()
    return max(1, round(seconds / max(timer(work)(), 1e-9)))


def large_product() -> Work:
    """One product of `LARGE` x `LARGE` in float32 on all threads: its rate is what the machine can
    do.
    """
    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((LARGE, LARGE), np.float32) for _ in range(2))
    return lambda: np.matmul(a, b)


def product_rate(samples: int = 9) -> Spread:
    """Rate of the large product now, in units of 1e9 float32 operations (a multiply-add counts as
    two) a second.
    """
    seconds = timer(large_product())
    seconds()
    low, median, high = Spread.of([seconds() for _ in range(samples)])
    operations = 2 * LARGE**3 / 1e9
    return Spread(operations / high, operations / median, operations / low)


def relative_error(got: Any, truth: Any) -> float:
    """||got - truth|| / ||truth||, the largest over a sequence of arrays; the truth is in
    float64.
    """
    pairs = zip(got, truth, strict=True) if isinstance(truth, tuple | list) else [(got, truth)]
    return max(
        float(np.linalg.norm(np.asarray(g, float) - t) / np.linalg.norm(t)) for g, t in pairs
    )


def peak_memory(work: Work, runs: int = 1) -> float:
    """Megabytes that `work` holds at its peak beyond what was held before.

    It runs in a thread of its own, where work space that a form keeps for its next call starts
    empty, so that it counts.
    """
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(1) as fresh:
            fresh.submit(lambda: None).result()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(runs):
                fresh.submit(work).result()
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - before) / 1e6


def machine() -> dict[str, Any]:
    """Conditions of the figures: processors, their load, versions, and the threads of the BLAS."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        blas = ["unknown, threadpoolctl is not installed"]
    else:
        blas = [
            (
                f"{each['internal_api']} {each['version']}{_kernels(each)}, {each['num_threads']} "
                "threads"
            )
            for each in threadpool_info()
        ]
    return {
        "processors": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": "; ".join(blas),
    }


def _kernels(library: dict[str, Any]) -> str:
    """The processor that a BLAS takes this one for, where it says so."""
    return f" for {library['architecture']}" if library.get("architecture") else ""


def finite(value: Any) -> Any:
    """Data as JSON can hold it: infinity and nan become null at any depth."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
