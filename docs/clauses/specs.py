"""The clauses of the specs: headings `### FAMILY-5 Title`, with what stands below them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.clauses.reading import ReadingError, text

HEADING = re.compile(r"^### ((?:[A-Z]+-\d+)|(?:E-[A-Z]\d\d[a-z]?)) (.*)$")
SECTION = re.compile(r"^(#{1,3}) ")
ID = re.compile(r"\b([A-Z]+-\d+|E-[A-Z]\d\d[a-z]?)\b")
RANGE = re.compile(r"\b([A-Z]+)-(\d+) to \1-(\d+)\b")
NO_CODE = re.compile(r"\*\*No code\.\*\*\s+(.*?)(?:\n\n|\Z)", re.DOTALL)


class Clause(NamedTuple):
    """One clause.

    Attributes:
        id: FAMILY-5, or that of an erratum.
        title: of its heading.
        path: of its spec, from the root.
        line, last: of the heading, and the last one of the clause.
        text: what stands below the heading.
        no_code: why no code carries it out, where the clause says so; else empty.
    """

    id: str
    title: str
    path: str
    line: int
    last: int
    text: str
    no_code: str

    @property
    def erratum(self) -> bool:
        return self.id.startswith("E-")

    @property
    def errata(self) -> tuple[str, ...]:
        """Errata that the clause names."""
        return tuple(dict.fromkeys(each for each in ID.findall(self.text) if each.startswith("E-")))


def read(root: Path) -> dict[str, Clause]:
    """Every clause of specs/*.md by its id, in the order of files and clauses.

    Of clauses that share an id, the first.

    Raises:
        ReadingError: a spec that is no text, or no clause at all.
    """
    by_id: dict[str, Clause] = {}
    for clause in every(root):
        by_id.setdefault(clause.id, clause)
    if not by_id:
        raise ReadingError("specs: no clause stands there, as `### FAMILY-1 Title`")
    return by_id


def every(root: Path) -> Iterator[Clause]:
    """The clauses of all specs, those that share an id too."""
    for path in sorted((root / "specs").glob("*.md")):
        name = path.relative_to(root).as_posix()
        yield from clauses(text(path, name), name)


def clauses(source: str, path: str) -> list[Clause]:
    """The clauses of one spec (TRACE-1); a heading may name several ids, "E-M02, E-M03"."""
    lines = source.split("\n")
    heads = [i for i, line in enumerate(lines) if SECTION.match(line)] + [len(lines)]
    result = []
    for start, end in itertools.pairwise(heads):
        match = HEADING.match(lines[start])
        if match:
            body = "\n".join(lines[start + 1 : end]).rstrip()
            body = re.sub(r'\n*<a id="[^"]*"></a>$', "", body)
            reason = NO_CODE.search(body)
            why = " ".join(reason[1].split()) if reason else ""
            result.append(
                Clause(match[1], match[2].strip(), path, start + 1, end, body.strip("\n"), why)
            )
    return result


def named(words: str, families: frozenset[str]) -> list[str]:
    """Ids of these families that a text names, in order of appearance (TRACE-2).

    Ranges ("FAMILY-2 to FAMILY-5") are given in full.
    """
    full = RANGE.sub(
        lambda m: " ".join(f"{m[1]}-{n}" for n in range(int(m[2]), int(m[3]) + 1)), words
    )
    return list(dict.fromkeys(each for each in ID.findall(full) if each.split("-")[0] in families))


def families(known: dict[str, Clause]) -> frozenset[str]:
    """Families of the clauses: the words before the number."""
    return frozenset(each.split("-")[0] for each in known)
