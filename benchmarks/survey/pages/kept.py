"""Rows of an earlier run, kept for packages that are absent from this one.

A survey is written on one machine, and not every package can be installed on each. What an absent
package answered before is still what it answered: its row stays as it was recorded, and says by its
key `kept` the date of the run that asked it. A row is kept only where it answers the same question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Data = dict[str, Any]

#: Keys that say which question a row answers, by the list that it stands in.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "implementations": ("function", "rule", "convention"),
    "family": ("function", "member"),
    "deep": ("package", "label", "settings"),
    "family_faults": ("package", "fault", "measured"),
    "deep_faults": ("package", "fault", "measured"),
}

#: What stands beside the set, which a run may leave as it is.
BESIDE = ("family", "family_faults", "deep", "deep_faults", "bracket", "rnn", "chunks")


def with_kept(now: Data, before: Mapping[str, Any]) -> Data:
    """This run's data, with the recorded rows of packages that it did not find or ask.

    Args:
        now: of this run.
        before: the data that are about to be overwritten.
    """
    date, same_set = before.get("date", ""), now["set"] == before.get("set")
    data = dict(now)
    if same_set:
        data["implementations"] = _rows("implementations", now, before, date)
    data |= {name: _whole(before[name], date) for name in BESIDE if name not in now}
    both: tuple[str, ...] = ("family", "deep")
    for name in both:
        if name in now and _sizes(now[name]) == _sizes(before.get(name, {})):
            found = {name: now[name]["found"]}, {name: before[name]["found"]}
            data[name] = {**now[name], "found": _rows(name, *found, date)}
    for name in ("family_faults", "deep_faults"):
        if name in now:
            data[name] = _rows(name, now, before, date)
    for name in ("bracket", "chunks"):
        if "missing" in now.get(name, {}) and "missing" not in before.get(name, {"missing": ""}):
            data[name] = _dated(before[name], date)
    if "rnn" in now:
        data["rnn"] = _columns(now["rnn"], before.get("rnn", {}), date)
    return data


def absent(row: Mapping[str, Any]) -> bool:
    """Whether the package of a row was not there to be asked."""
    return "missing" in row or not row.get("version")


def asked_on(row: Mapping[str, Any]) -> str:
    """Words of the page for a row that is kept; none for one of this run."""
    return f", asked {row['kept']}" if "kept" in row else ""


def _whole(part: Any, date: str) -> Any:
    """A part that this run did not measure at all."""
    if isinstance(part, list):
        return [_dated(row, date) for row in part]
    if "found" in part:
        return {**part, "found": [_dated(row, date) for row in part["found"]]}
    return _dated(part, date)


def _dated(row: Mapping[str, Any], date: str) -> Data:
    return {**row, "kept": row.get("kept", date)}


def _sizes(deep: Mapping[str, Any]) -> Data:
    return {name: value for name, value in deep.items() if name != "found"}


def _rows(name: str, now: Data, before: Mapping[str, Any], date: str) -> list[Data]:
    """The rows of a list, each that is absent in place of the recorded one of its question."""

    def question(row: Mapping[str, Any]) -> str:
        return repr([row.get(key) for key in QUESTIONS[name]])

    recorded = {question(row): row for row in before.get(name, []) if not absent(row)}
    return [
        _dated(recorded[question(row)], date) if absent(row) and question(row) in recorded else row
        for row in now[name]
    ]


def _columns(now: Data, before: Mapping[str, Any], date: str) -> Data:
    """Faults of atlas-rnn: the package's own column is kept, ours are of this run."""
    if now["version"] or not before.get("version"):
        return now
    recorded = {_fault(row): row["package"] for row in before["rows"]}
    rows: Sequence[Data] = now["rows"]
    return {
        "version": before["version"],
        "kept": before.get("kept", date),
        "rows": [{**row, "package": recorded.get(_fault(row), row["package"])} for row in rows],
    }


def _fault(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["fault"], row["measured"]
