"""Tables at the end of a test run: reductions with twins, errata, mutants with the tests that
reject them.

A test adds its line with `record_property`; properties travel with the reports, so the tables are
complete under pytest-xdist too.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from collections import defaultdict
from typing import Any

import pytest

from tests.support.parameters import explore, few, fewer_examples, function_of

TABLES = ("reductions", "mutants")
ERRATUM = re.compile(r"::test_e_([a-z]\d\d[a-z]?)_(\w+)")


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--backend",
        default="numpy",
        help="where the tests compute: numpy, strict (a stand-in for CuPy) or cupy",
    )
    parser.addoption(
        "--parameters",
        type=int,
        metavar="N",
        help="run at most N parameters of a test function, spread evenly over all of them, and "
        "at most 2 N examples of a property",
    )
    parser.addoption(
        "--explore",
        type=int,
        metavar="N",
        help="draw N times as many examples of every property, those of --hypothesis-seed; without "
        "it of a new seed, which the first lines say",
    )


def pytest_configure(config: Any) -> None:
    count = config.getoption("--parameters")
    if count is not None:
        fewer_examples(2 * count)
    factor = config.getoption("--explore")
    if factor is not None:
        if config.option.hypothesis_seed is None:  # workers of pytest-xdist are told
            config.option.hypothesis_seed = secrets.randbelow(2**32)
        explore(factor, int(config.option.hypothesis_seed))


def pytest_report_header(config: Any) -> str | None:
    if config.getoption("--explore") is None:
        return None
    return f"properties explored with --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.hookimpl(tryfirst=True)  # before pytest leaves the slow ones out
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    leave_rest_to_slow(items)
    spread(config, items)
    use_backend(config, items)


def spread(config: Any, items: list[Any]) -> None:
    """Leave out most of many parameters where --parameters asks for few."""
    count = config.getoption("--parameters")
    if count is not None:
        few(config, items, count, lambda item: (function_of(item), "slow" in item.keywords))


def leave_rest_to_slow(items: list[Any]) -> None:
    """Mark as slow all parameters of a test marked `sample` but those that it draws.

    The draw goes by the names of the parameters, so a new parameter changes few others.
    """
    sampled: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None:
            sampled[function_of(item), mark.args[0]].append(item)
    for (_, count), group in sampled.items():
        drawn = sorted(group, key=lambda item: (zlib.crc32(item.name.encode()), item.name))
        for item in drawn[count:]:
            item.add_marker(pytest.mark.slow)


def use_backend(config: Any, items: list[Any]) -> None:
    """Build the bridge under --backend, or skip with the reason.

    Skipped are all tests where the backend cannot be used, and those about NumPy alone.
    """
    name = config.getoption("--backend")
    if name == "numpy":
        return
    from atlas_ref import backend
    from tests.support.close import Elsewhere
    from tests.support.standin import array, bridge

    assert array.NAME
    try:
        backend.named(name)
    except backend.BackendError as error:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=str(error)))
        return
    for item in items:
        for mark in item.iter_markers("host"):
            item.add_marker(pytest.mark.skip(reason=f"NumPy alone: {mark.args[0]}"))
    Elsewhere.yes = True
    bridge.build(name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    reports = {
        id(report): report
        for each in terminalreporter.stats.values()
        for report in each
        if hasattr(report, "user_properties") and hasattr(report, "when")
    }
    for report in reports.values():
        for name, value in report.user_properties:
            if name in TABLES and report.when == "call":
                found[name].append(json.loads(value))
    every_twin = terminalreporter.verbosity > 0
    tables = {
        "reductions": _reductions(found["reductions"], every_twin),
        "errata": _errata(list(reports.values())),
        "mutants": _mutants(found["mutants"]),
    }
    for name, lines in tables.items():
        if lines:
            terminalreporter.section(name)
            for line in lines:
                terminalreporter.write_line(line)


def _reductions(records: list[dict[str, Any]], every_twin: bool) -> list[str]:
    """Lines of the reductions: id, statement, worst agreement of the two sides, smallest distance
    of the twins.

    With -v the distance of each twin.
    """
    lines = []
    rows = sorted(
        {each["id"]: each["place"] for each in records}.items(), key=lambda row: int(row[1])
    )
    for name, _ in rows:
        own = [each for each in records if each["id"] == name and "statement" in each]
        row = max(own, key=lambda each: float(each["agrees"]), default=None)
        twins = sorted(
            (each for each in records if each["id"] == name and "broken" in each),
            key=lambda each: float(each["differs"]),
        )
        agrees = f"agrees to {row['agrees']:5.0e}" if row else "not seen to hold"
        nearest = f"{len(twins)} broken, nearest {twins[0]['differs']:.1g}" if twins else "no twin"
        lines.append(f"{name:44} {agrees:16} {nearest:24} {row['statement'] if row else ''}")
        lines += [
            f"{'':44} differs by {twin['differs']:.1g}: {twin['broken']}"
            for twin in twins
            if every_twin
        ]
    if lines:
        holding = len({each["id"] for each in records if "statement" in each})
        twins = sum("broken" in each for each in records)
        lines.append(f"{holding} rows hold, {twins} twins with one condition broken differ")
    return lines


def _errata(reports: list[Any]) -> list[str]:
    """Lines of the errata: id, mistake, and whether the proof held.

    A test named test_e_a03_... proves erratum E-A03.
    """
    proofs: dict[str, tuple[bool, str]] = {}
    for report in reports:
        named = ERRATUM.search(report.nodeid)
        if named and (report.when == "call" or report.failed):
            held, _ = proofs.get(named[1], (True, ""))
            proofs[named[1]] = (held and report.passed, named[2])
    lines = [
        f"E-{name.upper():6} {title.replace('_', ' ')}" + ("" if held else ": NOT PROVED")
        for name, (held, title) in sorted(proofs.items())
    ]
    if lines:
        lines.append(f"{sum(held for held, _ in proofs.values())} errata proved")
    return lines


def _mutants(records: list[dict[str, Any]]) -> list[str]:
    """Lines of the mutants: name, mistake, and the tests that reject it."""
    lines = []
    for each in sorted(records, key=lambda each: int(each["place"])):
        tests = ", ".join(test.rpartition("::test_")[2] for test in each["rejected_by"])
        lines.append(f"{each['name']:32} {each['what']}; rejected by {tests}")
    if lines:
        lines.append(f"{len(records)} mutants rejected")
    return lines
