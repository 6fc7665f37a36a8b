"""Run tests against one mutant in a process of its own.

    python tests/mutants/run_mutant.py NAME [TEST...]

NAME is a mutant, a legal variant or `none`; without TEST the tests named for it run. The last line
on standard output is a JSON object: for each test "passed", "rejected" where an assertion failed,
or what crashed. With --serve the lines on standard input are JSON arrays [NAME, TESTS]; each is
answered by a fork that nothing was changed in before. Tests are collected once, before any fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import pytest

ROOT = Path(__file__).absolute().parents[2]
OFF = (
    part
    for name in ("terminal", "xdist", "hypothesispytest", "cacheprovider")
    for part in ("-p", f"no:{name}")
)
ARGUMENTS = (*OFF, "--capture=no", "-o", "addopts=--import-mode=importlib")
#: Every file with tests that are named for a mutant.
NAMED = (
    "tests/mutants/test_targets.py",
    "tests/mutants/test_parallel_targets.py",
    "tests/mutants/test_level_targets.py",
    "tests/levels/test_learned.py",
    "tests/levels/test_nested.py",
    "tests/levels/test_outer.py",
    "tests/mutants/test_loop_targets.py",
    "tests/mutants/test_tnt_targets.py",
    "tests/rules/deep_memory/test_deep_momentum.py",
    "tests/rules/deep_memory/test_lag.py",
    "tests/reductions/test_reductions.py",
)
SECONDS = 120


class Judge:
    """Collector of each test's outcome."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = yield
        if call.excinfo is not None:
            rejected = call.when == "call" and issubclass(
                call.excinfo.type, AssertionError | pytest.fail.Exception
            )
            self.ended[item.nodeid] = (
                "rejected"
                if rejected
                else f"{call.when}: {call.excinfo.typename}: {call.excinfo.value}"
            )
        elif call.when == "call":
            self.ended[item.nodeid] = "passed"
        return report


class Server:
    """In place of the run of all tests, a fork for every request, and its answer as a line."""

    def __init__(self, requests: Iterable[tuple[str, list[str]]], answers: TextIO) -> None:
        self.requests = requests
        self.answers = answers

    def pytest_configure(self) -> None:
        from tests.support.parameters import end_at_first_failure

        end_at_first_failure()

    def pytest_runtestloop(self, session: Any) -> bool:
        assert session.testsfailed == 0, "the named tests are not collected"
        for name, tests in self.requests:
            print(json.dumps(in_a_fork(session, name, tests)), file=self.answers, flush=True)
        return True


def judged(session: Any, name: str, tests: list[str]) -> dict[str, Any]:
    """Apply the mutant to this process and run the tests."""
    from tests.mutants.mutants import CRASH, LEGAL, MUTANTS

    if name != "none":
        chosen = next(each for each in (*MUTANTS, *LEGAL, CRASH) if each.name == name)
        chosen.apply()
        tests = tests or list(chosen.tests)
    judge = Judge()
    session.config.pluginmanager.register(judge)
    by_name = {item.nodeid: item for item in session.items}
    items = [by_name[each] for each in tests]
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return {"tests": judge.ended}


def in_a_fork(session: Any, name: str, tests: list[str]) -> dict[str, Any]:
    """`judged` in a child, so that this process stays as it is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.close(read)
        os.dup2(2, 1)
        try:
            found = judged(session, name, tests)
        except BaseException as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(write, "w") as answer:
            json.dump(found, answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"the process ended with status {status}"}


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]
    os.chdir(ROOT)
    asked = sys.argv[1:]
    if asked[:1] == ["none"] and not asked[1:]:
        raise SystemExit("run_mutant.py: `none` needs the tests to run")
    served = Server(
        map(json.loads, sys.stdin) if asked == ["--serve"] else [(asked[0], asked[1:])],
        os.fdopen(os.dup(1), "w"),
    )
    os.dup2(2, 1)
    sys.exit(pytest.main([*ARGUMENTS, *NAMED], plugins=[served]))
