"""The figure of probe needle: accuracy by depth and length (EVAL-11)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas_ref.train.probes.needle import Cell


#: Nats of a full colour at least, so that noise stays pale.
FAINT = 0.1


def draw(out: Path, cells: tuple[Cell, ...]) -> None:
    """Write two maps, exact answers and nats that the needle gains; a frame where attention alone
    leads to it.
    """
    from matplotlib.figure import Figure

    from atlas_ref.cli.probe.figure import save

    lengths = list(dict.fromkeys(cell.length for cell in cells))
    depths = list(dict.fromkeys(cell.depth for cell in cells))
    figure = Figure(figsize=(11.0, 4.6), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    _map(figure, left, cells, lengths, depths, ("exact", "answers that are exact", "{:.0%}"))
    _map(
        figure,
        right,
        cells,
        lengths,
        depths,
        ("gain", "nats a token that the needle saves", "{:.2f}"),
    )
    figure.suptitle("framed: within reach of attention alone", fontsize=9)
    save(out, figure, "needle")


def _map(
    figure: Any,
    axes: Any,
    cells: tuple[Cell, ...],
    lengths: list[int],
    depths: list[float],
    what: tuple[str, str, str],
) -> None:
    from matplotlib.patches import Rectangle

    name, title, form = what
    by_place = {(cell.depth, cell.length): cell for cell in cells}
    values = [[getattr(by_place[d, n], name) for n in lengths] for d in depths]
    top = 1.0 if name == "exact" else max(FAINT, *(abs(each) for row in values for each in row))
    look = {"cmap": "viridis", "vmin": 0.0} if name == "exact" else {"cmap": "RdBu", "vmin": -top}
    picture = axes.imshow(values, vmax=top, aspect="auto", **look)
    figure.colorbar(picture, ax=axes)
    for i, d in enumerate(depths):
        for j, n in enumerate(lengths):
            text = form.format(round(values[i][j], 2) + 0.0)  # no -0.00
            colour = _readable(picture.to_rgba(values[i][j]))
            axes.text(j, i, text, ha="center", va="center", color=colour)
            if not by_place[d, n].beyond:
                axes.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, ec=colour))
    axes.set(title=title, xlabel="tokens", ylabel="depth of the needle, %")
    axes.set_xticks(range(len(lengths)), [str(each) for each in lengths])
    axes.set_yticks(range(len(depths)), [f"{each:g}" for each in depths])


def _readable(colour: tuple[float, float, float, float]) -> str:
    """Black or white, whichever is read on a colour."""
    red, green, blue, _ = colour
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
