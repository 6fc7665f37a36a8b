"""The record of a run of the tests: the clauses that each proved, and the lines it executed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from docs.clauses.places import PACKAGES
from docs.clauses.reading import ReadingError, contents

RECORD = Path("build/trace/run.json")
SCHEMA = 1

#: Lines that a file of code has at most: a record that names more is none.
LONGEST = 1_000_000


class RecordError(ValueError):
    """A record that is missing, damaged, or of other sources."""


class Ran(NamedTuple):
    """One test function of a run, all its parameters together.

    Attributes:
        clauses: that its marks name.
        passed: whether every parameter that ran passed.
        lines: by file, the lines that it executed.
    """

    clauses: tuple[str, ...]
    passed: bool
    lines: Mapping[str, frozenset[int]]


class Mutant(NamedTuple):
    """A planted mistake, the line of code that it changes, and the tests that reject it.

    The line is 0 where it changes no code.
    """

    name: str
    what: str
    path: str
    line: int
    tests: tuple[str, ...]


class Record(NamedTuple):
    """A run: its tests by id, the recorded cases by name, and the mutants of the tests.

    Each case has the lines that its evaluation executed.
    """

    tests: Mapping[str, Ran]
    vectors: Mapping[str, Mapping[str, frozenset[int]]] = {}
    mutants: tuple[Mutant, ...] = ()


def sources(root: Path) -> str:
    """A digest of every file that a record depends on: packages and tests.

    Raises:
        ReadingError: one of them cannot be read.
    """
    digest = hashlib.sha256()
    for folder in (*PACKAGES, "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            data = contents(path, str(path))
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + data + b"\0")
    return digest.hexdigest()


def write(root: Path, record: Record, path: Path | None = None, *, of: str | None = None) -> Path:
    """Write a record as JSON, under a temporary name first.

    Args:
        of: the digest of the sources that ran; None for those that are there now.
    """
    out = root / RECORD if path is None else path
    out.parent.mkdir(parents=True, exist_ok=True)
    tests = {
        name: {"clauses": list(ran.clauses), "passed": ran.passed, "lines": _packed(ran.lines)}
        for name, ran in sorted(record.tests.items())
    }
    vectors = {name: _packed(lines) for name, lines in sorted(record.vectors.items())}
    unfinished = out.with_suffix(".part")
    mutants = [each._asdict() for each in record.mutants]
    data = {
        "schema": SCHEMA,
        "sources": sources(root) if of is None else of,
        "tests": tests,
        "vectors": vectors,
        "mutants": mutants,
    }
    unfinished.write_text(json.dumps(data))
    unfinished.replace(out)
    return out


def read(root: Path, path: Path | None = None, *, any_sources: bool = False) -> Record:
    """The record of a run of these very sources (TRACE-4).

    Raises:
        RecordError: one line that says what is missing or does not fit, and what to run.
        ReadingError: a file of the clone cannot be read.
    """
    file = root / RECORD if path is None else path
    if not os.path.isfile(file):
        raise RecordError(f"{file}: no run of the tests is recorded; `make trace` records one")
    try:
        data = json.loads(contents(file, str(file)))
        if data["schema"] != SCHEMA:
            raise RecordError(
                f"{file}: schema {data['schema']!r}, expected {SCHEMA}; `make trace` records anew"
            )
        record, recorded = _record(data), _word(data["sources"], "sources")
    except (RecordError, ReadingError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else error
        raise RecordError(
            f"{file}: not a record of a run: {said}; `make trace` records one"
        ) from error
    if not any_sources and recorded != sources(root):
        raise RecordError(
            f"{file}: recorded of other sources than these; `make trace` records anew"
        )
    return record


def _record(data: dict[str, Any]) -> Record:
    tests = {
        name: Ran(_words(each["clauses"], "clauses"), each["passed"], _unpacked(each["lines"]))
        for name, each in data["tests"].items()
    }
    vectors = {name: _unpacked(each) for name, each in data["vectors"].items()}
    return Record(tests, vectors, tuple(_mutant(**each) for each in data["mutants"]))


def _mutant(name: str, what: str, path: str, line: int, tests: list[str]) -> Mutant:
    if type(line) is not int:
        raise TypeError(f"mutants: line: {line!r} is no number")
    name, what, path = _words([name, what, path], "mutants")
    return Mutant(name, what, path, line, _words(tests, "tests"))


def _words(values: Any, where: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{where}: {values!r} is no list")
    return tuple(_word(each, where) for each in values)


def _word(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where}: {value!r} is no text")
    return value


def _packed(lines: Mapping[str, Iterable[int]]) -> dict[str, str]:
    return {path: spans(numbers) for path, numbers in sorted(lines.items())}


def _unpacked(lines: Mapping[str, str]) -> dict[str, frozenset[int]]:
    return {path: numbers(text) for path, text in lines.items()}


def spans(numbers: Iterable[int]) -> str:
    """{1, 2, 3, 7} as "1-3,7"."""
    out: list[list[int]] = []
    for number in sorted(numbers):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def numbers(text: str) -> frozenset[int]:
    """The inverse of `spans`."""
    lines: set[int] = set()
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        if int(last or first) > LONGEST:
            raise ValueError(f"line {last or first}, a file has at most {LONGEST}")
        lines.update(range(int(first), int(last or first) + 1))
    return frozenset(lines)
