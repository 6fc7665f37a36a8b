"""A pytest plugin: `pytest --atlas-impl pkg.module:function --atlas-cases FOLDER`.

Specified in specs/sources.md. A case is one test: only a run of the implementation tells its
tensors, and it is not run while tests are collected. Without its options the plugin imports nothing
and collects nothing.

Its options and outcomes: SRC-20, SRC-21.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from atlas_ref.oracle.cases.case import Case
    from atlas_ref.oracle.judge.answers import Source
    from atlas_ref.oracle.judge.compare import Checked
    from atlas_ref.oracle.judge.xfail import Entry

MARK = "atlas"


class Settings:
    """The options, read once per process.

    The implementation is imported before the first test that needs it.
    """

    def __init__(self, config: pytest.Config) -> None:
        from atlas_ref.oracle.cases import features
        from atlas_ref.oracle.judge import compare, xfail
        from atlas_ref.oracle.report.nearest import Nearest, nothing
        from atlas_ref.oracle.sources import sources

        option = config.getoption
        self.folders = [_place(each).resolve() for each in option("atlas_cases") or ()]
        self.sets, self.targets = option("atlas_set") or (), option("atlas_target") or ()
        if self.sets:
            from atlas_ref.vectors.sets.cases import selected

            self.folders += dict.fromkeys(
                path.resolve() if self.targets else path.resolve().parent
                for path in selected(self.sets, targets=self.targets)
            )
        self.without = features.declared_features(
            name.strip() for name in (option("atlas_without") or "").split(",") if name.strip()
        )
        self.dtype, self.state_dtype = option("atlas_dtype"), option("atlas_state_dtype")
        self.schedule = option("atlas_schedule")
        self.nearest = nothing if option("atlas_no_nearest") else Nearest().words
        only = option("atlas_only")
        self.only = (
            None
            if only is None
            else sorted(compare.chosen([name.strip() for name in only.split(",") if name.strip()]))
        )
        self.entries: list[Entry] = (
            xfail.load(option("atlas_xfail")) if option("atlas_xfail") else []
        )
        self.impl, self.program, self.timeout = (
            option("atlas_impl"),
            option("atlas_exec"),
            option("atlas_timeout"),
        )
        if self.impl and self.program:
            raise pytest.UsageError(
                "--atlas-impl and --atlas-exec: one source of results at a time"
            )
        if self.schedule and not (self.impl or self.program):
            raise pytest.UsageError("--atlas-schedule needs --atlas-impl or --atlas-exec")
        if self.schedule and self.only is not None:
            raise pytest.UsageError("--atlas-only: not with --atlas-schedule")
        if self.schedule:
            self._check_steps()
        for folder in self.folders:
            if not os.path.exists(folder):
                raise pytest.UsageError(f"--atlas-cases: {folder}: no such file or folder")
        self._source: Source | None = (
            sources.program(self.program, timeout=self.timeout) if self.program else None
        )

    def _check_steps(self) -> None:
        """Refuse words that are no steps before any case is asked."""
        from atlas_ref import CaseError
        from atlas_ref.oracle.schedules import steps

        try:
            steps.steps(self.schedule, tokens=1)
        except CaseError as error:
            raise pytest.UsageError(f"--atlas-schedule: {error}") from None

    def source(self) -> Source | None:
        """The implementation; None where the results recorded in the cases are compared."""
        if self._source is None and self.impl:
            from atlas_ref.oracle.sources import sources

            self._source = sources.function(self.impl)
        return self._source

    def checked(self, case: Case) -> Checked:
        """The verdicts on one case, of the calls of a schedule where there is one."""
        stated = {
            "dtype": self.dtype,
            "state_dtype": self.state_dtype,
            "without": self.without,
        }
        source = self.source()
        if self.schedule is None or source is None:
            from atlas_ref.oracle.judge.compare import checked

            return checked(case, source=source, only=self.only, **stated)
        from atlas_ref.oracle.schedules.judge import check_schedule

        return check_schedule(case, source, self.schedule, **stated)

    def repeated(self, case: Path) -> str:
        """The command that repeats one test."""
        import shlex

        from atlas_ref.vectors.sets.cases import identity

        words = ["pytest", "--atlas-cases", identity(case) or str(case)]
        for name, value in (
            ("impl", self.impl),
            ("exec", self.program),
            ("dtype", self.dtype),
            ("state-dtype", self.state_dtype),
            ("without", ",".join(self.without)),
            ("schedule", self.schedule),
        ):
            words += [f"--atlas-{name}", value] if value else []
        return shlex.join([*words, "-m", MARK])


def _place(word: str) -> Path:
    """The file or folder that a path means, or an id such as `v1:delta-rows`."""
    if ":" not in word:
        return Path(word)
    from atlas_ref.vectors.sets.cases import place

    return place(word)


SETTINGS = pytest.StashKey[Settings]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in a group of their own."""
    group = parser.getgroup("atlas-ref", "check an implementation against case files")
    group.addoption(
        "--atlas-cases",
        metavar="FOLDER",
        action="append",
        help="a case file or a folder of them; may be given several times",
    )
    group.addoption(
        "--atlas-set",
        metavar="SET",
        action="append",
        help="vectors: a shipped set, as v1, or a folder that holds one",
    )
    group.addoption(
        "--atlas-target",
        metavar="TARGET",
        action="append",
        help="with --atlas-set, vectors of this target alone, as delta; may be given several times",
    )
    group.addoption(
        "--atlas-without",
        metavar="pulse,reset,rows",
        help="what your code does not have: cases with it are skipped; see atlas-ref check --help",
    )
    group.addoption(
        "--atlas-impl",
        metavar="PKG.MODULE:FUNCTION",
        help="f(case, inputs) -> results, called in this process",
    )
    group.addoption(
        "--atlas-exec", metavar="COMMAND", help="a program per case: './mine {case} {out}'"
    )
    group.addoption(
        "--atlas-dtype",
        metavar="DTYPE",
        help="what your code works in: float64, float32, bfloat16, float16",
    )
    group.addoption(
        "--atlas-state-dtype", metavar="DTYPE", help="what your code keeps M and S in; else float32"
    )
    group.addoption(
        "--atlas-schedule",
        metavar="STEPS",
        help="call your code as a server does: serving, or steps; see atlas-ref check --help",
    )
    group.addoption("--atlas-only", metavar="y,M,grad/k", help="compare these results alone")
    group.addoption(
        "--atlas-xfail",
        metavar="FILE",
        help="what is expected to fail, why and until when: .toml or .json",
    )
    group.addoption(
        "--atlas-no-nearest",
        action="store_true",
        help="do not search for the nearest convention where a case fails",
    )
    group.addoption(
        "--atlas-timeout",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="for one case of --atlas-exec",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, if there are any, and add the folders to the collection."""
    config.addinivalue_line(
        "markers", f"{MARK}: an implementation against one case file (--atlas-cases)"
    )
    if not config.getoption("atlas_cases") and not config.getoption("atlas_set"):
        for option in ("impl", "exec", "xfail"):
            if config.getoption(f"atlas_{option}"):
                raise pytest.UsageError(f"--atlas-{option} needs --atlas-cases or --atlas-set")
    if config.getoption("atlas_target") and not config.getoption("atlas_set"):
        raise pytest.UsageError("--atlas-target belongs to --atlas-set")
    if not config.getoption("atlas_cases") and not config.getoption("atlas_set"):
        return
    from atlas_ref import CaseError

    try:
        config.stash[SETTINGS] = settings = Settings(config)
    except CaseError as error:
        raise pytest.UsageError(_printable(f"--atlas options: {error}")) from None
    for folder in map(str, settings.folders):
        if folder not in config.args:
            config.args.append(folder)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CaseFile | None:
    """A case file below one of the folders."""
    settings = parent.config.stash.get(SETTINGS, None)
    if settings is None or (
        file_path.suffix != ".safetensors" and file_path not in settings.folders
    ):
        return None
    if not any(folder in (file_path, file_path.parent) for folder in settings.folders):
        return None
    case_file: CaseFile = CaseFile.from_parent(parent, path=file_path)
    return case_file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse expected failures of cases that do not exist, before anything runs (SRC-16)."""
    settings = config.stash.get(SETTINGS, None)
    if settings is None or not settings.entries:
        return
    from atlas_ref.oracle.judge.xfail import concerns

    names = [
        str(file)
        for folder in settings.folders
        for file in (folder.glob("*.safetensors") if folder.is_dir() else [folder])
    ]
    for entry in settings.entries:
        if not any(concerns(entry, name) for name in names):
            raise pytest.UsageError(
                f"--atlas-xfail: xfail {entry.id}: no such case or tensor was checked"
            )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how long the vectors were, and which set has longer ones (VEC-14)."""
    settings = config.stash.get(SETTINGS, None)
    if settings is None or not settings.sets:
        return
    from atlas_ref.vectors.sets.cases import longest, reach, selected

    most = longest(selected(settings.sets, targets=settings.targets))
    if words := reach(most, settings.sets, settings.targets, option="--atlas-set"):
        terminalreporter.write_line(_printable(f"vectors: {words}"))


class CaseFile(pytest.File):
    """One case file, with one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """The test; the file is read when it runs."""
        item: CaseItem = CaseItem.from_parent(self, name=self.path.stem)
        item.add_marker(MARK)
        yield item


class NotPassed(AssertionError):
    """A failure of a case, in the words of the oracle, without what a terminal would act upon."""

    def __init__(self, text: str) -> None:
        super().__init__(_printable(text))


def _printable(text: str) -> str:
    from atlas_ref.cli.output import printable

    return "\n".join(map(printable, text.split("\n")))


class CaseItem(pytest.Item):
    """An implementation against one case."""

    def runtest(self) -> None:
        """Load, run, compare; the verdicts are properties of the test's report."""
        from atlas_ref.oracle.cases.case import CaseError, load
        from atlas_ref.oracle.judge import xfail
        from atlas_ref.oracle.report.failures import explain
        from atlas_ref.vectors.sets.cases import identity

        settings = self.config.stash[SETTINGS]
        name = str(self.path)
        try:
            done = settings.checked(load(name))
        except CaseError as error:
            raise NotPassed(f"bad input: {error}") from None
        entries = [entry for entry in settings.entries if xfail.concerns(entry, name)]
        outcome = xfail.apply(entries, done.rows)
        self.user_properties += [(row.tensor, row.verdict) for row in outcome.rows]
        problems = outcome.problems + xfail.unknown(
            entries, outcome.met, only=None if settings.only is None else set(settings.only)
        )
        repeated = settings.repeated(self.path)
        failure = explain(done, outcome.rows, repeated, nearest=settings.nearest)
        words = [failure._replace(name=identity(self.path) or "").text()] if failure else []
        if words or problems:
            raise NotPassed("\n".join([*words, *problems]))
        _not_run(outcome.rows)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message alone: no line of ours or of pytest's helps to find the mistake."""
        return (
            str(excinfo.value)
            if isinstance(excinfo.value, NotPassed)
            else super().repr_failure(excinfo)
        )

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is, for pytest's headings."""
        return self.path, None, f"case {self.name}"


def _not_run(rows: list[Any]) -> None:
    reasons = [row.xfail for row in rows if row.xfail]
    if reasons:
        pytest.xfail(reasons[0])
    if not rows or all(row.verdict == "NOT SUPPORTED" for row in rows):
        pytest.skip(_printable(rows[0].why) if rows else "nothing could be compared")
