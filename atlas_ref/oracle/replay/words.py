"""Text of a replay: the message about the first wrong op, the table of ops, and both as JSON.

Specified in specs/replay.md (REPLAY-17, REPLAY-18) and specs/case.md (CASE-27, CASE-28).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atlas_ref.oracle.judge.verdicts import error_words, index_words, number_as_json, number_words
from atlas_ref.oracle.replay.ops import is_iterate
from atlas_ref.oracle.replay.replay import Finding, exit_code, first_wrong

COLUMNS = (
    "op",
    "verdict",
    "error / tolerance",
    "token",
    "index",
    "got",
    "expected",
    "evaluated together with",
)


def message(finding: Finding, command: str) -> str:
    """The fixed fields about a finding, one on a line (CASE-27)."""
    lines = [
        ("first wrong", first_words(finding)),
        ("got", number_words(finding.got)),
        ("expected", number_words(finding.expected)),
        ("error", error_words(finding.ratio, finding.tolerance, finding.basis)),
        ("why", finding.why),
        ("found before", finding.before),
        ("not seen", _unseen_values(finding)),
        ("clause", finding.clause),
        ("nearest", finding.nearest),
        ("repeat with", command),
    ]
    return "\n".join(
        [
            f"{finding.case}: {finding.verdict}",
            *(f"  {name:13} {words}" for name, words in lines if words),
        ]
    )


def first_words(finding: Finding) -> str:
    """Token, op and index of a finding in a phrase."""
    place = f"token {finding.token}, {finding.op}" if finding.token is not None else finding.op
    return place + (f", index {index_words(finding.place)}" if finding.place else "")


def names(ops: Sequence[str]) -> str:
    """Ops in a phrase, the iterates as a range: S, X0 to X5, U."""
    parts: list[str] = []
    run: list[str] = []
    for op in [*ops, ""]:
        if is_iterate(op):
            run.append(op)
            continue
        if run:
            parts.append(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}")
            run = []
        if op:
            parts.append(op)
    return ", ".join(parts)


def rows(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """The table's cells, in the order of COLUMNS."""
    return [_row(each) for each in findings]


def summary(findings: Sequence[Finding]) -> str:
    """The number of ops per verdict."""
    counts = {
        word: sum(each.verdict == word for each in findings)
        for word in ("PASS", "MARGINAL", "WRONG", "UNDECIDABLE")
    }
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


def plain(findings: Sequence[Finding], *, trace: str, command: str) -> dict[str, Any]:
    """All findings in the types of JSON (CASE-28)."""
    first = first_wrong(findings)
    return {
        "exit": exit_code(findings),
        "bad_input": [],
        "trace": trace,
        "command": command,
        "first_wrong": None if first is None else _plain(first),
        "findings": [_plain(each) for each in findings],
    }


def _plain(each: Finding) -> dict[str, Any]:
    return {
        "case": each.case,
        "op": each.op,
        "tensor": each.tensor,
        "verdict": each.verdict,
        "token": each.token,
        "index": list(each.place),
        "got": number_as_json(each.got),
        "expected": number_as_json(each.expected),
        "error": each.error,
        "norm": each.norm,
        "tolerance": each.tolerance,
        "error_over_tolerance": each.ratio,
        "tolerance_from": each.basis,
        "found_before": each.before,
        "evaluated_together_with": list(each.gap),
        "clause": each.clause,
        "nearest_convention": each.nearest,
        "why": each.why,
    }


def _row(each: Finding) -> tuple[str, ...]:
    right = each.verdict == "PASS"
    token = "" if each.token is None or right else str(each.token)
    index = "" if right or not each.place else index_words(each.place)
    got, expected = ("", "") if right or each.got is None else (repr(each.got), repr(each.expected))
    ratio = "" if each.ratio is None else f"{each.ratio:.3g}"
    return each.op, each.verdict, ratio, token, index, got, expected, names(each.gap)


def _unseen_values(each: Finding) -> str:
    if not each.gap:
        return ""
    return (
        f"{names(each.gap)}: not recorded, so the mistake may be in "
        f"{'it' if len(each.gap) == 1 else 'one of them'} as well"
    )
