"""Run ranges of inputs in processes of their own, and tell what each failing one was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

#: Where failing inputs are saved.
FAILURES = ROOT / "build" / "fuzz"

#: One thread, so that a process asks for few addresses.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
}


class Outcome(NamedTuple):
    """The outcomes of a range of inputs, and a message for each that failed."""

    lines: list[dict[str, Any]]
    failures: list[str]


def run(
    seed: str,
    first: int,
    last: int,
    good: Path,
    base: Path,
    *,
    how: str = "here",
    module: str = "tests.fuzz.worker",
    failures_in: Path = FAILURES,
) -> Outcome:
    """Run the inputs first to last - 1; a process that ends early is replaced by the next.

    Args:
        how: see `worker.main`.
        module: of the process.
    """
    lines: list[dict[str, Any]] = []
    failures: list[str] = []
    while first < last:
        shutil.rmtree(base, ignore_errors=True)
        words = [sys.executable, "-m", module, seed, str(first), str(last)]
        done = subprocess.run(
            [*words, str(good), str(base), how],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **ENVIRONMENT, "FUZZ_FAILURES": str(failures_in)},
            cwd=ROOT,
        )
        told = [json.loads(line) for line in done.stdout.splitlines()]
        ended = [each for each in told if "code" in each]
        lines += ended
        failures += [message(seed, each) for each in ended if each["problems"]]
        if len(told) > 2 * len(ended):
            failures.append(_stopped(seed, told[-1]["number"], done, base, failures_in))
        if not told:
            raise RuntimeError(f"no input ran: {done.stderr}")
        first = told[-1]["number"] + 1
    return Outcome(lines, failures)


def message(seed: str, line: dict[str, Any]) -> str:
    """What went wrong, the command, and how to run this input alone."""
    return "\n".join(
        (
            f"seed {seed}, input {line['number']}: {'; '.join(line['problems'])}",
            f"  {line['words']}",
            f"  said: {line['said'].strip()}",
            f"  files: {line['saved']}",
            f"  again: {sys.executable} -m tests.fuzz {seed} {line['number']}",
        )
    )


def _stopped(
    seed: str, number: int, done: subprocess.CompletedProcess[str], base: Path, failures: Path
) -> str:
    """The message about an input under which the process ended: it hung, or was killed."""
    place = failures / f"{seed}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    if (base / "room").is_dir():
        shutil.copytree(
            base / "room", place, symlinks=True, ignore=lambda _, names: {"pipe"} & set(names)
        )
    said = "".join(
        (base / name).read_text(errors="replace")[-3000:]
        for name in ("stack", "err")
        if (base / name).exists()
    )
    return message(
        seed,
        {
            "number": number,
            "problems": [f"the process ended with {done.returncode}, or the input hung"],
            "words": "",
            "said": f"{said}{done.stderr[-2000:]}",
            "saved": place,
        },
    )
