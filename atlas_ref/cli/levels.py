"""The command levels: a block of frequency levels as the cases of its levels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import options, output


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(levels)


def levels(
    file: Annotated[Path, typer.Argument(metavar="CASE", help="a case of rule cms")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder for level0.safetensors, level1.safetensors, ...",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Make a case of each level of a block, with the results that the file records of it."""
    from atlas_ref.oracle.cases.case import CaseError, load, save
    from atlas_ref.oracle.cases.tensor_spec import BLOCK
    from atlas_ref.oracle.registry import SUBJECTS

    case = load(file)
    subject = SUBJECTS[case.header.rule]
    if not subject.has_levels:
        memory = not subject.has_parameters or subject.rule is not None
        raise CaseError(
            f"{file}: rule {case.title}: {'is one memory already' if memory else 'has no levels'}; "
            f"rule {BLOCK} has levels"
        )
    if why := subject.why_nothing(case.header):
        raise CaseError(f"{file}: rule {BLOCK}: {why}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaseError(f"{out}: cannot be made: {error.strerror}") from None
    level_cases = subject.parts(case)
    places = [out / f"level{number}.safetensors" for number in range(len(level_cases))]
    for place in places:
        options.refuse_same(place, file)
    for number, part in enumerate(level_cases):
        prefix = f"out/level{number}/"
        recorded = {
            "out/" + name.removeprefix(prefix): value
            for name, value in case.recorded.items()
            if name.startswith(prefix)
        }
        save(places[number], part.header, {**part.inputs, **recorded})
    if as_json:
        output.emit_json({"case": str(file), "levels": [str(place) for place in places]})
    else:
        output.say(f"wrote {', '.join(map(str, places))}")
    return 0
