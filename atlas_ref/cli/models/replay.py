"""The command model replay: what a model's modules returned, each judged on its own inputs.

Specified in specs/modules.md (MODULES-16).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas_ref.cli import output


def register(model: typer.Typer) -> None:
    """Add the command to its group."""
    model.command()(replay)


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="RECORDING", help="what your modules received and returned")
    ],
    nearest: Annotated[
        bool, typer.Option(help="Search for the reading that explains the first wrong module.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> int:
    """Evaluate each module of a recording again on the inputs that it received, and name the first
    wrong one. Exit code 1 if one is wrong, 3 if none could be judged.
    """
    from atlas_ref.oracle.modules.judge import first_wrong, judge
    from atlas_ref.oracle.modules.recording import load_recording
    from atlas_ref.oracle.modules.report import COLUMNS, exit_code, message, plain, rows

    verdicts = judge(load_recording(file), nearest=nearest)
    if as_json:
        output.emit_json({"recording": str(file), **plain(verdicts)})
        return exit_code(verdicts)
    first = first_wrong(verdicts)
    head = [message(first, verdicts)] if first is not None else []
    counts = f"{sum(each.verdict == 'PASS' for each in verdicts)} of {len(verdicts)} values PASS"
    output.emit_rich(*head, output.table("", COLUMNS, rows(verdicts)), counts)
    return exit_code(verdicts)
