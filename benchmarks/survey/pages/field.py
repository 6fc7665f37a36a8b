"""The scoreboard as a table: of every function, and of every package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = (
    "package",
    "function",
    "convention",
    "cases PASS",
    "of vectors",
    "worst error",
    "gradients PASS",
    "what fails, what it lacks",
)
SHORT_HEAD = ("package", "functions", "cases PASS", "gradients PASS", "what fails")

#: Reasons that a cell holds.
REASONS = 3


def lines(rows: Sequence[Mapping[str, Any]], date: str) -> list[tuple[str, ...]]:
    """A line for each function that was asked, or that could not be.

    Args:
        date: of the run; a row of another day says its own.
    """
    return [_line(row, "" if row["date"] == date else f", asked {row['date']}") for row in rows]


def packages(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A line for each package: its functions together."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(name(row), []).append(row)
    return [(package, *_together(own)) for package, own in grouped.items()]


def name(row: Mapping[str, Any]) -> str:
    """A package and its version."""
    return f"{row['package']} {row['version']}".strip()


def _together(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    asked = [row for row in rows if "missing" not in row]
    if not asked:
        return (str(len(rows)), "-", "-", rows[0]["missing"])
    passed, taken = (sum(row[each] for row in asked) for each in ("passed", "asked"))
    right, all_of = (sum(row["gradients"][n] for row in asked) for n in (0, 1))
    wrong = [row["entry"] for row in asked if row["passed"] < row["asked"]]
    wrong += [f"{row['entry']}: not asked" for row in rows if "missing" in row]
    return (str(len(rows)), f"{passed} of {taken}", _of(right, all_of), "; ".join(wrong))


def _line(row: Mapping[str, Any], day: str) -> tuple[str, ...]:
    start = (name(row) + day, row["entry"], row["convention"] or "that of the spec")
    if "missing" in row:
        return (*start, "-", "-", "-", "-", _sentence([row["missing"], row["note"]]))
    words = [_failing(verdict, each) for verdict, each in row["failing"].items()]
    return (
        *start,
        f"{row['passed']} of {row['asked']}" if row["asked"] else "-",
        str(row["vectors"]),
        f"{row['worst']} ({row['dtype']})" if row["asked"] else "-",
        _of(*row["gradients"]),
        _sentence([*words, lacks(row["lacks"]), row["note"]]),
    )


def lacks(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons why a vector was not asked."""
    most = list(reasons.items())
    words = [f"{why} ({count})" for why, count in most[:REASONS]]
    left = sum(count for _, count in most[REASONS:])
    return (
        "lacks " + "; ".join([*words, f"other ({left})" if left else ""]).rstrip("; ")
        if most
        else ""
    )


def _failing(verdict: str, each: Mapping[str, Any]) -> str:
    return f"{each['cases']} {verdict}, as {each['first']}: {each['why']}"


def _of(right: int, total: int) -> str:
    return f"{right} of {total}" if total else "none"


def _sentence(parts: Sequence[str]) -> str:
    return ". ".join(each.rstrip(".") for each in parts if each)
