"""The command plot: the curves of one run or several, as a picture.

Specified in specs/train.md (TRAIN-17).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import output
from atlas_ref.cli.models.files import bad_input, refuse_place


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plot)


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of train")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Picture: .png or .svg; or the numbers: .csv."
        ),
    ],
    unit: Annotated[str, typer.Option(help="bits: per byte; nats: per token")] = "bits",
    watch: Annotated[
        bool,
        typer.Option(help="Draw again while steps come in, until the runs end or you interrupt."),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --watch, between two looks.")
    ] = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Draw the losses of runs against the tokens that they saw, held-out text as points."""
    from atlas_ref.train.shown import curve

    with bad_input():
        refuse_place(out)
        curve.check(out, unit)
        if watch:
            _watch(runs, out, unit, every)
        found = [curve.curve(each) for each in runs]
        curve.draw(out, found, unit)
    if as_json:
        about = [
            {"run": str(run), "steps": len(each.tokens), "held_out": len(each.held_tokens)}
            for run, each in zip(runs, found, strict=True)
        ]
        output.emit_json({"out": str(out), "runs": about})
        return 0
    output.say(f"wrote {out}")
    return 0


def _watch(runs: list[Path], out: Path, unit: str, every: float) -> None:
    """Draw runs whenever their logs have grown, until all have ended or an interrupt comes."""
    from atlas_ref.cli.train.progress import stopping
    from atlas_ref.train import run
    from atlas_ref.train.shown import curve

    for each in runs:
        run.settings_of(each)  # a folder without a run would be waited for without an end
    drawn: list[int] = []
    with stopping() as stopped:
        while not stopped():
            sizes = [_size(each / run.LOG) for each in runs]
            if sizes != drawn and all(curve.has_steps(each) for each in runs):
                drawn = sizes
                found = [curve.curve(each) for each in runs]
                curve.draw(out, found, unit)
                output.say(f"wrote {out}: {', '.join(f'{len(e.tokens)} steps' for e in found)}")
            if all(run.is_finished(each) for each in runs):
                return
            time.sleep(every)


def _size(path: Path) -> int:
    """Bytes of a file; 0 of one that is not there yet."""
    return path.stat().st_size if path.exists() else 0
