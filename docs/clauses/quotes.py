"""Quotes of clauses in code, tests and docs, which must match the clause word for word.

A quote is an id, a colon, and the words in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from docs.clauses import reading
from docs.clauses.gap import Gap
from docs.clauses.specs import Clause

QUOTE = re.compile(r"\b([A-Z]+-\d+|E-[A-Z]\d\d[a-z]?): [\"“]([^\"“”]{8,}?)[\"”]")
FOLDERS = ("atlas_ref", "tape", "tests", "docs")
#: A comment goes on at the next line with its sign.
CONTINUED = re.compile(r"\n\s*(?:#:? ?|> ?)?")


class Quote(NamedTuple):
    path: str
    line: int
    clause: str
    text: str


def read(root: Path) -> Iterator[Quote]:
    """Every quote in .py and .md files."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.*")):
            if path.suffix in (".py", ".md"):
                name = path.relative_to(root).as_posix()
                yield from quotes(reading.text(path, name), name)


def quotes(text: str, path: str) -> Iterator[Quote]:
    for match in QUOTE.finditer(text):
        yield Quote(
            path,
            text.count("\n", 0, match.start()) + 1,
            match[1],
            " ".join(CONTINUED.sub(" ", match[2]).split()),
        )


def changed(root: Path, known: Mapping[str, Clause]) -> list[Gap]:
    """Quotes that differ from their clause, or whose clause no spec has (TRACE-7)."""
    gaps = []
    for each in read(root):
        if each.clause not in known:
            gaps.append(
                Gap(each.path, each.line, f"{each.clause}: quoted, and no spec has this clause")
            )
        elif each.text not in " ".join(known[each.clause].text.split()):
            clause = known[each.clause]
            gaps.append(
                Gap(
                    each.path,
                    each.line,
                    (
                        f"{each.clause}: quotes {each.text!r}, which {clause.path}:{clause.line} "
                        "does not say"
                    ),
                )
            )
    return gaps
