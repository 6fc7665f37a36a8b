"""Time and memory of forward and backward over the number of tokens, for every form.

A form goes on to four times the tokens while that is likely to stay within its limits: forms that
are judged - those that promise time and memory linear in T - reach 65,536 tokens, the others stop
where they become a burden. The slope is that of a straight line through log time against log T from
1,024 tokens on, where the time of a longer sequence is its ratio to that of 1,024 tokens taken
before and after it: minutes lie between the first size and the last, and a machine changes its
pace. Memory is what NumPy allocates at the peak beyond the inputs; floats per token and channel
leave out the outputs too, which are reads, state and one gradient for each input.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import memories, plots
from benchmarks.measure import (
    LEAD,
    Report,
    Row,
    Spread,
    Target,
    Work,
    alternated,
    peak_memory,
    repeated,
    runs_within,
    timer,
    touch,
)
from benchmarks.memories import HEADS, D, Memory, sequence, work

SIZES = tuple(16 * 4**n for n in range(7))  # 16 to 65,536 tokens
LINEAR_FROM = 1024
FLOATS = 40
MOMENT = 0.5  # seconds


class Form(NamedTuple):
    """A line of the figure.

    Attributes:
        label: as the figure shows it.
        memory: what runs.
        form: None for the memory's own.
        judged: whether time and memory are to be linear in T.
    """

    label: str
    memory: Memory
    form: str | None = None
    judged: bool = False


FORMS = (
    Form("frozen Omega, chunkwise", memories.FROZEN, judged=True),
    Form("Delta, exact", memories.DELTA, judged=True),
    Form("Titans, exact", memories.TITANS, judged=True),
    Form("Omega, exact", memories.RUNNING_OMEGA),
    Form("frozen Omega with Newton-Schulz, chunkwise", memories.FROZEN_NEWTON_SCHULZ),
    Form("frozen Omega, atlas_parallel", memories.FROZEN_SPANS, "atlas_parallel"),
    Form("Titans, scan", memories.TITANS, "scan"),
    Form("Delta, kernel", memories.DELTA, "kernel"),
    Form("Titans, sequential", memories.TITANS, "sequential"),
    Form("Omega, sequential", memories.RUNNING_OMEGA, "sequential"),
)


class Point(NamedTuple):
    """Time and memory of one size.

    Attributes:
        tokens: T.
        seconds: of a run, the median.
        peak, beyond_outputs: bytes at the peak beyond the inputs, and beyond inputs and outputs.
        ratio: of a judged form from `LINEAR_FROM` on, the time over that of `LINEAR_FROM` tokens,
            taken in turn.
    """

    tokens: int
    seconds: float
    peak: float
    beyond_outputs: float
    ratio: float = math.nan

    @property
    def floats(self) -> float:
        return self.beyond_outputs / 4 / (self.tokens * HEADS * D)


def report() -> Report:
    """The slopes and the memory of the judged forms, and the figure of all."""
    curves = {form.label: _measured(form) for form in FORMS}
    rows = [row for form in FORMS if form.judged for row in _rows(form, curves[form.label])]
    data = {
        label: [point._asdict() | {"floats": point.floats} for point in points]
        for label, points in curves.items()
    }
    return Report(rows, data, ("scaling.png", partial(_draw, curves)))


def _measured(form: Form) -> list[Point]:
    """Points of growing size, until the next one would be too long or too large."""
    limit = (30.0, 6e9) if form.judged else (1.0, 1.2e9)
    points: list[Point] = []
    reference: Work | None = None
    for tokens in SIZES:
        if points and not _affordable(points, limit):
            break
        points.append(_point(form, tokens, reference))
        if form.judged and tokens == LINEAR_FROM:
            reference = work(form.memory, "both", sequence(form.memory, tokens), form.form)
            points[-1] = points[-1]._replace(ratio=1.0)
    return points


def _affordable(points: list[Point], limit: tuple[float, float]) -> bool:
    """Whether the next size is likely to keep the limits of seconds and bytes.

    It is taken to grow as the last two sizes did, and at least in proportion to the tokens.
    """
    before, last = points[max(len(points) - 2, 0)], points[-1]
    seconds = last.seconds * max(last.seconds / before.seconds, 4)
    peak = last.peak * max(last.peak / before.peak, 4)
    return seconds <= limit[0] and peak <= limit[1]


def _point(form: Form, tokens: int, reference: Work | None = None) -> Point:
    """Measure one size: memory, which also warms up, then the median time of runs within a moment.

    With a reference three runs, two of the largest size, each between two samples of it. Work space
    belongs to a thread, and memory is taken in one of its own, so the thread that is timed runs
    once before.
    """
    run = work(form.memory, "both", sequence(form.memory, tokens), form.form)
    outputs = 0

    def once() -> None:
        nonlocal outputs
        outputs = memories.size_of(run())

    peak = peak_memory(once) * 1e6
    seconds = timer(run)
    if reference is not None:
        times = runs_within(reference, LEAD)
        if tokens < SIZES[-1]:  # the largest size has the work space of the one before it
            run()
        touch(round(peak))
        timing = alternated(
            seconds, timer(repeated(reference, times)), samples=2 if tokens == SIZES[-1] else 3
        )
        return Point(
            tokens,
            float(np.median(timing.ours)),
            peak,
            peak - outputs,
            times * float(np.median(timing.ratio)),
        )
    touch(round(peak))
    samples = [seconds()]
    while len(samples) < 5 and sum(samples) < MOMENT:
        samples.append(seconds())
    return Point(tokens, float(np.median(samples)), peak, peak - outputs)


def slope(points: list[Point]) -> float:
    """Slope of log time against log T, from `LINEAR_FROM` on; nan for fewer than two sizes."""
    some = [point for point in points if not math.isnan(point.ratio)]
    if len(some) < 2:
        return math.nan
    return float(
        np.polyfit(
            np.log([point.tokens for point in some]), np.log([point.ratio for point in some]), 1
        )[0]
    )


def _rows(form: Form, points: list[Point]) -> list[Row]:
    first, last = next(point for point in points if point.tokens >= LINEAR_FROM), points[-1]
    reached = f"forward and backward, {HEADS} heads, d = {D}, T = {first.tokens} to {last.tokens}"
    error = memories.errors(form.memory, form.form)[1]
    return [
        Row(
            f"{form.label}, time, {reached}",
            "s",
            Spread.one(last.seconds),
            f"T = {first.tokens}",
            Spread.one(first.seconds),
            Spread.one(slope(points)),
            Target("between", 0.9, high=1.1),
            error,
            note="wall time of the last size and of the first",
            meaning="as slope of log time against log T",
        ),
        Row(
            f"{form.label}, memory, {reached}",
            "floats",
            Spread.one(max(point.floats for point in points if point.tokens >= LINEAR_FROM)),
            f"T = {first.tokens}",
            Spread.one(first.floats),
            Spread.one(last.floats / first.floats),
            Target("at most", None, FLOATS),
            error,
            note="per token and channel beyond inputs and outputs, at its largest; the last size "
            f"peaks at {last.peak / 1e6:.0f} MB",
        ),
    ]


def _draw(curves: dict[str, list[Point]], path: Path) -> None:
    """Time and memory over T."""
    title = f"Forward and backward, {HEADS} heads, d = {D}, c = {memories.WINDOW}, float32"
    labels = [
        ("time", "tokens", "seconds"),
        ("memory beyond the inputs, at the peak", "tokens", "MB"),
    ]
    figure, (left, right) = plots.panels(2, title, labels)
    for which, (label, points) in enumerate(curves.items()):
        tokens = [point.tokens for point in points]
        look: dict[str, Any] = {"linestyle": "--"} if "sequential" in label else {}
        plots.line(left, tokens, [point.seconds for point in points], which, label, **look)
        plots.line(right, tokens, [point.peak / 1e6 for point in points], which, label, **look)
    channels = np.array([SIZES[0], SIZES[-1]]) * HEADS * D
    right.plot(
        [SIZES[0], SIZES[-1]], channels * 4 * FLOATS / 1e6, color="#bbbbbb", linestyle=":", zorder=0
    )
    right.annotate(
        f"{FLOATS} floats per token and channel",
        (SIZES[-2], channels[-1] * 4 * FLOATS / 1e6),
        ha="right",
        color="#777777",
        fontsize=8,
    )
    for ax in (left, right):
        plots.ticks(ax.xaxis, SIZES, [f"{size:,}" for size in SIZES])
    plots.save(figure, path, left)
