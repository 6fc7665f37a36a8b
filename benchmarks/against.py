"""Time this checkout against another one, in turn.

    python -m benchmarks.against OTHER [memory ...] [--rounds N] [--starts N]
        [--pace cold|awake|busy] [--there NAME=VALUE]

Each checkout has a process of its own, and a new one at each start: where the system lays the
memory of a process alone moves its times by several hundredths, as a checkout against a copy of
itself shows. The pace is what precedes every sample:

- cold: both the caches and the threads have gone cold, as they are when a user's own work lies
  between two calls: the process writes 64 MB and sleeps.
- awake: untimed runs until processors that slept are awake, as `benchmarks.peers` has them (`python
  -m benchmarks.awake`).
- busy: both work on one processor, the same, and never sleep: what a second thread saves is not
  seen, and the ratios of a start stay put within a hundredth or two.

A round is one sample of each checkout and their ratio; what slows the machine for a while slows
both. A start counts with the medians of its rounds, and printed are medians and quartiles of
starts. `git worktree add OTHER COMMIT` makes the other checkout; `--there` sets a variable of its
environment alone, so `. --there ATLAS_REF_COMPILED=0` is this checkout without compiled code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Annotated, Self

import typer

from benchmarks import memories
from benchmarks.measure import LEAD, Spread

NAMES = (
    "FROZEN",
    "FROZEN_SPANS",
    "FROZEN_NEWTON_SCHULZ",
    "FLA_DELTA",
    "FLA_GATED_DELTA",
    "FLA_MOMENTUM_DELTA",
    "RUNNING_OMEGA",
)
KINDS = ("forward", "both")


class Pace(Enum):
    """Preparation before every sample."""

    COLD = "cold"
    AWAKE = "awake"
    BUSY = "busy"


#: Program of a process, which answers each line with the seconds of a call, the mean of two.
SERVE = """
import sys, time
import numpy as np
import atlas_ref
from benchmarks import memories
memory = getattr(memories, {name!r})
work = memories.work(memory, {kind!r}, memories.sequence(memory, memories.TOKENS))
other = np.zeros(2**24, np.float32)
for _ in range(5):
    work()
print(atlas_ref.__file__, flush=True)
for _ in sys.stdin:
    if {pace!r} == "cold":
        other += 1
        time.sleep(0.12)
    start = time.perf_counter()
    while {pace!r} == "awake" and time.perf_counter() - start < {lead}:
        work()
    start = time.perf_counter()
    work(), work()
    print((time.perf_counter() - start) / 2, flush=True)
"""


class Checkout:
    """A process that computes with the code of one folder."""

    def __init__(
        self, folder: Path, name: str, kind: str, pace: Pace, variables: dict[str, str]
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE.format(name=name, kind=kind, pace=pace.value, lead=LEAD)],
            cwd=folder,
            env={**os.environ, **variables, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        origin = self._answer()
        if not Path(origin).is_relative_to(folder):
            raise RuntimeError(f"{folder}: Python imports {origin} there")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.wait()

    def seconds(self) -> float:
        """One sample."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError("a checkout's process ended; what it wrote stands above")
        return line


def one_start(
    here: Path, other: Path, name: str, kind: str, rounds: int, pace: Pace, there: dict[str, str]
) -> tuple[float, float, float]:
    """Medians of a process of each checkout: seconds of both, and the ratio of ours to theirs."""
    with (
        Checkout(here, name, kind, pace, {}) as ours,
        Checkout(other, name, kind, pace, there) as theirs,
    ):
        samples = [(ours.seconds(), theirs.seconds()) for _ in range(rounds)]
    mine, its = zip(*samples, strict=True)
    return median(mine), median(its), median([a / b for a, b in samples])


def main(
    other: Annotated[
        Path,
        typer.Argument(
            exists=True, file_okay=False, resolve_path=True, help="A folder with another checkout."
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MEMORY", help=f"{', '.join(NAMES)}; all of them unless given"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Samples of each checkout and start.")] = 20,
    starts: Annotated[int, typer.Option(min=1, help="Processes of each checkout.")] = 5,
    pace: Annotated[Pace, typer.Option(help="What comes before every sample.")] = Pace.COLD,
    there: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable of the other checkout's environment."),
    ] = None,
) -> None:
    """Time the parallel forms of this checkout against those of another."""
    here = Path(__file__).resolve().parents[1]
    variables = {}
    for setting in there or []:
        variable, equals, value = setting.partition("=")
        if not equals or not variable:
            raise typer.BadParameter(f"--there {setting}: expected NAME=VALUE")
        variables[variable] = value
    for name in names or NAMES:
        if name not in NAMES:
            raise typer.BadParameter(f"{name} is none of {', '.join(NAMES)}")
    if pace is Pace.BUSY and not hasattr(os, "sched_setaffinity"):
        raise typer.BadParameter("--pace busy: this system cannot hold a process on one processor")
    if pace is Pace.BUSY:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in names or NAMES:
        for kind in KINDS:
            mine, its, ratio = zip(
                *(
                    one_start(here, other, name, kind, rounds, pace, variables)
                    for _ in range(starts)
                ),
                strict=True,
            )
            quartiles = Spread.of(ratio)
            print(
                f"{memories.title(getattr(memories, name), kind)}: "
                f"{1e3 * median(mine):.1f} ms, there {1e3 * median(its):.1f} ms,"
                f" ratio {quartiles.median:.2f} ({quartiles.low:.2f} to {quartiles.high:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
