"""Expected failures: a file of known failures, with reason and expiry. Specified in
specs/sources.md.

[[xfail]]
id = "delta_long:grad/k"     # a case, or a case and one of its tensors
reason = "the kernel drops the gradient by the last key, issue 12"
expires = 2027-03-31
"""

from __future__ import annotations

import datetime
import json
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from atlas_ref.oracle.cases.case import CaseError, named
from atlas_ref.oracle.judge.verdicts import Comparison
from atlas_ref.storage.files import read_bytes, unique

KEYS = ("id", "reason", "expires")


class Entry(NamedTuple):
    """One expected failure; `expires` is the last day on which it holds."""

    id: str
    reason: str
    expires: datetime.date

    @property
    def case(self) -> str:
        return self.id.rpartition(":")[0] if self._names_a_tensor else self.id

    @property
    def tensor(self) -> str | None:
        """None for every tensor of the case."""
        return self.id.rpartition(":")[2] if self._names_a_tensor else None

    @property
    def _names_a_tensor(self) -> bool:
        return self.id.rpartition(":")[2].startswith(("out/", "grad/"))


class Outcome(NamedTuple):
    """Verdicts of a case with its expected failures marked (SRC-16).

    Attributes:
        rows: the same verdicts, with the reason where one was expected.
        problems: entries that expired, or whose case passes: each fails the run.
        met: entries that are about one of the rows.
    """

    rows: list[Comparison]
    problems: list[str]
    met: set[str]


def load(path: str | os.PathLike[str]) -> list[Entry]:
    """Read a TOML or JSON file: a list `xfail` of tables with id, reason and expires (SRC-15).

    Raises:
        CaseError: not such a file; a key that is missing, unknown or no string; a date that is
            none; an id twice.
    """
    name = os.fspath(path)
    try:
        content = read_bytes(path)
    except ValueError as error:
        raise named(name, error) from None
    try:
        text = content.decode("utf-8")
        data = (
            json.loads(text, object_pairs_hook=unique)
            if name.endswith(".json")
            else tomllib.loads(text)
        )
    except (ValueError, RecursionError) as error:
        kind = "JSON" if name.endswith(".json") else "TOML"
        raise CaseError(f"{name}: not {kind}: {' '.join(str(error).split())}") from None
    tables = data.get("xfail") if isinstance(data, dict) else None
    if not isinstance(tables, list) or set(data) != {"xfail"}:
        raise CaseError(f"{name}: one list named xfail is needed, of tables with {', '.join(KEYS)}")
    entries = [_entry(f"{name}: xfail {i + 1}", table) for i, table in enumerate(tables)]
    ids: set[str] = set()
    for entry in entries:
        if entry.id in ids:
            raise CaseError(f"{name}: id {entry.id!r} stands twice")
        ids.add(entry.id)
    return entries


def _entry(where: str, table: Any) -> Entry:
    if not isinstance(table, dict):
        raise CaseError(
            f"{where}: a table with {', '.join(KEYS)} is needed, found {type(table).__name__}"
        )
    for key in table:
        if key not in KEYS:
            raise CaseError(f"{where}: {key}: unknown key; keys are {', '.join(KEYS)}")
    for key in KEYS:
        if key not in table:
            raise CaseError(f"{where}: {key}: missing")
    for key in ("id", "reason"):
        if not isinstance(table[key], str) or not table[key].strip():
            raise CaseError(f"{where}: {key}: words are needed, found {table[key]!r:.60}")
    return Entry(table["id"], " ".join(table["reason"].split()), _date(where, table["expires"]))


def _date(where: str, value: Any) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise CaseError(
            f"{where}: expires: a date as 2027-03-31 is needed, found {str(value)[:60]!r}"
        ) from None


def apply(
    entries: Iterable[Entry], rows: Iterable[Comparison], *, today: datetime.date | None = None
) -> Outcome:
    """Match expected failures with verdicts (SRC-16).

    Args:
        today: the date that expiry is counted from.
    """
    today = today or datetime.date.today()
    outcome = Outcome(list(rows), [], set())
    for entry in entries:
        mine = [i for i, row in enumerate(outcome.rows) if _about(entry, row)]
        failing = [i for i in mine if outcome.rows[i].verdict not in ("PASS", "NOT SUPPORTED")]
        if mine:
            outcome.met.add(entry.id)
        if failing and today > entry.expires:
            outcome.problems.append(f"xfail {entry.id}: expired on {entry.expires}: {entry.reason}")
        elif failing:
            for i in failing:
                outcome.rows[i] = outcome.rows[i]._replace(xfail=entry.reason)
        elif any(outcome.rows[i].verdict == "PASS" for i in mine):
            outcome.problems.append(f"xfail {entry.id}: passes; remove the entry ({entry.reason})")
    return outcome


def unknown(entries: Iterable[Entry], met: set[str], *, only: set[str] | None = None) -> list[str]:
    """Messages about entries that no case or tensor of this run met (SRC-16).

    Args:
        only: names of the results compared; entries about other results are ignored.
    """
    return [
        f"xfail {entry.id}: no such case or tensor was checked"
        for entry in entries
        if entry.id not in met
        and not (only is not None and entry.tensor is not None and entry.tensor not in only)
    ]


def concerns(entry: Entry, case: str) -> bool:
    """Whether an entry names this case: its path, its file name, or that without the ending."""
    return entry.case in (case, Path(case).name, Path(case).stem)


def _about(entry: Entry, row: Comparison) -> bool:
    return concerns(entry, row.case) and (entry.tensor is None or row.tensor in (entry.tensor, "-"))
