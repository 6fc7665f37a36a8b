"""One look for all pictures, in the light theme and the dark one.

Text and lines take the colour of the page's text.
"""

from __future__ import annotations

import io
import re
from typing import Any

#: Colours in the middle, which stand out from white and from a dark page alike, and which the
#: colour-blind can tell apart.
COLOURS = ("#2f8fd8", "#e0702a", "#17a67b", "#cc6fb0", "#b59b00", "#8b7ff0", "#c44e52", "#5b9aa0")
MARKERS = "osD^vP*X"
#: Stands for the colour of the page's text until the SVG is written.
TEXT = "#0a0b0c"
LOOK: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "legend.labelcolor",
        ),
        TEXT,
    ),
}


def figure(
    columns: int = 1, rows: int = 1, *, width: float = 8.4, height: float = 4.2, **settings: Any
) -> tuple[Any, Any]:
    """A figure without background, and its axes as an array."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(LOOK):
        drawing = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        axes = drawing.subplots(rows, columns, squeeze=False, **settings)
        for ax in axes.flat:
            ax.set_facecolor("none")
            ax.set_axisbelow(True)
            ax.grid(True, color=TEXT, alpha=0.15, linewidth=0.8)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
    return drawing, axes


def legend(ax: Any, **settings: Any) -> None:
    """The legend, in the colour of the text."""
    ax.legend(frameon=False, labelcolor=TEXT, **settings)


def svg(drawing: Any, name: str, title: str) -> str:
    """The SVG of a figure, with the same bytes for the same numbers.

    Its ids are unique on the page, and its title is there to be read aloud.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context(LOOK | {"svg.hashsalt": name}):
        drawing.savefig(
            out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
    text = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    return finished(text, name, title)


def finished(text: str, name: str, title: str) -> str:
    """An SVG element for a page, with ids of its own, the page's text colour and a title.

    It has a shape and no size.
    """
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = text.replace(TEXT, "currentColor")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return re.sub(r"(<svg[^>]*)>", rf'\1 role="img" aria-label="{title}">', text, count=1)
