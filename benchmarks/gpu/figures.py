"""Pictures of a run: time over T for every side, and our forms' share of the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.gpu.results import BATCH, Figure, Found

KINDS = {"forward": "forward", "both": "forward and backward"}


COLUMNS = 4


def draw(found: Found, out: Path) -> Iterator[Path]:
    """One picture for each number of heads and d with more than one T.

    It has a panel for each subject and pass.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ran = [each for each in found.figures if each.skipped is None and each.subject != BATCH]
    for heads, d in dict.fromkeys((each.heads, each.d) for each in ran):
        some = [each for each in ran if (each.heads, each.d) == (heads, d)]
        if len({each.tokens for each in some}) > 1:
            path = out / f"time-{heads}-heads-d-{d}.png"
            _panels(
                some,
                f"{heads} heads, d = {d}"
                + ("" if found.machine.get("measured") else " - on a CPU: no GPU was measured"),
                path,
            )
            yield path


def _panels(figures: list[Figure], title: str, path: Path) -> None:
    """Time over T; one colour and marker for a side throughout, broken lines for references."""
    places = list(
        dict.fromkeys(
            (each.kind, each.subject)
            for each in sorted(figures, key=lambda each: list(KINDS).index(each.kind))
        )
    )
    labels = list(dict.fromkeys(each.label for each in figures))
    names = [(f"{subject}, {KINDS[kind]}", "tokens", "ms") for kind, subject in places]
    figure, axes = plots.panels(len(places), title, names, COLUMNS)
    for ax, place in zip(axes, places, strict=True):
        own = [each for each in figures if (each.kind, each.subject) == place]
        for label in labels:
            line = sorted(
                (each.tokens, 1e3 * each.seconds.median, each.ours)
                for each in own
                if each.label == label
            )
            if line:
                look: dict[str, Any] = {} if line[0][2] else {"linestyle": "--"}
                plots.line(
                    ax,
                    [each[0] for each in line],
                    [each[1] for each in line],
                    labels.index(label),
                    label,
                    **look,
                )
        tokens = sorted({each.tokens for each in own})
        plots.ticks(ax.xaxis, tokens, [f"{size:,}" for size in tokens])
    _legend(figure, axes, path)


def _legend(figure: Any, axes: list[Any], path: Path) -> None:
    """Every side once, wherever it stands."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, word in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(word, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    plots.save(figure, path)
