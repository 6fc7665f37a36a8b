"""The look of the figures: one style, no global state, colours that the colour-blind can tell
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#6a3d9a",
    "#8c6d31",
    "#444444",
    "#999999",
)
MARKERS = "osD^vP*X<>"


def panels(
    count: int, title: str, labels: Sequence[tuple[str, str, str]], columns: int | None = None
) -> tuple[Any, list[Any]]:
    """A figure of log-log panels, side by side or in rows.

    Each panel has a title, a label of x and a label of y.
    """
    from matplotlib.figure import Figure

    columns = min(columns or count, count)
    rows = -(-count // columns)
    figure = Figure(
        figsize=(6.2 * columns, 6.0 * rows), dpi=150 if rows == 1 else 80, layout="constrained"
    )
    figure.suptitle(title, fontsize=13, fontweight="bold")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    axes, empty = places[:count], places[count:]
    for ax in empty:
        ax.set_axis_off()
    for ax, (name, x, y) in zip(axes, labels, strict=True):
        ax.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        ax.set_title(name, fontsize=11, loc="left")
        ax.grid(True, which="major", color="#dddddd", linewidth=0.8)
        ax.tick_params(which="both", color="#888888")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    return figure, axes


def line(
    ax: Any, x: Sequence[float], y: Sequence[float], which: int, label: str, **look: Any
) -> None:
    """One measured line; `which` chooses colour and marker."""
    settings = {
        "color": COLOURS[which % len(COLOURS)],
        "marker": MARKERS[which % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.6,
    } | look
    ax.plot(x, y, label=label, **settings)


def ticks(axis: Any, values: Sequence[float], words: Sequence[str] | None = None) -> None:
    """Ticks at these values alone, as plain numbers or words."""
    axis.set_ticks(
        list(values),
        labels=list(words) if words is not None else [f"{value:g}" for value in values],
    )
    axis.set_ticks([], minor=True)


def save(figure: Any, path: Path, legend_of: Any = None, columns: int = 3) -> None:
    """Write the figure, with the legend of one panel below all of them."""
    if legend_of is not None:
        handles, words = legend_of.get_legend_handles_labels()
        figure.legend(
            handles, words, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
    figure.savefig(path)
