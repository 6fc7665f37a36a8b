"""The command model identify: the readings under which a recorded whole is right.

Specified in specs/modules.md (MODULES-15, MODULES-17).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import output


def register(model: typer.Typer) -> None:
    """Add the command to its group."""
    model.command()(identify)


def identify(
    file: Annotated[
        Path, typer.Argument(metavar="RECORDING", help="inputs and results of a layer or model")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Name the readings of layers under which a layer, block or model gives its results. Exit code
    1 if none was found.
    """
    from atlas_ref.oracle.modules.identify import identify_recording
    from atlas_ref.oracle.modules.recording import load_recording

    recording = load_recording(file)
    with output.progress({"readings": "readings compared"}) as progress:
        found = identify_recording(recording, progress=progress)
    code = 0 if found.has_fit else 1
    if as_json:
        output.emit_json(
            {
                "exit": code,
                "recording": str(file),
                "readings": [change.value_words() for change in found.changes],
                "alike": list(found.alike),
                "ratio": found.ratio,
                "words": found.words,
            }
        )
        return code
    output.emit_rich(found.words)
    return code
