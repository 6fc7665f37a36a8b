"""Command line of the survey: python -m benchmarks.survey [SET] [--only PACKAGE ...] [--write STEM]
[--json]
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.sources.sources import Source
from benchmarks.survey import catalogue, run
from benchmarks.survey.field import environment, field
from benchmarks.survey.field.packages import Entry, Package, chosen, packages
from benchmarks.survey.pages.kept import with_kept
from benchmarks.survey.pages.page import page

#: The set of the tables of conventions and failures, where none is named.
SET = Path("vectors/v1")

#: What the scoreboard asks beside it.
MORE = (Path("vectors/v2"),)


def main(
    folder: Annotated[Path, typer.Argument(metavar="SET", help="A folder of cases.")] = SET,
    more: Annotated[
        list[Path] | None,
        typer.Option(
            "--more",
            metavar="SET",
            help="A folder that the scoreboard asks too; repeatable, vectors/v2 by default.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PACKAGE", help="Ask this package alone; repeatable."),
    ] = None,
    conventions: Annotated[
        bool,
        typer.Option(
            "--conventions/--no-conventions",
            help="Search the conventions of functions again, which takes most of the time.",
        ),
    ] = True,
    beside: Annotated[
        bool | None,
        typer.Option(
            "--beside/--no-beside",
            help="Measure what stands beside the sets, in this environment; by default without --only.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="STEM",
            help="Write STEM.md and STEM.json after each package; what is not asked stays, dated.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the data as one JSON object.")
    ] = False,
) -> None:
    """Ask public packages the cases of sets, each in an environment of its own, and print a page."""
    progress = Console(stderr=True)

    def tell(words: str) -> None:
        progress.print(words, highlight=False, markup=False)

    try:
        every = packages()
        asked = chosen(every, only or [])
        cases = run.read(folder)
        others = [run.read(each) for each in (MORE if more is None else more)]
    except (CaseError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    asking = Asking(every, cases, [cases, *others], write)
    for package in asked:
        asking.ask(package, tell, conventions=conventions)
        _written(write, asking.data())
    if not only if beside is None else beside:
        asking.measured = run.beside(tell)
    data = asking.data()
    _written(write, data)
    print(json.dumps(data, indent=1, allow_nan=False) if as_json else page(data).rstrip("\n"))


class Asking:
    """A run: what it has asked so far, on top of what another one left.

    The file is read anew whenever it is written, so that runs of different packages may go on side
    by side.
    """

    def __init__(
        self,
        every: Sequence[Package],
        cases: run.Set,
        sets: Sequence[run.Set],
        stem: Path | None,
    ) -> None:
        self.every, self.cases, self.sets, self.stem = every, cases, sets, stem
        self.vectors: list[Case] = [case for each in sets for case in each.cases]
        self.rows: list[dict[str, Any]] = []
        self.found: dict[str, dict[str, Any]] = {}
        self.measured: dict[str, Any] = {}

    def ask(self, package: Package, tell: field.Tell, *, conventions: bool) -> None:
        """Ask every function of a package."""
        also = self._also if conventions else field.nothing
        self.rows += field.asked_of(
            package, self.vectors, making=environment.made, also=also, tell=tell
        )

    def _also(self, entry: Entry, version: str, source: Source) -> None:
        """The tables of conventions and failures, for a function with a rule's convention."""
        for known in catalogue.entries():
            if known.function == entry.adapter:
                own = known._replace(version=version)
                self.found[known.function] = run.entry_row(own, self.cases, source)

    def data(self) -> dict[str, Any]:
        """The data of the page."""
        before = _recorded(self.stem)
        now = run.about(self.cases) | {"others": dict(catalogue.OTHERS)}
        absent = [
            run.entry_row(each._replace(version=""), self.cases) for each in catalogue.entries()
        ]
        now["implementations"] = [self.found.get(row["function"], row) for row in absent]
        recorded = before.get("field", {}).get("rows", [])
        now["field"] = {
            "sets": [run.about(each)["set"] for each in self.sets],
            "rows": field.together(self.every, self.rows, recorded),
        }
        now |= self.measured
        return with_kept(now, before) if before else now


def _recorded(stem: Path | None) -> dict[str, Any]:
    """What an earlier run left; nothing where there is none."""
    if stem is None or not stem.with_suffix(".json").exists():
        return {}
    found: dict[str, Any] = json.loads(stem.with_suffix(".json").read_text())
    return found


def _written(stem: Path | None, data: dict[str, Any]) -> None:
    """The page and its data, each whole or not at all."""
    if stem is None:
        return
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    for suffix, words in ((".json", text), (".md", page(data))):
        path = stem.with_suffix(suffix)
        part = path.with_name(f".{path.name}.part")
        part.write_text(words)
        os.replace(part, path)


if __name__ == "__main__":
    typer.run(main)
