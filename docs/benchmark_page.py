"""The page of benchmarks: rows and figures of the last `make bench` here, or how to make them."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from docs import cells

FIGURES = Path("build/bench")
ROWS = FIGURES / "bench.json"
HEAD = """---
hide: [toc]
---

# Benchmarks

Speed is measured by `make bench`, each figure beside the bare loop of the same run and its error;
[what is measured and how](../benchmarks/README.md), and [on a GPU](../benchmarks/gpu/README.md).

"""
NONE = """No run is kept here. `make bench` writes its figures and `bench.json` to `build/bench` in five to ten minutes;
the site shows them when it is made the next time.
"""


def page(root: Path) -> str:
    """The page of the last run, figures first."""
    parts = [f"![{each.stem}](../bench/{each.name})\n" for each in figures(root)]
    if (root / ROWS).is_file():
        parts += _rows(json.loads((root / ROWS).read_text()))
    return HEAD + ("\n".join(parts) or NONE)


def figures(root: Path) -> list[Path]:
    """Figures that `make bench` drew."""
    return sorted((root / FIGURES).glob("*.png"))


def _rows(run: dict[str, Any]) -> list[str]:
    """The machine of a run, and its rows with median and quartiles of the ratio.

    A figure that was not measured stays empty.
    """
    machine = ", ".join(
        f"{key} {value}" for key, value in run["machine"].items() if not isinstance(value, dict)
    )
    rows = [
        (
            html.escape(row["name"]),
            _figure(row["ours"]["median"], row["unit"]),
            html.escape(row["reference"]),
            _figure(row["theirs"]["median"], row["unit"]),
            _ratio(row),
            _figure(row["error"], ""),
            html.escape(row["note"]),
        )
        for row in run["rows"]
    ]
    head = ("what", "ours", "reference", "its", "ratio (quartiles)", "error", "how")
    return [f"{html.escape(machine)}\n", cells.table(head, rows)]


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g} {unit}".rstrip()


def _ratio(row: dict[str, Any]) -> str:
    low, median, high = (row["ratio"][key] for key in ("low", "median", "high"))
    if median is None:
        return ""
    return (
        f"{median:.3g}"
        + (f" {html.escape(row['meaning'])}" if row["meaning"] else "")
        + (f" ({low:.3g} to {high:.3g})" if low < high else "")
    )
