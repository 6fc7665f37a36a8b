"""Run tests against one mutant in this process: `python tests/mutants/run_mutant.py NAME [TEST...]`.

NAME is a mutant, a legal variant or `none`; without TEST the tests named for it run. The last line on standard output
is a JSON object: for each test "passed", "rejected" where an assertion failed, or what crashed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).absolute().parents[2]
OFF = tuple(part for name in ("terminal", "xdist", "hypothesispytest", "cacheprovider") for part in ("-p", f"no:{name}"))


class Judge:
    """Collects how each test ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = yield
        if call.excinfo is not None:
            rejected = call.when == "call" and issubclass(call.excinfo.type, AssertionError | pytest.fail.Exception)
            self.ended[item.nodeid] = "rejected" if rejected else f"{call.when}: {call.excinfo.typename}: {call.excinfo.value}"
        elif call.when == "call":
            self.ended[item.nodeid] = "passed"
        return report


def main(name: str, tests: list[str]) -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from tests.mutants.mutants import CRASH, LEGAL, MUTANTS

    os.chdir(ROOT)
    if name != "none":
        chosen = next(each for each in (*MUTANTS, *LEGAL, CRASH) if each.name == name)
        chosen.apply()
        tests = tests or list(chosen.tests)
    if not tests:
        raise SystemExit("run_mutant.py: `none` needs the tests to run")
    judge = Judge()
    code = pytest.main([*OFF, "-o", "addopts=--import-mode=importlib", *tests], plugins=[judge])
    print(json.dumps({"code": int(code), "tests": judge.ended}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
