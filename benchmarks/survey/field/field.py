"""Every package in its environment, every function asked: the rows of the scoreboard."""

from __future__ import annotations

import contextlib
import datetime
import functools
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atlas_ref.oracle.cases.case import Case, CaseError
from atlas_ref.oracle.identify.stated import setting
from atlas_ref.oracle.sources.programs import Isolated, program
from atlas_ref.oracle.sources.sources import Source
from benchmarks.survey.catalogue import MODULES, helper
from benchmarks.survey.field.environment import PATH, AbsentError, Environment, made
from benchmarks.survey.field.packages import Entry, Package
from benchmarks.survey.field.scores import scored

#: Seconds that a function has for its import and for one case.
TIMEOUT = 300.0

Row = dict[str, Any]
Making = Callable[[Package], Environment]
Tell = Callable[[str], None]

#: What else is asked of a function while its process runs; an entry, its version and the process.
Also = Callable[[Entry, str, Source], None]


def nothing(entry: Entry, version: str, source: Source) -> None:
    """What is asked beside the scores where nothing is."""


def key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """The question that a row answers."""
    return row["package"], row["adapter"], row["target"]


def asked_of(
    package: Package,
    cases: Sequence[Case],
    *,
    making: Making = made,
    also: Also = nothing,
    tell: Tell = lambda _: None,
) -> list[Row]:
    """The rows of a package: its functions, asked in its environment."""
    tell(package.name)
    try:
        environment = making(package)
    except AbsentError as error:
        return [{**said(package, entry), "missing": str(error)} for entry in package.entries]
    version = environment.version(package.name)
    rows = []
    for entry in package.entries:
        tell(f"  {entry.entry}, {entry.target}")
        row = {**said(package, entry), "version": version}
        with contextlib.ExitStack() as stack:
            try:
                source = _source(package, entry, environment, stack)
                also(entry, version, source)
                rows.append({**row, **scored(entry, cases, source)._asdict()})
            except CaseError as error:
                rows.append({**row, "missing": _short(str(error))})
    return rows


def _source(
    package: Package, entry: Entry, environment: Environment, stack: contextlib.ExitStack
) -> Source:
    """The process that answers cases: a function of Python, or a program that Node runs."""
    if not package.program:
        isolated = Isolated(entry.adapter, timeout=TIMEOUT, python=environment.python, path=PATH)
        return stack.enter_context(contextlib.closing(isolated))
    words = ["env", f"NODE_PATH={environment.modules}", str(environment.python)]
    words += [str(PATH[1] / package.program), "{case}", "{out}"]
    return program(shlex.join(words), timeout=TIMEOUT)


def said(package: Package, entry: Entry) -> Row:
    """What the catalogue says of an entry."""
    return {
        "package": package.name,
        "version": package.pinned,
        "entry": entry.entry,
        "adapter": entry.adapter,
        "target": entry.target,
        "convention": convention(entry),
        "dtype": entry.dtype,
        "note": "; ".join(each for each in (entry.note, package.note) if each),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def convention(entry: Entry) -> str:
    """The convention of a rule, or the member of rule dplr and what is stated beside it."""
    module, _, name = entry.adapter.partition(":")
    if module in MODULES:
        return _own(module, name)
    return ", ".join(each for each in (entry.target.partition("-")[2], entry.settings) if each)


@functools.cache
def _own(module: str, name: str) -> str:
    return setting(getattr(helper(module), name).convention)


def together(every: Sequence[Package], now: Sequence[Row], before: Sequence[Row]) -> list[Row]:
    """All rows in the order of the catalogue: of this run, else as an earlier run left them.

    A row of an earlier run stands with its date, and in place of one that could not be asked.
    """
    recorded = {key(row): row for row in before}
    mine = {key(row): row for row in now}
    found = []
    for package in every:
        for entry in package.entries:
            place = (package.name, entry.adapter, entry.target)
            new, old = mine.get(place), recorded.get(place)
            if new is None or ("missing" in new and old is not None and "missing" not in old):
                new = old
            found.append(new or {**said(package, entry), "missing": "not asked yet"})
    return found


def _short(words: str) -> str:
    return words if len(words) <= 160 else words[:157] + "..."
