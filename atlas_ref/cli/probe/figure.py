"""The figure of probe capacity: recalled pairs over the number of pairs (PROBE-15)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas_ref.train.probes.capacity import Settings
    from atlas_ref.train.probes.curve import Point

#: Colours that the colour-blind can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = "osD^vP"


def refuse(out: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is measured.

    Raises:
        ValueError: another ending than .png and .svg; matplotlib is not installed.
    """
    from importlib.util import find_spec

    from atlas_ref.messages import install

    if out.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"{out}: a figure ends in .png or .svg")
    if find_spec("matplotlib") is None:
        raise ValueError(
            f"{out}: matplotlib is needed, which is not installed: {install('figures')}"
        )


def draw(out: Path, curves: list[tuple[Settings, int, tuple[Point, ...]]]) -> None:
    """Write both readings of recall, each curve with its limit and its expectation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 5.2), dpi=130, layout="constrained")
    axes = figure.subplots(1, 2)
    bound = curves[0][0].bound
    for ax, title in zip(axes, ("by angle", f"by error, at most {bound:g}"), strict=True):
        ax.set(title=f"recalled {title}", xlabel="pairs written", ylabel="pairs recalled")
        ax.grid(True, color="#dddddd", linewidth=0.8)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    for place, (settings, limit, points) in enumerate(curves):
        _line(axes, place, settings.memory, limit, points)
    for ax in axes:
        ends = sorted({point.pairs for _, _, points in curves for point in points})
        ax.plot(ends, ends, color="#999999", linewidth=0.8, linestyle=":", label="all")
    handles, words = axes[0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(out, figure, "capacity")


def save(out: Path, figure: Any, name: str) -> None:
    """Write a figure, with the same bytes each time.

    Args:
        name: of the probe, from which names inside an SVG come.

    Raises:
        ValueError: names the file that cannot be written.
    """
    from matplotlib import rc_context

    from atlas_ref.cli.models.files import named
    from atlas_ref.storage.files import write_bytes

    kind, stream = out.suffix.lower().removeprefix("."), io.BytesIO()
    date: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(stream, format=kind, metadata=date)
    with named(out):
        write_bytes(out, stream.getvalue())


def _line(axes: Any, place: int, name: str, limit: int, points: tuple[Point, ...]) -> None:
    """One memory: measured with marks, expected dashed, the limit a thin line."""
    counts = [point.pairs for point in points]
    look = {"color": COLOURS[place % len(COLOURS)], "linewidth": 1.6}
    marks = {**look, "marker": MARKERS[place % len(MARKERS)], "markersize": 5}
    axes[0].plot(counts, [point.by_angle for point in points], label=name, **marks)
    axes[1].plot(counts, [point.by_error for point in points], **marks)
    expected = [(p.pairs, p.expected_by_angle) for p in points if p.expected_by_angle is not None]
    if expected:
        label = f"{name}, expected"
        axes[0].plot(*zip(*expected, strict=True), label=label, **{**look, "linestyle": "--"})
    if limit <= max(counts):
        axes[1].axhline(limit, **{**look, "linewidth": 0.8, "linestyle": ":"})
