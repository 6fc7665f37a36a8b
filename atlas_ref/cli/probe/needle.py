"""The command probe needle: facts that a trained model read once, by depth and length (EVAL-11)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_ref.cli import options, output

if TYPE_CHECKING:
    from atlas_ref.train.probes.needle import Cell, Settings
    from atlas_ref.train.trained import Trained


def register(probe: typer.Typer) -> None:
    """Add the command to its group."""
    probe.command("needle")(needle)


def needle(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="a model, a checkpoint, or the folder of a run")
    ],
    lengths: Annotated[str, typer.Option(metavar="N,N,...", help="tokens of a text")] = (
        "128,256,512"
    ),
    depths: Annotated[
        str, typer.Option(metavar="N,N,...", help="of the needle, in percent of the hay")
    ] = "0,25,50,75,100",
    samples: Annotated[int, typer.Option(min=1, help="texts of each length and depth")] = 8,
    digits: Annotated[int, typer.Option(min=1, help="of the number that is asked for")] = 4,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="PATH", help="Hay: file or folder of text; else held out."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of the library tokenizers; else the run's, or bytes."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="PNG|SVG", help="Draw the heat maps into this file."),
    ] = None,
    backend: options.Backend = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """How often a trained model finds a fact that its text states once, by depth and length."""
    from atlas_ref.cli.models.files import bad_input, refuse_place
    from atlas_ref.cli.probe import figure, heat
    from atlas_ref.train import trained
    from atlas_ref.train.probes import needle as library
    from atlas_ref.train.use import held

    given = {
        "lengths": options.numbers("--lengths", lengths),
        "depths": options.numbers("--depths", depths),
        "samples": samples,
        "digits": digits,
        "seed": seed,
    }
    with bad_input():
        if out is not None:
            figure.refuse(out)
            refuse_place(out)
        settings = _settings(given)
        own = trained.load(model, tokenizer=tokenizer)
        hay = held.corpus(own, data or ())
        with output.progress({"cells": "cells"}) as progress:
            cells = library.measure(own, hay, settings, progress=progress)
        leaning = _contribution(own, hay, settings)
        if out is not None:
            heat.draw(out, cells)
    about = {
        "exit": 0,
        "model": str(model),
        "reach": library.reach(own.config),
        "cells": [cell._asdict() for cell in cells],
        "contribution": leaning,
        "out": None if out is None else str(out),
    }
    if as_json:
        output.emit_json(about)
    else:
        _emit(cells, about)
    return 0


def _settings(given: dict[str, Any]) -> Settings:
    from atlas_ref.messages import in_one_line
    from atlas_ref.train.probes.needle import Settings

    with in_one_line("probe needle: "):
        return Settings.model_validate(given)


def _contribution(own: Trained, hay: Any, settings: Settings) -> dict[str, Any]:
    """Seed 001's probe over rows of the greatest length, and what it is not (EVAL-11)."""
    from atlas_ref.train.use import measure

    fields = [
        each.attention for each in own.config.blocks if "attention" in type(each).model_fields
    ]
    window = max((each.window for each in fields), default=0)
    try:
        how = measure.Settings(
            rows=settings.samples,
            tokens=max(settings.lengths) - 1,
            batches=1,
            skip=window,
            without=("memory",),
        )
        (found,) = measure.evaluate(own, hay, how).without
    except ValueError as error:
        return {"window": window, "percent": None, "why": str(error)}
    return {"window": window, "percent": found.contribution, "why": found.why}


def _emit(cells: tuple[Cell, ...], about: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="needles that a model finds, by length and depth")
    heads = ("tokens", "depth", "exact", "digits", "chance", "nats", "gain", "distance", "beyond")
    for name in heads:
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(
            str(cell.length),
            f"{cell.depth:g} %",
            f"{cell.exact:.2f}",
            f"{cell.tokens:.2f}",
            f"{cell.chance:.2f}",
            f"{cell.loss:.3f}",
            f"{cell.gain:+.3f}",
            str(cell.distance),
            "yes" if cell.beyond else "no",
        )
    output.emit_rich(table)
    output.say(
        f"beyond: further back than the {about['reach']} tokens that attention alone leads to; "
        "chance: exact without the needle; gain: nats a token that the needle saves"
    )
    leaning = about["contribution"]
    told = leaning["why"] or f"{leaning['percent']:+.2f} % of perplexity"
    output.say(
        f"contribution of memory behind the first {leaning['window']} tokens: {told}; it says that "
        "the model leans on its memory there, not that it finds anything"
    )
    if about["out"] is not None:
        output.say(f"wrote {about['out']}")
