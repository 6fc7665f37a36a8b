"""python -m benchmarks [name ...] [--json FILE]"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row, Spread, Target, machine

NAMES = ("omega", "newton_schulz", "tape", "startup")


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(NAMES)}; all of them unless given")] = None,
    to: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures to a file.")] = None,
) -> None:
    """Speed, each figure beside a reference of the same run, and the error against float64 beside the time."""
    for name in names or []:
        if name not in NAMES:
            raise typer.BadParameter(f"{name} is none of {', '.join(NAMES)}")
    here = machine()
    rows: list[Row] = []
    console = Console()
    if not console.is_terminal:  # a file has no width of its own
        console = Console(width=200)
    console.print(", ".join(f"{key} {value}" for key, value in here.items()), highlight=False)
    for name in names or NAMES:
        with console.status(name):
            rows += importlib.import_module(f"benchmarks.{name}").rows()
    console.print(_table(rows))
    if to is not None:
        to.write_text(json.dumps({"machine": here, "rows": [_plain(row) for row in rows]}, indent=2) + "\n")


def _table(rows: list[Row]) -> Table:
    table = Table("what", "ours", "reference", "its", "ratio (quartiles)", "target", "error", "its", "how", show_lines=True)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.ours.median:.3g} {row.unit}",
            row.reference,
            f"{row.theirs.median:.3g} {row.unit}",
            _quartiles(row.ratio),
            _verdict(row),
            _error(row.error),
            _error(row.reference_error),
            row.note,
        )
    return table


def _quartiles(ratio: Spread) -> str:
    return f"{ratio.median:.3g} ({ratio.low:.3g} to {ratio.high:.3g})"


def _verdict(row: Row) -> str:
    if row.target is None:
        return ""
    bound = f"{row.target.sense} {row.target.ratio:g}" + (f", {row.target.ours:g} {row.unit}" if row.target.ours is not None else "")
    return f"{bound}: " + ("[green]met[/]" if row.target.met(row.ours.median, row.ratio.median) else "[bold red]missed[/]")


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _plain(row: Row) -> dict[str, Any]:
    parts = {name: value._asdict() if isinstance(value, Spread | Target) else value for name, value in row._asdict().items()}
    if row.target is not None:
        parts["met"] = row.target.met(row.ours.median, row.ratio.median)
    return parts


if __name__ == "__main__":
    typer.run(main)
