"""Curves of runs as a picture, by the extra `figures`.

Specified in specs/train.md (TRAIN-17).
"""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from atlas_ref import messages
from atlas_ref.storage import files
from atlas_ref.train import run

#: Unit of a picture -> key of a line of the log, and words of its axis.
UNITS = {"bits": ("bits_per_byte", "bits per byte"), "nats": ("loss", "nats per token")}

#: Endings of pictures, and of a table of the numbers.
KINDS = (".png", ".svg", ".csv")

#: Columns of that table beside the name of a run: of a step, and of an evaluation after it.
COLUMNS = ("step", "tokens", "loss", "bits_per_byte", "norm", "rate", "tokens_per_second")
HELD_OUT = ("loss", "bits_per_byte")


class Curve(NamedTuple):
    """The losses of a run by the tokens that it saw.

    Attributes:
        tokens, values: of steps, by unit.
        held_tokens, held_values: of evaluations.
        rows: of the table of numbers, by column.
    """

    name: str
    tokens: list[int]
    values: dict[str, list[float]]
    held_tokens: list[int]
    held_values: dict[str, list[float]]
    rows: list[dict[str, Any]]


def curve(folder: Path) -> Curve:
    """The curve of a run's log (TRAIN-17).

    Raises:
        ValueError: names the folder without a log, or without a step in it.
    """
    path = folder / run.LOG
    try:
        lines = run.lines(path)
        steps = [line for line in lines if "loss" in line]
        if not steps:
            raise ValueError("no log of a run with a step in it")
        at = {int(line["step"]): int(line["tokens"]) for line in steps}
        held = [line for line in lines if "held_out" in line and int(line["step"]) in at]
        return Curve(
            os.path.basename(os.path.realpath(folder)),
            [at[line["step"]] for line in steps],
            {unit: [float(each[key]) for each in steps] for unit, (key, _) in UNITS.items()},
            [at[line["step"]] for line in held],
            {
                unit: [float(each["held_out"][key]) for each in held]
                for unit, (key, _) in UNITS.items()
            },
            _rows(steps, {int(line["step"]): line["held_out"] for line in held}),
        )
    except KeyError as error:
        raise ValueError(f"{path}: a line has no {error}") from None
    except (TypeError, OverflowError):
        raise ValueError(f"{path}: a line has something else where a number is needed") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def has_steps(folder: Path) -> bool:
    """Whether a run has a log with a step in it."""
    return any("loss" in line for line in run.lines(folder / run.LOG))


def check(path: Path, unit: str) -> None:
    """Refuse another unit, or a name that ends in nothing that is drawn.

    Raises:
        ValueError: names it, and those that there are.
    """
    if unit not in UNITS:
        raise ValueError(messages.no_such("unit", unit, UNITS))
    if path.suffix not in KINDS:
        raise ValueError(f"{path}: a picture ends in {', '.join(KINDS[:-1])}, numbers in .csv")


def draw(path: Path, curves: Sequence[Curve], unit: str) -> None:
    """Write a picture of curves, or their numbers (TRAIN-17).

    Raises:
        ValueError: another unit or ending, a place that cannot be written, or the extra that is
            missing.
    """
    check(path, unit)
    kind = path.suffix.removeprefix(".")
    data = _table(curves) if kind == "csv" else _picture(curves, unit, kind)
    try:
        files.write_bytes(path, data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _rows(steps: list[dict[str, Any]], held: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps with the evaluation that came after each; what a line does not have stays empty."""
    return [
        {name: line.get(name) for name in COLUMNS}
        | {f"held_out_{name}": held.get(int(line["step"]), {}).get(name) for name in HELD_OUT}
        for line in steps
    ]


def _table(curves: Sequence[Curve]) -> bytes:
    """Numbers of all runs below one another, a line for each step, as CSV."""
    room = io.StringIO()
    names = ("run", *COLUMNS, *(f"held_out_{name}" for name in HELD_OUT))
    table = csv.DictWriter(room, names, lineterminator="\n")
    table.writeheader()
    for each in curves:
        table.writerows({"run": each.name, **row} for row in each.rows)
    return room.getvalue().encode("utf-8", "backslashreplace")


def _picture(curves: Sequence[Curve], unit: str, kind: str) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ValueError(
            f"a picture needs the package matplotlib: {messages.install('figures')}"
        ) from None
    figure: Any = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for each in curves:
        name = _label(each.name)
        (line,) = axes.plot(each.tokens, each.values[unit], lw=0.8, alpha=0.5, label=name)
        if each.held_tokens:
            axes.plot(
                each.held_tokens,
                each.held_values[unit],
                "o-",
                ms=3,
                color=line.get_color(),
                label=f"{name}, held out",
            )
    axes.set_xlabel("tokens")
    axes.set_ylabel(UNITS[unit][1])
    axes.legend(frameon=False)
    room = io.BytesIO()
    date = {"Date": None} if kind == "svg" else None
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of letters in no font
        figure.savefig(room, format=kind, dpi=150, metadata=date)
    return room.getvalue()


def _label(name: str) -> str:
    """A name as the library shows it: no formula, none that it hides, nothing that it cannot draw."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return (" " if shown.startswith("_") else "") + shown.replace("$", r"\$")
