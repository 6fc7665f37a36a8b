"""Tables at the end of a test run: the reductions with their twins, and the mutants with the tests that reject them.

A test adds its line with `record_property`; properties travel with the reports, so the tables are complete
under pytest-xdist too.
"""

from __future__ import annotations

import json
from typing import Any

TABLES = ("reductions", "mutants")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    reports = {id(report): report for each in terminalreporter.stats.values() for report in each if hasattr(report, "user_properties")}
    for report in reports.values():
        for name, value in report.user_properties:
            if name in TABLES and report.when == "call":
                found[name].append(json.loads(value))
    for name, lines in (("reductions", _reductions(found["reductions"])), ("mutants", _mutants(found["mutants"]))):
        if lines:
            terminalreporter.section(name)
            for line in lines:
                terminalreporter.write_line(line)


def _reductions(records: list[dict[str, Any]]) -> list[str]:
    """id, statement, worst agreement; how many twins differ, and by how much at least."""
    rows = {each["id"]: each for each in records if "statement" in each}
    twins: dict[str, list[dict[str, Any]]] = {}
    for each in records:
        if "broken" in each:
            twins.setdefault(each["id"], []).append(each)
    lines = []
    for name in sorted({*rows, *twins}):
        agrees = f"{rows[name]['agrees']:.0e}" if name in rows else "-"
        statement = rows[name]["statement"] if name in rows else "(the row was not run, or failed)"
        lines.append(f"{name:40} agrees {agrees:>6}  {statement}")
        for twin in sorted(twins.get(name, []), key=lambda each: str(each["broken"])):
            lines.append(f"{'':40} differs {twin['differs']:.1g} with {twin['broken']}")
    if lines:
        lines.append(f"{len(rows)} rows hold, {sum(map(len, twins.values()))} twins differ")
    return lines


def _mutants(records: list[dict[str, Any]]) -> list[str]:
    """name, what is replaced, the tests that reject it."""
    lines = []
    for each in sorted(records, key=lambda each: str(each["name"])):
        lines.append(f"{each['name']:40} {each['what']}")
        lines += [f"{'':40} rejected by {test}" for test in each["rejected_by"]]
    if lines:
        lines.append(f"{len(records)} mutants rejected")
    return lines
