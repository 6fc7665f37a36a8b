"""Distance of the frozen rule from the running one, over the span and the step size.

The frozen reference is what makes a rule parallel, and it changes the rule: residuals of a span are
taken under the memory of its start. Both rules run here in float64 on the same tokens, an Omega
memory without Newton-Schulz whose step size is the same at every token; the distance is that of all
reads, relative to those of the running rule. It is zero at span 1 and first order in the step size,
and where the frozen rule is unstable it knows no bound.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref import forms as parallel
from atlas_ref.conventions import resolve
from atlas_ref.rules import omega, sequence
from benchmarks import plots
from benchmarks.measure import Report, Row, Spread

HEADS, D, WINDOW, TOKENS = 4, 16, 4, 256
SPANS = (1, 2, 4, 8, 16, 32, 64)
STEPS = tuple(float(f"{step:.3g}") for step in np.geomspace(1e-3, 1.0, 10))
# the figure ends there: what is further away has left the running rule altogether, and is drawn at
# the edge
TOP = 1e3

#: Distances by span, then by step size; None where the frozen rule overflows.
Distances = dict[int, list[float | None]]


def report() -> Report:
    """The distances, their order in the step size, and the figure."""
    distances: Distances = {span: [] for span in SPANS}
    for step in STEPS:
        running = _reads(step)
        for span in SPANS:
            apart = float(np.linalg.norm(_reads(step, span) - running) / np.linalg.norm(running))
            distances[span].append(apart if math.isfinite(apart) else None)
    data = {"step_sizes": STEPS, "distances": distances}
    return Report(
        [_nothing_at_span_one(distances), *(_order(span, distances) for span in (8, 64))],
        data,
        ("distance.png", partial(_draw, distances)),
    )


def _reads(step: float, span: int | None = None) -> Any:
    """Reads of the running rule, or of the one frozen for a span."""
    convention = resolve(
        {"newton_schulz": "none", "reference": "running" if span is None else "chunk_start"},
        rule="omega",
    )
    config = omega.Config(d_in=D, d_out=D, window=WINDOW, span=span, convention=convention)
    draw = np.random.default_rng(0)
    k, v, q = draw.standard_normal((3, HEADS, TOKENS, D))
    k, q = (rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in (k, q))
    retain, momentum = 1 / (1 + np.exp(-draw.normal([[[3.0]], [[2.0]]], 1.0, (2, HEADS, TOKENS))))
    tokens = sequence.Tokens(
        k=k, v=v, q=q, retain=retain, momentum=momentum, step_size=np.full((HEADS, TOKENS), step)
    )
    with np.errstate(all="ignore"):  # an unstable rule may overflow, and that is its distance
        start = omega.start(config, (HEADS,))
        return parallel.run(
            omega.RULE, config, tokens, start, form="sequential" if span is None else "chunkwise"
        )[1]


def _title(what: str) -> str:
    return (
        f"frozen against running Omega, {what}, {HEADS} heads, d = {D}, c = {WINDOW}, T = "
        f"{TOKENS}, float64"
    )


def _nothing_at_span_one(distances: Distances) -> Row:
    worst = max(math.inf if each is None else each for each in distances[1])
    return Row(
        _title("span 1"),
        "relative",
        Spread.one(worst),
        "",
        Spread.one(),
        Spread.one(),
        note="largest distance over all step sizes",
    )


def _order(span: int, distances: Distances) -> Row:
    """log distance over log step size, between the two smallest step sizes."""
    first, second = distances[span][:2]
    order = (
        math.nan
        if not (first and second)
        else math.log(second / first) / math.log(STEPS[1] / STEPS[0])
    )
    return Row(
        _title(f"span {span}"),
        "relative",
        Spread.one(math.nan if first is None else first),
        "first order in the step size",
        Spread.one(),
        Spread.one(order),
        note=f"distance at the step size {STEPS[0]:g}",
        meaning="as order",
    )


def _draw(distances: Distances, path: Path) -> None:
    """The distance over the step size for each span, and over the span for some step sizes."""
    title = f"Frozen against running reference: Omega, d = {D}, c = {WINDOW}, T = {TOKENS}"
    labels = [
        ("over the step size, for each span", "step size", "relative distance of the reads"),
        ("over the span, for some step sizes", "span", "relative distance of the reads"),
    ]
    figure, (left, right) = plots.panels(2, title, labels)
    spans = [span for span in SPANS if span > 1]  # at span 1 the distance is zero

    def height(distance: float | None) -> float:
        return TOP if distance is None else min(distance, TOP)

    for which, span in enumerate(spans):
        plots.line(left, STEPS, [height(each) for each in distances[span]], which, f"span {span}")
    for which, index in enumerate(range(0, len(STEPS), 3)):
        plots.line(
            right,
            spans,
            [height(distances[span][index]) for span in spans],
            which + len(spans),
            f"step size {STEPS[index]:g}",
        )
    for ax in (left, right):
        ax.set_ylim(top=2 * TOP)
        ax.axhline(1.0, color="#bbbbbb", linestyle=":", zorder=0)
        ax.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    left.annotate(f"{TOP:g} and beyond", (STEPS[0], 1.15 * TOP), color="#777777", fontsize=8)
    plots.ticks(right.xaxis, spans)
    plots.save(figure, path)
