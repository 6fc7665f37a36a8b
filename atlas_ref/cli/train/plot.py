"""The command plot: the curves of one run or several, as a picture.

Specified in specs/train.md (TRAIN-17).
"""

from __future__ import annotations

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
        Path, typer.Option("--out", "-o", metavar="FILE", help="Picture: .png or .svg.")
    ],
    unit: Annotated[str, typer.Option(help="bits: per byte; nats: per token")] = "bits",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Draw the losses of runs against the tokens that they saw, held-out text as points."""
    from atlas_ref.train import curve

    with bad_input():
        refuse_place(out)
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
