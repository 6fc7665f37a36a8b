"""Command line of the survey: python -m benchmarks.survey [SET] [--only NAME ...] [--write STEM]
[--json]
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atlas_ref.oracle.cases.case import CaseError
from benchmarks.survey.catalogue import entries
from benchmarks.survey.pages.kept import with_kept
from benchmarks.survey.pages.page import page
from benchmarks.survey.run import read, survey

#: The set that is asked when none is named.
SET = Path("vectors/v1")


def main(
    folder: Annotated[Path, typer.Argument(metavar="SET", help="A folder of cases.")] = SET,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help="A package, or a function of an adapter; repeatable."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="STEM",
            help="Write STEM.md and STEM.json; rows there of absent packages stay, dated.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the data as one JSON object.")
    ] = False,
) -> None:
    """Ask public implementations the cases of a set, and print what they compute as a page."""
    progress = Console(stderr=True)
    try:
        chosen = entries(only)
        cases = read(folder)
    except (CaseError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    data = survey(
        cases, chosen, tell=lambda words: progress.print(words, highlight=False, markup=False)
    )
    if write is not None and write.with_suffix(".json").exists():
        data = with_kept(data, json.loads(write.with_suffix(".json").read_text()))
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if write is not None:
        _written(write.with_suffix(".json"), text)
        _written(write.with_suffix(".md"), page(data))
    print(text if as_json else page(data), end="")


def _written(path: Path, text: str) -> None:
    """The whole file or none."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


if __name__ == "__main__":
    typer.run(main)
