"""What the two documents about rules that the project began from say, statement by statement, and where each stands."""

from __future__ import annotations

import csv
import html
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs import links
from docs.cells import table
from docs.clauses.specs import ID
from docs.clauses.trace import Trace

FILE = Path(__file__).with_name("statements.tsv")

SECTIONS = {
    "A": "Omega rule",
    "B": "Delta rule",
    "C": "Titans LMM, Hebbian rule, interface and tape",
    "D": "Parallel forms",
    "E": "Frequency levels",
    "F": "Feature maps",
}

#: What a state means.
STATES = {
    "holds": "specified and proved by the tests of these clauses, or by these tests",
    "corrected": "false as printed: the erratum or test proves it, and the clauses have what holds",
    "part": "some of it; the note says what is not there",
    "lacks": "not there",
    "outside": "about another project or its machine",
}


class Statement(NamedTuple):
    """One statement: its number, words, state, clauses and tests, and a note."""

    row: str
    statement: str
    state: str
    where: tuple[str, ...]
    note: str

    @property
    def clauses(self) -> list[str]:
        return [each for each in self.where if ID.fullmatch(each)]

    @property
    def tests(self) -> list[str]:
        return [each for each in self.where if not ID.fullmatch(each)]


def read() -> list[Statement]:
    """Every statement of the file, in its order."""
    with FILE.open(newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            Statement(**{**row, "where": tuple(row["where"].split())})  # type: ignore[arg-type]
            for row in rows
        ]


def statements(trace: Trace, page: str) -> str:
    """Section by section, every statement with its state and place."""
    parts = []
    for letter, title in SECTIONS.items():
        own = [each for each in read() if each.row.startswith(f"{letter}-")]
        rows = [
            (
                each.row,
                html.escape(each.statement).replace("[", "&#91;"),  # else a link of mkdocs
                each.state,
                ", ".join(_places(each, trace, page)),
                html.escape(each.note),
            )
            for each in own
        ]
        head = ("row", "statement", "state", "where", "note")
        parts.append(f"## {title}\n\n" + table(head, rows))
    return "\n".join(parts)


def _places(each: Statement, trace: Trace, page: str) -> Iterator[str]:
    from docs.tables import to_clauses

    if each.clauses:
        yield to_clauses(each.clauses, trace, page)
    for test in each.tests:
        path, _, name = test.partition("::")
        yield f"[{name or path}]({links.relative(links.page_of(path), page)})"


def states(trace: Trace, page: str) -> str:
    """How many statements have which state."""
    counts = Counter(each.state for each in read())
    rows = [(state, meaning, str(counts[state])) for state, meaning in STATES.items()]
    return table(("state", "meaning", "statements"), rows)


TABLES = (states, statements)
