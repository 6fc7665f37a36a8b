"""Run tests against one mutant in a process of its own.

    python tests/mutants/run_mutant.py NAME [TEST...]

NAME is a mutant, a legal variant or `none`; without TEST the tests named for it run. The last line
on standard output is a JSON object: for each test "passed", "rejected" where an assertion failed,
or what crashed. With --serve the lines on standard input are JSON arrays [NAME, TESTS]; each is
answered by a fork that nothing was changed in before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).absolute().parents[2]
OFF = (
    part
    for name in ("terminal", "xdist", "hypothesispytest", "cacheprovider")
    for part in ("-p", f"no:{name}")
)
# a mutant imports the package before pytest could rewrite its plugin
IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
ARGUMENTS = (*OFF, *IMPORTED, "-o", "addopts=--import-mode=importlib")
# imported before any fork
WARM = (
    "tests/mutants/test_targets.py",
    "tests/mutants/test_parallel_targets.py",
    "tests/mutants/test_level_targets.py",
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


def judged(name: str, tests: list[str]) -> dict[str, Any]:
    """Apply the mutant to this process and run the tests."""
    from tests.mutants.mutants import CRASH, LEGAL, MUTANTS

    if name != "none":
        chosen = next(each for each in (*MUTANTS, *LEGAL, CRASH) if each.name == name)
        chosen.apply()
        tests = tests or list(chosen.tests)
    if not tests:
        raise SystemExit("run_mutant.py: `none` needs the tests to run")
    judge = Judge()
    code = pytest.main([*ARGUMENTS, *tests], plugins=[judge])
    return {"code": int(code), "tests": judge.ended}


def in_a_fork(name: str, tests: list[str]) -> dict[str, Any]:
    """`judged` in a child, so that this process stays as it is."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        os.close(read)
        os.dup2(2, 1)
        try:
            found = judged(name, tests)
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


def serve() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        collected = pytest.main([*ARGUMENTS, "--collect-only", *WARM])
    assert collected == 0, f"the named tests are not collected: exit code {collected}"
    for line in sys.stdin:
        print(json.dumps(in_a_fork(*json.loads(line))), flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/support")]
    os.chdir(ROOT)
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        print(json.dumps(judged(sys.argv[1], sys.argv[2:])))
