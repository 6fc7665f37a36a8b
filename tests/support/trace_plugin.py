"""A record of the lines that the tests of each clause execute, for `make trace`.

`python -m pytest -p tests.support.trace_plugin -m clause` writes it.

Writes build/trace/run.json, which `atlas-ref trace-spec` reads. A test function is one context, all
its parameters together. A function with many parameters runs with a few of them, spread evenly, and
a property with few examples: `make test` judges them all, here it is asked what they execute. Slow
tests whose clauses have a faster test are left out. What a fixture of a module or a session
executes counts for every test that asks for it, whichever came first. Works under pytest-xdist,
where each worker hands its part to the one that started it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage
import pytest

from docs.clauses import cases, planted, record
from docs.clauses.record import Mutant, Ran, Record
from tests.support.parameters import few, fewer_examples, function_of

WORKER = "trace"
#: Parameters of one test function that run, where its marks are the same for all of them.
PARAMETERS = 6
#: Examples that hypothesis draws for a property.
EXAMPLES = 12

Lines = dict[str, set[int]]


class Recorder:
    """The record of one process: contexts of coverage, marks and outcomes by test function."""

    def __init__(self, root: Path) -> None:
        self.root = root
        packages = [str(root / package / "*") for package in record.PACKAGES]
        self.coverage = coverage.Coverage(
            data_file=None, include=packages, config_file=False, messages=False
        )
        self.context = ""
        self.clauses: dict[str, list[str]] = {}
        self.shared: dict[str, set[str]] = defaultdict(set)
        self.failed: set[str] = set()
        self.passed: set[str] = set()
        self.coverage.start()

    def enter(self, context: str) -> None:
        """Enter a context; parameters in a row share one, since a change costs a millisecond."""
        if context != self.context:
            self.context = context
            self.coverage.switch_context(context)

    def lines(self) -> dict[str, dict[str, set[int]]]:
        """The executed lines, by context and file."""
        self.coverage.stop()
        data = self.coverage.get_data()
        by_context: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for path in data.measured_files():
            name = Path(path).relative_to(self.root).as_posix()
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in filter(None, contexts):
                    by_context[context][name].add(line)
        return by_context

    def of_test(self, name: str, lines: dict[str, dict[str, set[int]]]) -> dict[str, str]:
        """The lines of a test function and of its shared fixtures, by file."""
        by_file: Lines = defaultdict(set)
        for context in (name, *self.shared[name]):
            for path, each in lines.get(context, {}).items():
                by_file[path] |= each
        return {path: record.spans(each) for path, each in by_file.items()}

    def part(self) -> dict[str, Any]:
        """The record in plain types, which travel between processes."""
        lines = self.lines()
        tests = {
            name: [ids, name in self.passed, name in self.failed, self.of_test(name, lines)]
            for name, ids in self.clauses.items()
        }
        vectors = {
            name.removeprefix("vector:"): {path: record.spans(each) for path, each in files.items()}
            for name, files in lines.items()
            if name.startswith("vector:")
        }
        return {"tests": tests, "vectors": vectors}


def pytest_configure(config: Any) -> None:
    fewer_examples(EXAMPLES)
    config.trace_parts = []
    # what is changed while the tests run did not run
    config.trace_sources = record.sources(config.rootpath)
    config.trace_recorder = None
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        config.trace_recorder = Recorder(config.rootpath)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out most of many parameters, and slow tests whose proof a faster one gives."""
    fast = {each for item in items if not item.get_closest_marker("slow") for each in _marked(item)}
    for_trace = [
        item
        for item in items
        if not item.get_closest_marker("slow") or not set(_marked(item)) <= fast
    ]
    chosen = set(for_trace)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = for_trace
    few(config, items, PARAMETERS, lambda item: (function_of(item), *_marked(item)))


def _marked(item: Any) -> list[str]:
    return [each for mark in item.iter_markers("clause") for each in mark.args]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Any:
    recorder = item.config.trace_recorder
    if recorder is not None:
        name = function_of(item)
        clauses = recorder.clauses.setdefault(name, [])
        clauses += [each for each in _marked(item) if each not in clauses]
        recorder.shared[name] |= {
            _context(each)
            for all_of_name in _fixtures(item)
            for each in all_of_name
            if each.scope != "function"
        }
        recorder.enter(name)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """Give fixtures that several tests share a context of their own."""
    recorder = request.config.trace_recorder
    if recorder is None or fixturedef.scope == "function":
        return (yield)
    outer = recorder.context
    recorder.enter(_context(fixturedef))
    try:
        return (yield)
    finally:
        recorder.enter(outer)


def _fixtures(item: Any) -> Any:
    """All fixtures of a test, its own or by way of others."""
    return item._fixtureinfo.name2fixturedefs.values()


def _context(fixture: Any) -> str:
    return f"fixture:{fixture.baseid}:{fixture.argname}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    recorder = item.config.trace_recorder
    if recorder is not None:
        if report.failed:
            recorder.failed.add(function_of(item))
        elif report.passed and report.when == "call":
            recorder.passed.add(function_of(item))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    if WORKER in getattr(node, "workeroutput", {}):
        node.config.trace_parts.append(node.workeroutput[WORKER])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: Any) -> None:
    config = session.config
    if config.trace_recorder is not None:
        evaluate_vectors(config.trace_recorder, *_share(config))
        part = config.trace_recorder.part()
        if hasattr(config, "workeroutput"):
            config.workeroutput[WORKER] = part
            return
        config.trace_parts.append(part)
    if config.trace_parts and not config.option.collectonly:
        out = record.write(
            config.rootpath,
            joined(config.trace_parts, planted.read(config.rootpath)),
            of=config.trace_sources,
        )
        config.get_terminal_writer().line(f"recorded {out.relative_to(config.rootpath)}")


def _share(config: Any) -> tuple[int, int]:
    """The place of this process among those that run tests, and their number."""
    worker = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])


def evaluate_vectors(recorder: Recorder, place: int, places: int) -> None:
    """Evaluate this process's share of the recorded cases, each in a context of its own."""
    for name, evaluate in cases.evaluations(recorder.root, place, places):
        recorder.enter(f"vector:{name}")
        evaluate()


def joined(parts: list[dict[str, Any]], mutants: tuple[Mutant, ...]) -> Record:
    """The record of all processes; a test function passed if some parameter did and none failed."""
    lines: dict[str, Lines] = defaultdict(lambda: defaultdict(set))
    clauses: dict[str, list[str]] = {}
    passed, failed = set(), set()
    vectors: dict[str, dict[str, frozenset[int]]] = {}
    for part in parts:
        vectors |= {
            name: {path: record.numbers(text) for path, text in each.items()}
            for name, each in part["vectors"].items()
        }
        for name, (ids, good, bad, files) in part["tests"].items():
            clauses[name] = list(dict.fromkeys([*clauses.get(name, []), *ids]))
            passed |= {name} if good else set()
            failed |= {name} if bad else set()
            for path, text in files.items():
                lines[name][path] |= record.numbers(text)
    tests = {
        name: Ran(
            tuple(ids),
            name in passed - failed,
            {path: frozenset(each) for path, each in lines[name].items()},
        )
        for name, ids in clauses.items()
    }
    return Record(tests, vectors, mutants)
