"""Time of the diagnosis tools: start-up, a case, a search, a folder, a wrong kernel, a sweep."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atlas_ref.oracle.cases.case import Case, save
from atlas_ref.oracle.cases.new import Request, new
from atlas_ref.oracle.evaluate import evaluate
from atlas_ref.oracle.identify.identify import identify
from atlas_ref.oracle.judge.answers import Answer
from atlas_ref.oracle.replay.replay import replay
from atlas_ref.oracle.replay.trace import trace
from atlas_ref.oracle.sweep.sweep import sweep
from benchmarks import wrong_omega
from benchmarks.measure import Row, Spread, Target, Work, timer
from benchmarks.startup import HELP, _children, _python
from benchmarks.wrong_omega import MISTAKES

CASES = 200
SAMPLES = 3

#: The first check of a process whose modules are loaded: what a case costs after start-up.
FIRST = """
import sys, time
from atlas_ref.oracle.judge import compare, tolerance
from atlas_ref.oracle.cases.case import load
start = time.process_time()
assert all(row.verdict == "PASS" for row in compare.check(load(sys.argv[1])))
print(time.process_time() - start)
"""


def rows() -> list[Row]:
    """The bounds of the design, in CPU time on one core."""
    with tempfile.TemporaryDirectory(prefix="atlas-ref-") as name:
        folder = Path(name)
        cases = list(_written(folder))
        one = [float(_printed(FIRST, str(cases[0]))) for _ in range(SAMPLES)]
        many = [timer(lambda: _checked(folder), _children)()]
        verdicts = list(_verdicts(folder))
    omega, mine = _omega()
    return [
        _row(
            "atlas-ref --help", [timer(lambda: _python(HELP), _children)() for _ in range(5)], 0.25
        ),
        _row("check of one small case, after start-up", one, 0.2),
        _row(
            "identify, T = 8, from y in float32",
            _samples(lambda: identify(omega, {"out/y": mine["out/y"]})),
            5.0,
        ),
        _row("replay, T = 8, float32", _samples(lambda: replay(omega, mine), 1)),
        _row(f"atlas-ref check of {CASES} small cases", many, 30.0),
        *verdicts,
        _row("sweep of 100 Delta cases, in this process", _samples(_swept, 1)),
    ]


def _row(name: str, seconds: list[float], most: float | None = None) -> Row:
    nothing = Spread.one()
    target = None if most is None else Target("at most", None, most)
    return Row(
        name, "s", Spread.of(seconds), "", nothing, nothing, target, note="CPU time of the process"
    )


def _samples(work: Work, count: int = SAMPLES) -> list[float]:
    return [timer(work, time.process_time)() for _ in range(count)]


def _written(folder: Path) -> Iterator[Path]:
    """Small cases of every rule, with float32 results as an implementation would hand them over."""
    rules = ("omega", "titans_lmm", "delta", "hebbian")
    for number in range(CASES):
        rule = rules[number % 4]
        case = new(
            Request(
                rule=rule,
                tokens=8,
                window=3 if rule == "omega" else 1,
                seed=number,
                dtype="float32",
            )
        )
        path = folder / f"{number:03}-{rule}.safetensors"
        save(path, case.header, {**case.inputs, **_answers(case)})
        yield path


def _verdicts(folder: Path) -> Iterator[Row]:
    """The whole verdict on an Omega kernel with a mistake, on a case as `new` makes it (SRC-24)."""
    path = folder / "omega.safetensors"
    case = new(Request(rule="omega", window=4))
    save(path, case.header, case.inputs)
    for name, mistake in MISTAKES.items():
        words = ["check", str(path), "--impl", f"{wrong_omega.__name__}:{name}"]
        seconds = timer(partial(_judged, words), _children)()
        yield _row(f"atlas-ref check of a wrong Omega kernel: {mistake}", [seconds], 10.0)


def _judged(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atlas_ref.cli", *words],
        cwd=Path(wrong_omega.__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "  nearest " in done.stdout


def _answers(case: Case) -> dict[str, Any]:
    return {
        name: np.asarray(value, np.float32)
        for name, value in evaluate(case, dtype="float32").tensors.items()
    }


def _checked(folder: Path) -> None:
    _printed("from atlas_ref.cli.main import main; main()", "check", str(folder))


def _printed(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def _omega() -> tuple[Case, dict[str, Any]]:
    """A case of the rule with the most conventions, and its results and trace in float32."""
    case = new(Request(rule="omega", tokens=8, window=3, dtype="float32"))
    return case, _answers(case) | trace(case, dtype="float32")


def _swept() -> None:
    def answer(case: Case) -> Answer:
        return Answer(_answers(case))

    assert sweep("delta", answer, cases=100, keep=0).counts == {"PASS": 100}
