"""The commands model import and model export: models of other programs in safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import options, output
from atlas_ref.cli.models.files import (
    PROGRAMS,
    bad_input,
    named,
    parameters,
    programs,
    refuse_place,
    settings,
)
from atlas_ref.messages import meant

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
            autocompletion=programs,
            help="What it is a model of: atlas-rnn.",
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
    from atlas_ref.models import atlas_rnn_files, checkpoint

    _require(origin, "--from")
    options.refuse_same(out, file, what="state_dict")
    if config is not None:
        options.refuse_same(out, config, what="file of settings")
    with bad_input():
        refuse_place(out)
        found = atlas_rnn_files.read(file, {} if config is None else settings(config))
        source = atlas_rnn_files.source(found.told)
        checkpoint.save(out, found.config, found.params, source=source)
    count = parameters(found.params)
    values = found.told.settings.model_dump(mode="json")
    if as_json:
        by = {name: {"value": values[name], "by": word} for name, word in found.told.by.items()}
        output.emit_json(
            {"exit": 0, "file": str(file), "out": str(out), "parameters": count, "settings": by}
        )
        return 0
    for word, text in WORDS.items():
        group = {name: values[name] for name, told in found.told.by.items() if told == word}
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
            autocompletion=programs,
            help="What it shall be a model of: atlas-rnn.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="File for the state_dict.")
    ],
    as_json: Json = False,
) -> int:
    """Write a model as another program loads it. Exit code 2 if that program has no such model."""
    from atlas_ref.models import atlas_rnn_files, checkpoint

    _require(destination, "--to")
    options.refuse_same(out, file, what="model")
    with bad_input():
        refuse_place(out)
        found = checkpoint.read(file)
        with named(file):
            told = atlas_rnn_files.save(out, found)
    arguments = atlas_rnn_files.arguments(told)
    if as_json:
        output.emit_json({"exit": 0, "file": str(file), "out": str(out), "arguments": arguments})
    else:
        output.say(f"arguments of its constructor: {output.words(arguments)}")
        output.say(f"wrote {out}: {parameters(found.params)} parameters")
    return 0


def _require(program: str, option: str) -> None:
    with bad_input():
        if program not in PROGRAMS:
            raise ValueError(
                f"{option} {program}: unknown; {', '.join(PROGRAMS)} is known"
                f"{meant(program, PROGRAMS)}"
            )
