"""Our parallel forms, against a large product and against the sequential run.

Frozen forms are held against the time that their useful multiply-adds would take as part of one
large product: what the dual form needs of products and no more. Exact forms are held against the
sequential run of the same rule. Every figure of this module is wall time, since products run on
several threads.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks import memories
from benchmarks import useful as counted
from benchmarks.measure import (
    LARGE,
    LEAD,
    Report,
    Row,
    Spread,
    Target,
    bracketed,
    large_product,
    peak_memory,
    relative_error,
    repeated,
    runs_within,
    timer,
)
from benchmarks.memories import TOKENS, Memory, errors, sequence, title, work

SAMPLE = 0.05  # seconds of one sample: short work is repeated
CHUNKS = (8, 16, 32, 64)
NO_SLOWER = Target("at least", 0.97)  # 1, to what a median of ratios can tell


def report() -> Report:
    """Every row of our own forms."""
    frozen = memories.FROZEN
    rows = [
        _against_product(frozen, "forward", Target("at most", 8)),
        _against_product(frozen, "both", Target("at most", 30)),
        _peak(frozen, Target("at most", None, 80)),
        _against_product(memories.FROZEN_SPANS, "forward"),
        _against_product(memories.FROZEN_SPANS, "both"),
        _newton_schulz(),
    ]
    for memory, bound in (
        (memories.DELTA, 4),
        (memories.TITANS, 3),
        (memories.RUNNING_OMEGA, None),
    ):
        rows.append(
            _against_sequential(
                memory, TOKENS, None if bound is None else Target("at least", bound)
            )
        )
        rows.append(_against_sequential(memory, 64, None if bound is None else NO_SLOWER))
    rows.append(_copying(memories.FLA_MOMENTUM_DELTA))
    rows += [
        _against_sequential(each, memories.TOKENS_OF_GRADIENTS, None, "both")
        for each in (memories.DELTA, memories.TITANS)
    ]
    return Report(rows)


def useful() -> int:
    """Multiply-adds of the frozen form's products, with the chunk that needs fewest."""
    count = counted.fewest(lambda C: counted.frozen(memories.D, memories.WINDOW, C), TOKENS)
    return memories.HEADS * count


def _against_product(memory: Memory, kind: str, target: Target | None = None) -> Row:
    """The time of a frozen form, forward or with backward, over that of its forward products at the
    machine's rate.
    """
    error = errors(memory)[kind == "both"]
    ours = work(memory, kind, sequence(memory, TOKENS))
    times = runs_within(ours, SAMPLE)
    samples = 7 if target is not None else 3
    timing = bracketed(
        repeated(ours, times), large_product(), samples=samples, clock=time.perf_counter, lead=LEAD
    )
    share = useful() / LARGE**3
    rate = 2 * LARGE**3 / float(np.median(timing.theirs)) / 1e9
    return Row(
        title(memory, kind),
        "ms",
        Spread.of(timing.ours, 1e3 / times),
        "its useful products, as part of a large one",
        Spread.of(timing.theirs, 1e3 * share),
        Spread.of(timing.ratio, 1 / times / share),
        target,
        error,
        note=f"wall time; {useful() / 1e6:.0f} million multiply-adds forward; the large product "
        f"runs at {rate:.0f} GFLOP/s",
        meaning="times as long",
    )


def _peak(memory: Memory, target: Target) -> Row:
    """Memory beyond the inputs, with backward and without."""
    arrays = sequence(memory, TOKENS)
    memories.cotangent(TOKENS)
    runs = {kind: work(memory, kind, arrays) for kind in ("both", "forward")}
    peaks = {kind: peak_memory(run, runs=2) for kind, run in runs.items()}
    results = {kind: memories.size_of(run()) / 1e6 for kind, run in runs.items()}
    return Row(
        title(memory, "both") + ", memory",
        "MB",
        Spread.one(peaks["both"]),
        "forward alone",
        Spread.one(peaks["forward"]),
        Spread.one(peaks["both"] / peaks["forward"]),
        target,
        note=f"peak beyond the inputs; of it {results['both']:.0f} MB are reads and gradients, "
        f"forward {results['forward']:.0f} MB",
    )


def _newton_schulz() -> Row:
    """Useful products of the frozen form with Newton-Schulz a second, as a share of the machine's
    rate.
    """
    memory = memories.FROZEN_NEWTON_SCHULZ
    settings = memory.config.convention.newton_schulz_settings
    arrays = sequence(memory, TOKENS)
    ours = work(memory, "forward", arrays)
    error = relative_error(ours(), memories.truth(memory))
    timing = bracketed(ours, large_product(), samples=3, clock=time.perf_counter, lead=LEAD)
    multiply_adds = memories.HEADS * TOKENS * settings.steps * 3 * memories.D**3
    rate = 2 * LARGE**3 / float(np.median(timing.theirs)) / 1e9
    return Row(
        title(memory, "forward"),
        "ms",
        Spread.of(timing.ours, 1e3),
        f"product of {LARGE} x {LARGE}",
        Spread.of(timing.theirs, 1e3),
        Spread.of([multiply_adds / LARGE**3 / ratio for ratio in timing.ratio]),
        Target("at least", 0.5),
        error,
        note=f"wall time; counted are the three products of each of {settings.steps} steps; the "
        f"large product runs at {rate:.0f} GFLOP/s",
        meaning="of its rate",
    )


def _against_sequential(
    memory: Memory, tokens: int, target: Target | None, kind: str = "forward"
) -> Row:
    """Speed-up of the exact form over the sequential run."""
    error = errors(memory)[kind == "both"]
    arrays = sequence(memory, tokens)
    ours, reference = work(memory, kind, arrays), work(memory, kind, arrays, "rule")
    times, theirs = runs_within(ours, SAMPLE), runs_within(reference, SAMPLE)
    samples = 7 if target is not None else 3
    timing = bracketed(
        repeated(ours, times), repeated(reference, theirs), samples=samples, clock=time.perf_counter
    )
    return Row(
        title(memory, kind, tokens),
        "ms",
        Spread.of(timing.ours, 1e3 / times),
        "the rule token by token",
        Spread.of(timing.theirs, 1e3 / theirs),
        Spread.of([times / theirs / ratio for ratio in timing.ratio]),
        target,
        error,
        errors(memory, "rule")[kind == "both"],
        "wall time"
        + (
            f"; {_by_chunk(memory, kind, tokens)}"
            if target is not None and tokens == TOKENS
            else ""
        ),
        "times faster",
    )


def _copying(memory: Memory) -> Row:
    """Time of the same call with writable inputs, which are copied first."""
    arrays = sequence(memory, TOKENS)
    copied, as_is = (
        work(memory, "forward", inputs)
        for inputs in ({name: x.copy() for name, x in arrays.items()}, arrays)
    )
    times = runs_within(as_is, SAMPLE)
    timing = bracketed(
        repeated(copied, times), repeated(as_is, times), samples=7, clock=time.perf_counter
    )
    error = errors(memory)[0]
    return Row(
        f"{title(memory, 'forward')}, inputs that can be changed",
        "ms",
        Spread.of(timing.ours, 1e3 / times),
        "inputs that nobody can change",
        Spread.of(timing.theirs, 1e3 / times),
        Spread.of(timing.ratio),
        None,
        error,
        error,
        (
            "wall time; the other rows of parallel forms are of inputs that nobody can change, "
            "which are taken as they are"
        ),
        "of its time",
    )


def _by_chunk(memory: Memory, kind: str, tokens: int) -> str:
    """Milliseconds at each chunk size, to see whether the form's own choice is its best."""
    arrays = sequence(memory, tokens)
    times = []
    for chunk in CHUNKS:
        seconds = timer(work(memory, kind, arrays, chunk=chunk))
        seconds()
        times.append(f"{chunk}: {1e3 * float(np.median([seconds() for _ in range(5)])):.3g}")
    return f"ms by chunk {', '.join(times)}"
