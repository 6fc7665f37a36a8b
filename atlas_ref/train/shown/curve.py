"""Curves of runs as a picture, by the extra `figures`.

Specified in specs/train.md (TRAIN-17).
"""

from __future__ import annotations

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

#: Endings of pictures.
KINDS = (".png", ".svg")


class Curve(NamedTuple):
    """The losses of a run by the tokens that it saw.

    Attributes:
        tokens, values: of steps, by unit.
        held_tokens, held_values: of evaluations.
    """

    name: str
    tokens: list[int]
    values: dict[str, list[float]]
    held_tokens: list[int]
    held_values: dict[str, list[float]]


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
        )
    except KeyError as error:
        raise ValueError(f"{path}: a line has no {error}") from None
    except (TypeError, OverflowError):
        raise ValueError(f"{path}: a line has something else where a number is needed") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def draw(path: Path, curves: Sequence[Curve], unit: str) -> None:
    """Write a picture of curves (TRAIN-17).

    Raises:
        ValueError: another unit or ending, a place that cannot be written, or the extra that is
            missing.
    """
    if unit not in UNITS:
        raise ValueError(messages.no_such("unit", unit, UNITS))
    if path.suffix not in KINDS:
        raise ValueError(f"{path}: a picture ends in {' or '.join(KINDS)}")
    data = _picture(curves, unit, path.suffix.removeprefix("."))
    try:
        files.write_bytes(path, data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


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
