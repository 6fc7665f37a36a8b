"""The table of planted mistakes: detection by check and replay, the name by identify, and counts.

    python -m tests.oracle.planted [--quick | --subtle]

Exit code 1 where a mistake survives, a legal variant raises an alarm, or a convention is not named;
--quick leaves identify out. --subtle counts small mistakes instead, which nobody promises to find.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.oracle.planted import subtle, table
from tests.oracle.planted.mistakes import MISTAKES

FORMATS = tuple(table.STORAGE)

Rows = dict[tuple[str, str, str], table.Found]
Names = dict[tuple[str, str, str], table.Named]


def main(quick: bool, jobs: int = 1) -> int:
    """Print the table and its counts, computed in several processes."""
    console = Console() if sys.stdout.isatty() else Console(width=200)
    conventions = [each for each in table.mistakes() if each[0].axes is not None and not quick]
    # one case after the other: what is searched on it is listed once
    conventions.sort(key=lambda each: each[1])
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        asked = partial(_asked, pool)
        names = {
            _key(each): found for each, found in asked(table.named, conventions, "conventions")
        }
        rows = {
            _key(each): found for each, found in asked(table.planted, table.mistakes(), "mistakes")
        }
        alarms = [
            (*each, found)
            for each, found in asked(table.alarmed, table.legal(), "legal variants")
            if found.caught
        ]

    console.print(_table(rows, names))
    for way, name, dtype, found in alarms:
        console.print(
            f"ALARM: {way.name if way else 'the chunk form'}, {name}, {dtype}: "
            f"{found.checked} {found.replayed}"
        )
    survived = [key for key, found in rows.items() if not found.caught]
    missed = [key for key, found in names.items() if not found.right]
    for key in survived:
        console.print("SURVIVED:", *key)
    for key in missed:
        console.print("NOT NAMED:", *key, names[key].words)
    for line in _counts(rows, names, len(list(table.legal())), len(alarms)):
        console.print(line, highlight=False)
    return 1 if survived or missed or alarms else 0


def _asked(
    pool: Executor | None, ask: Callable[..., Any], tasks: Iterable[Any], words: str
) -> Iterable[tuple[Any, Any]]:
    """Each task with its answer, in order, with a progress bar on a terminal."""
    items = list(tasks)
    if not items:
        return []
    columns = list(zip(*items, strict=True))
    answers = map(ask, *columns) if pool is None else pool.map(ask, *columns)
    found = zip(items, answers, strict=True)
    return (
        track(found, words, len(items), console=Console(stderr=True), transient=True)
        if sys.stderr.isatty()
        else found
    )


def _key(task: Any) -> tuple[str, str, str]:
    mistake, name, dtype = task
    return mistake.name, name, dtype


def _table(rows: Rows, names: Names) -> Table:
    columns = [f"{dtype}: {who}" for dtype in FORMATS for who in ("check", "replay", "identify")]
    made = Table("mistake", "planted into", *columns)
    for mistake in MISTAKES:
        for i, name in enumerate(mistake.cases):
            cells = []
            for dtype in FORMATS:
                found, said = (
                    rows[mistake.name, name, dtype],
                    names.get((mistake.name, name, dtype)),
                )
                cells += [found.checked or "-", found.replayed or "-", said.words if said else "-"]
            made.add_row("" if i else mistake.name, name, *cells)
    return made


def _counts(rows: Rows, names: Names, variants: int, alarms: int) -> list[str]:
    lines = []
    for dtype in FORMATS:
        here = [found for key, found in rows.items() if key[2] == dtype]
        said = [found for key, found in names.items() if key[2] == dtype]
        caught, by_check, by_replay = (
            sum(map(bool, each))
            for each in zip(*((f.caught, f.checked, f.replayed) for f in here), strict=True)
        )
        line = (
            f"{dtype}: {caught} of {len(here)} mistakes caught, {by_check} by check, {by_replay} "
            "by replay"
        )
        if said:
            line += (
                f"; {sum(f.right for f in said)} of {len(said)} conventions named, "
                f"{sum(f.unique for f in said)} of them alone"
            )
        lines.append(line)
    return [*lines, f"{alarms} alarms on {variants} legal variants"]


def small() -> int:
    """Print the counts of small mistakes."""
    for line in subtle.lines():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(
        small()
        if "--subtle" in sys.argv[1:]
        else main("--quick" in sys.argv[1:], os.cpu_count() or 1)
    )
