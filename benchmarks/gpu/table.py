"""The results of a run as a table and as lines."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from benchmarks.gpu.results import BATCH, Check, Figure, Found, Ratio
from benchmarks.measure import Spread

NAMES = (
    "what",
    "pass",
    "side",
    "ms (quartiles)",
    "times faster than",
    "of bandwidth",
    "of matrix rate",
    "peak MB",
    "error",
    "note",
)
PASSES = {"forward": "forward", "both": "with backward"}


def table(found: Found) -> Table:
    """A row for each candidate that ran; a subject and its size are named once."""
    made = Table(*NAMES)
    before = ("", "")
    for figure in found.figures:
        if figure.skipped is not None:
            continue
        named = (what(figure), PASSES[figure.kind])
        if named[0] != before[0] and before[0]:
            made.add_section()
        shown = ("" if named[0] == before[0] else named[0], "" if named == before else named[1])
        before = named
        made.add_row(
            *(escape(each) for each in shown),
            escape(figure.label),
            milliseconds(figure.seconds),
            escape(_faster(figure, found.ratios)),
            _share(figure.bandwidth),
            _share(figure.rate),
            "" if math.isnan(figure.peak) else f"{figure.peak / 1e6:.0f}",
            _error(figure),
            escape(_note(figure)),
        )
    return made


def briefly(figure: Figure, ratios: list[Ratio]) -> str:
    """A candidate while the run goes on: time, error, and speed-up over each reference."""
    faster = _faster(figure, ratios)
    error = "" if figure.error is None else f", error {figure.error:.1e}"
    return f"{figure.label}, {PASSES[figure.kind]}: {1e3 * figure.seconds.median:.3g} ms{error}" + (
        f"; times faster than {faster}" if faster else ""
    )


def what(figure: Figure) -> str:
    """A subject with its sizes."""
    if figure.subject == BATCH:
        return f"{figure.subject}, {figure.heads} matrices, d = {figure.d}, {figure.storage}"
    return f"{figure.subject}, {figure.heads} heads, d = {figure.d}, T = {figure.tokens}"


def _error(figure: Figure) -> str:
    if figure.error is None:
        return ""
    return f"{figure.error:.1e}" if figure.right else f"[bold red]{figure.error:.1e}[/]"


def milliseconds(seconds: Spread) -> str:
    low, median, high = (1e3 * each for each in seconds)
    return f"{median:.3g} ({low:.3g} to {high:.3g})"


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2g}"


def _faster(figure: Figure, ratios: list[Ratio]) -> str:
    return ", ".join(
        f"{each.faster.median:.3g} {each.theirs.label}" for each in ratios if each.ours == figure
    )


def _note(figure: Figure) -> str:
    words = []
    if figure.copies:
        words.append(
            f"{figure.copies} copies between host and device in a run, those of its checks included"
        )
    if figure.first > 10 * figure.seconds.median and figure.first > 1:
        words.append(f"first run {figure.first:.0f} s")
    if figure.error is None:
        words.append("not compared at this size")
    return "; ".join(words)


def skipped(figures: list[Figure]) -> Iterator[str]:
    """One line for each reason why a candidate of a subject did not run.

    A line names the passes and sizes that it concerns.
    """
    places: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for figure in figures:
        if figure.skipped is not None:
            at = places.setdefault((figure.subject, figure.label, figure.skipped), {})
            at.setdefault(" x ".join(map(str, figure.size)), []).append(PASSES[figure.kind])
    for (subject, label, reason), sizes in places.items():
        shown = ", ".join(
            size + ("" if len(passes) == 2 else f" ({passes[0]})") for size, passes in sizes.items()
        )
        yield f"not run  {subject}, {label}: {reason}; heads x d x T: {shown}"


def checked(checks: list[Check]) -> Iterator[str]:
    """The number of comparisons within their bounds, and each that was not."""
    for against in dict.fromkeys(each.against for each in checks):
        some = [each for each in checks if each.against == against]
        worst = max(some, key=lambda each: each.error / each.bound)
        kept = sum(each.kept for each in some)
        yield (
            f"against {against}: {kept} of {len(some)} within their bounds; the nearest to "
            f"its bound is {worst.subject}, {worst.form}, "
            f"{worst.what}, {worst.dtype}: {worst.error:.1e} of {worst.bound:.1e}"
        )
        yield from (
            (
                f"  NOT KEPT  {each.subject}, {each.form}, {each.what}, {each.dtype}: "
                f"{each.error:.1e}, allowed {each.bound:.1e}"
            )
            for each in some
            if not each.kept
        )
