"""The command replay: every op of a recorded trace evaluated again, the first wrong one named."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import options, output


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(replay)


def replay(
    file: Annotated[Path, typer.Argument(metavar="CASE")],
    trace: Annotated[
        Path,
        typer.Option("--trace", metavar="MINE", help="Your trace/... tensors, any subset of them."),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="What your code works in: float64, float32, bfloat16, float16. Inputs are rounded "
            "to it.",
        ),
    ] = None,
    nearest: Annotated[
        bool, typer.Option(help="Search for the convention that explains the first wrong op.")
    ] = True,
    backend: options.Backend = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Evaluate every op of your trace again on the inputs that you recorded, and name the first
    wrong one.
    """
    with output.importing():
        from atlas_ref.oracle.cases.case import load
        from atlas_ref.oracle.replay import words
        from atlas_ref.oracle.replay.replay import exit_code, first_wrong, replay_file

    case = load(options.case_file(file))
    command = shlex.join(
        [
            "atlas-ref",
            "replay",
            str(file),
            "--trace",
            str(trace),
            *([] if dtype is None else ["--dtype", dtype]),
        ]
    )
    with output.progress({"readings": "readings compared"}) as progress:
        findings = replay_file(case, trace, dtype=dtype, nearest=nearest, progress=progress)
    if as_json:
        output.emit_json(words.plain(findings, trace=str(trace), command=command))
        return exit_code(findings)
    first = first_wrong(findings)
    report = [words.message(first, command)] if first is not None else []
    output.emit_rich(
        *report, output.table("", words.COLUMNS, words.rows(findings)), words.summary(findings)
    )
    return exit_code(findings)
