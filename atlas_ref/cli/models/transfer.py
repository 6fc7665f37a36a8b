"""The commands model import and model export: models of other programs in safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import options, output
from atlas_ref.cli.models.files import bad_input, named, parameters, refuse_place, settings
from atlas_ref.cli.models.programs import NAMES, beginning, format_of

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

#: How the settings of an import are told, in the words of its output.
WORDS = {"shapes": "read from the tensors", "given": "stated", "default": "defaults"}


def register(model: typer.Typer) -> None:
    """Add the commands to their group."""
    model.command("import")(import_)
    model.command()(export)


def import_(
    file: Annotated[Path, typer.Argument(help="a state_dict in a safetensors file")],
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PROGRAM",
            autocompletion=beginning,
            help=f"What it is a model of: {NAMES}.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="File for the model.")],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Arguments of its constructor that no shape tells, as omega_window and "
            "window_size; else those of the file's metadata, else their defaults.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Make a model from the parameters of another program. Exit code 2 if it does not fit."""
    from atlas_ref.models import checkpoint

    program = format_of(origin, "--from")
    options.refuse_same(out, file, what="state_dict")
    if config is not None:
        options.refuse_same(out, config, what="file of settings")
    with bad_input():
        refuse_place(out)
        found = program.read(file, {} if config is None else settings(config))
        source = program.source(found.told)
        checkpoint.save(out, found.config, found.params, source=source, initial=found.initial)
    count, told = parameters(found.params), program.settings(found.told)
    if as_json:
        by = {name: each._asdict() for name, each in told.items()}
        output.emit_json(
            {"exit": 0, "file": str(file), "out": str(out), "parameters": count, "settings": by}
        )
        return 0
    for word, text in WORDS.items():
        group = {name: each.value for name, each in told.items() if each.by == word}
        if group:
            output.say(f"{text}: {output.words(group)}")
    output.say(f"wrote {out}: {count} parameters")
    return 0


def export(
    file: Annotated[Path, typer.Argument(metavar="MODEL", help="a model, as import writes it")],
    destination: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PROGRAM",
            autocompletion=beginning,
            help=f"What it shall be a model of: {NAMES}.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="File for the state_dict.")
    ],
    as_json: Json = False,
) -> int:
    """Write a model as another program loads it. Exit code 2 if that program has no such model."""
    from atlas_ref.models import checkpoint

    program = format_of(destination, "--to")
    options.refuse_same(out, file, what="model")
    with bad_input():
        refuse_place(out)
        found = checkpoint.read(file)
        with named(file):
            arguments = program.write(out, found)
    if as_json:
        output.emit_json({"exit": 0, "file": str(file), "out": str(out), "arguments": arguments})
    else:
        output.say(f"arguments of its constructor: {output.words(arguments)}")
        output.say(f"wrote {out}: {parameters(found.params)} parameters")
    return 0
