"""Compiled code against the same calls without it, in one run: ATLAS_REF_COMPILED=1 and 0 in turn.

A sample is the mean of some runs by the wall, on one processor and on all that there are. Exact
forms without compiled code are chunks in NumPy; sequential Omega is the rule token by token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import memories, useful
from benchmarks.measure import (
    LARGE,
    Report,
    Row,
    Spread,
    Target,
    alternated,
    large_product,
    repeated,
    runs_within,
    timer,
)
from benchmarks.memories import Memory

KINDS = ("forward", "both")
SAMPLE = 0.03  # seconds of one sample: short work is repeated
FLA = (memories.FLA_DELTA, memories.FLA_GATED_DELTA, memories.FLA_MOMENTUM_DELTA)


class Case(NamedTuple):
    """A memory in a size, and bounds on its time with compiled code over that without.

    Attributes:
        heads, d, tokens: its size.
        bounds: forward, and with backward.
        samples: of each side.
    """

    memory: Memory
    heads: int
    d: int
    tokens: int
    bounds: tuple[float | None, float | None]
    samples: int = 5


CASES = (
    *(
        Case(memory, 8, 64, 1024, bounds)
        for memory, bounds in zip(FLA, ((0.4, 0.8), (0.4, 0.8), (0.5, 0.8)), strict=True)
    ),
    *(Case(memory, 4, 128, 1024, (1.0, 1.0)) for memory in FLA),
    # with a backward the loop takes large states with momentum alone (EXACT-21)
    *(
        Case(memory, 2, 256, 1024, (1.0, 1.0 if memory is memories.FLA_MOMENTUM_DELTA else None))
        for memory in FLA
    ),
    *(Case(memory, 16, 32, 256, (None, 0.6)) for memory in FLA),
    Case(memories.SEQUENTIAL_OMEGA, 8, 64, 1024, (0.4, 0.4), 3),
    Case(memories.SEQUENTIAL_OMEGA_NEWTON_SCHULZ, 8, 64, 256, (0.8, 0.6), 3),
)


def report() -> Report:
    """A row of each case and kind, on one processor; where there are more, small ones on all."""
    rows = [_row(case, kind, alone=True) for case in CASES for kind in KINDS]
    if _processors() > 1:
        small = [case for case in CASES if case.d == memories.D]
        rows += [_row(case, kind, alone=False) for case in small for kind in KINDS]
    return Report(rows)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _row(case: Case, kind: str, *, alone: bool) -> Row:
    memory = memories.sized(case.memory, case.d)
    arrays = memories.sequence(memory, case.tokens, np.float32, case.heads)
    work = memories.work(memory, kind, arrays)
    compiled, plain = (_with("ATLAS_REF_COMPILED", value, work) for value in "10")
    with on_one_processor() if alone else contextlib.nullcontext():
        runs = [runs_within(each, SAMPLE) for each in (compiled, plain)]
        timing = alternated(
            *(
                timer(repeated(each, times))
                for each, times in zip((compiled, plain), runs, strict=True)
            ),
            samples=case.samples,
        )
        floor = _floor(memory, case, kind)
    bound = case.bounds[KINDS.index(kind)]
    ours, theirs = (
        Spread.of([each / times for each in samples], 1e3)
        for samples, times in zip((timing.ours, timing.theirs), runs, strict=True)
    )
    return Row(
        f"{memory.name} {'forward' if kind == 'forward' else 'forward and backward'}, "
        f"{case.heads} memories, d = {case.d}, T = {case.tokens}, "
        f"{'one processor' if alone else 'all processors'}",
        "ms",
        ours,
        "without compiled code",
        theirs,
        Spread.of([each * runs[1] / runs[0] for each in timing.ratio]),
        None if bound is None else Target("at most", bound),
        note=f"wall time; its products as part of a large one: {1e3 * floor:.3g} ms",
        meaning="of its time",
    )


def _floor(memory: Memory, case: Case, kind: str) -> float:
    """Seconds that the useful multiply-adds take at the rate of a large product."""
    product = timer(large_product())
    product()
    seconds = float(np.median([product() for _ in range(3)]))
    counted = useful.multiply_adds(memory, case.heads, case.tokens, kind)
    return counted / LARGE**3 * seconds


def _with(name: str, value: str, work: Callable[[], Any]) -> Callable[[], None]:
    """Work under a variable of the environment."""

    def run() -> None:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            work()
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

    return run


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    """Hold this process on one processor, where the system can."""
    with threadpool_limits(1):
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(before)})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
