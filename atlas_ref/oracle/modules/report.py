"""Text of a replay of modules: the message about the first wrong one, and a table of all.

Specified in specs/modules.md (MODULES-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.oracle.judge.verdicts import number_words
from atlas_ref.oracle.modules.judge import first_wrong
from atlas_ref.oracle.modules.verdict import Verdict

COLUMNS = ("verdict", "tensor", "error / tolerance", "first wrong entry")


def report(verdicts: Sequence[Verdict]) -> str:
    """The first wrong value with its fields, then one line for each value (MODULES-11)."""
    first = first_wrong(verdicts)
    head = "every recorded value is right" if first is None else message(first, verdicts)
    if not verdicts:
        head = "nothing could be judged: no value was recorded before another"
    table = [COLUMNS, *rows(verdicts)]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    lines = ["  ".join(word.ljust(n) for word, n in zip(row, widths, strict=True)) for row in table]
    return "\n".join([head, "", *(line.rstrip() for line in lines)])


def message(verdict: Verdict, verdicts: Sequence[Verdict] = ()) -> str:
    """The fixed fields about a value, one on a line."""
    before = []
    for each in verdicts:
        if each is verdict:
            break
        before.append(each)
    way = "/grad/in/" if "/grad/" in verdict.tensor else "/out/"
    right = dict.fromkeys(
        each.module for each in before if each.verdict == "PASS" and way in each.tensor
    )
    lines = [
        ("tensor", verdict.tensor),
        ("first wrong", verdict.place),
        ("got", number_words(verdict.got)),
        ("expected", number_words(verdict.expected)),
        ("error", "" if verdict.ratio is None else f"{verdict.ratio:.3g} times the tolerance"),
        ("tolerance", verdict.basis),
        ("why", verdict.why),
        ("found before", f"right: {', '.join(right)}" if right else ""),
        ("with", f"{', '.join(verdict.together)}, not recorded" if verdict.together else ""),
        ("clause", verdict.clause),
        ("nearest", verdict.nearest),
        ("inside", verdict.inside),
    ]
    return "\n".join(
        [
            f"{verdict.fault}: {verdict.verdict}",
            *(f"  {name:13} {words}" for name, words in lines if words),
        ]
    )


def rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """One line for each value, in the columns of `COLUMNS` (MODULES-11)."""
    return [_row(each) for each in verdicts]


def _row(verdict: Verdict) -> tuple[str, ...]:
    ratio = "" if verdict.ratio is None else f"{verdict.ratio:.3g}"
    place = "" if verdict.verdict == "PASS" else verdict.place or verdict.why
    return (verdict.verdict, verdict.tensor, ratio, place)


def plain(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """All verdicts in the types of JSON (MODULES-11)."""
    first = first_wrong(verdicts)
    return {
        "exit": exit_code(verdicts),
        "first_wrong": None if first is None else first._asdict(),
        "verdicts": [each._asdict() for each in verdicts],
    }


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Exit code: 0 when every value is PASS, 1 when one is not, 3 when none could be judged."""
    if not verdicts:
        return 3
    return 0 if all(each.verdict == "PASS" for each in verdicts) else 1
