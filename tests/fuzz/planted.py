"""A worker whose command line has a planted fault for each input, to see that each is told."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from tests.fuzz import commands, worker

#: Bytes that a command may take here: filling 1 GiB takes long on a machine with little left.
MEMORY = 2**28


def _fault() -> None:
    raise KeyError("a bug")


def _hang() -> None:
    time.sleep(60)


def _die() -> None:
    os._exit(9)


def _fill() -> None:
    b"x" * (MEMORY + 2**26)


def _colour() -> None:
    print("\x1b[31m")


def _trace() -> None:
    print("Traceback (most recent call last):", file=sys.stderr)


def _warn() -> None:
    warnings.warn("a warning", RuntimeWarning, stacklevel=1)


def _leave() -> None:
    Path("half").write_bytes(b"ha")


def _change() -> None:
    for path in sorted(each for each in Path().rglob("*") if each.is_file()):
        path.write_bytes(b"changed")


def _code() -> int:
    return 7


def _read() -> None:
    Path("x" * 300).stat()


#: The fault of each input, and a piece of what is told of it.
FAULTS = (
    (_fault, "exit code 4"),
    (_hang, "the input hung"),
    (_die, "the process ended with 9"),
    (_fill, "MiB of memory"),
    (_colour, "control characters on standard output"),
    (_trace, "a traceback"),
    (_warn, "a warning: "),
    (_leave, "'half' was left behind"),
    (_code, "exit code 7"),
    (_read, "no reader of files expected"),
)


def program(number: int) -> Any:
    """A command line with the fault of a number alone."""

    def app(args: list[str], standalone_mode: bool) -> Any:
        return FAULTS[number][0]()

    return app


def main(seed: str, first: str, last: str, *places: str) -> None:
    """Run each input with its fault."""
    fault = FAULTS[int(first)][0]
    worker.SECONDS = 3.0 if fault is _hang else 60.0
    worker.MEMORY = MEMORY
    commands.PROGRAM = program(int(first))
    worker.main(seed, int(first), int(first) + 1, *places)


if __name__ == "__main__":
    main(*sys.argv[1:])
