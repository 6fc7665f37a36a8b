"""Command line of the benchmarks: python -m benchmarks [name ...] [--out DIR] [--json FILE]"""

from __future__ import annotations

import importlib
import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import kernels
from benchmarks.measure import Report, Row, Spread, Target, finite, machine, product_rate

NAMES = (
    "omega",
    "newton_schulz",
    "tape",
    "startup",
    "diagnosis",
    "certify",
    "loop",
    "dplr",
    "parallel",
    "cms",
    "layers",
    "deep",
    "tnt",
    "models",
    "optim",
    "peers",
    "scaling",
    "distance",
)
OUT = Path("build/bench")


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(NAMES)}; all of them unless given")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the figures and bench.json go.")
    ] = OUT,
    to: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the JSON there instead.")
    ] = None,
) -> None:
    """Speed, each figure beside a reference of the same run, and the error against float64 beside
    the time.
    """
    for name in names or []:
        if name not in NAMES:
            raise typer.BadParameter(f"{name} is none of {', '.join(NAMES)}")
    here = machine()
    console = Console()
    if not console.is_terminal:  # a file has no width of its own
        console = Console(width=200)
    console.print(", ".join(f"{key} {value}" for key, value in here.items()), highlight=False)
    here["advice"] = kernels.advice()
    if here["advice"]:
        console.print(here["advice"], highlight=False)
    here["product_rate"] = product_rate()._asdict()
    console.print(
        (
            "float32 product of 2048 x 2048: {low:.0f}, {median:.0f}, {high:.0f} GFLOP/s "
            "(quartiles)"
        ).format(**here["product_rate"])
    )
    reports: dict[str, Report] = {}
    seconds: dict[str, float] = {}
    for name in names or NAMES:
        start = time.perf_counter()
        with console.status(name):
            module = importlib.import_module(f"benchmarks.{name}")
            reports[name] = module.report() if hasattr(module, "report") else Report(module.rows())
        seconds[name] = round(time.perf_counter() - start, 1)
        console.print(_table(reports[name].rows))  # now: a later part may fail
    rows = [row for report in reports.values() for row in report.rows]
    for line in _targets(rows):
        console.print(line, highlight=False)
    console.print(
        "seconds: " + ", ".join(f"{name} {spent}" for name, spent in seconds.items()),
        highlight=False,
    )
    for path in _written(here, reports, seconds, out, to):
        console.print(f"written: {path}", highlight=False)


def _written(
    here: dict[str, Any],
    reports: dict[str, Report],
    seconds: dict[str, float],
    out: Path,
    to: Path | None,
) -> list[Path]:
    """The figures and the JSON file."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [to or out / "bench.json"]
    rows = [_plain(row) for report in reports.values() for row in report.rows]
    data = {
        name: finite(report.data) for name, report in reports.items() if report.data is not None
    }
    paths[0].write_text(
        json.dumps(
            {"machine": here, "seconds": seconds, "rows": rows, "data": data},
            indent=2,
            allow_nan=False,
        )
        + "\n"
    )
    for report in reports.values():
        if report.draw is not None:
            file, draw = report.draw
            try:
                draw(out / file)
            except ImportError as error:
                print(f"not drawn: {out / file}: {error}")
            else:
                paths.append(out / file)
    return paths


def _table(rows: list[Row]) -> Table:
    table = Table(
        "what",
        "ours",
        "reference",
        "its",
        "ratio (quartiles)",
        "target",
        "error",
        "its",
        "how",
        show_lines=True,
    )
    for row in rows:
        table.add_row(
            row.name,
            _figure(row.ours, row.unit),
            escape(row.reference),
            _figure(row.theirs, row.unit),
            _ratio(row),
            _verdict(row),
            _error(row.error),
            _error(row.reference_error),
            escape(row.note),
        )
    return table


def _figure(spread: Spread, unit: str) -> str:
    return "" if math.isnan(spread.median) else f"{spread.median:.3g} {unit}"


def _ratio(row: Row) -> str:
    low, median, high = row.ratio
    if math.isnan(median):
        return ""
    return (
        f"{median:.3g}"
        + (f" {row.meaning}" if row.meaning else "")
        + (f" ({low:.3g} to {high:.3g})" if low < high else "")
    )


def _bound(row: Row) -> str:
    """The target in words: "at least 0.5 of its rate", "at most 80 MB"."""
    target = row.target
    if target is None:
        return ""
    parts = []
    if target.ratio is not None:
        upper = f" and {target.high:g}" if target.sense == "between" else ""
        parts.append(
            f"{target.sense} {target.ratio:.3g}{upper}" + (f" {row.meaning}" if row.meaning else "")
        )
    if target.ours is not None:
        parts.append(f"at most {target.ours:g} {row.unit}")
    return ", ".join(parts)


def _verdict(row: Row) -> str:
    if row.target is None:
        return ""
    if not row.measured:
        return f"{_bound(row)}: not measured"
    return f"{_bound(row)}: " + ("[green]met[/]" if row.met else "[bold red]missed[/]")


def _targets(rows: list[Row]) -> list[str]:
    """One line for each target: verdict, figure, target."""
    lines = []
    for row in rows:
        if row.target is None:
            continue
        verdict = "[green]met   [/]" if row.met else "[bold red]missed[/]"
        figure = _ratio(row) if row.target.ratio is not None else ""
        parts = [figure, _figure(row.ours, row.unit) if row.target.ours is not None else ""]
        figures = (
            ", ".join(part for part in parts if part)
            if row.measured
            else f"not measured ({escape(row.reference)})"
        )
        lines.append(
            f"{verdict if row.measured else 'open  '}  {escape(row.name)}: {figures}; target "
            f"{_bound(row)}"
        )
    return lines


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _plain(row: Row) -> dict[str, Any]:
    parts = {
        name: value._asdict() if isinstance(value, Spread | Target) else value
        for name, value in row._asdict().items()
    }
    if row.target is not None:
        parts["met"] = row.met if row.measured else None
    return {name: finite(value) for name, value in parts.items()}


if __name__ == "__main__":
    typer.run(main)
