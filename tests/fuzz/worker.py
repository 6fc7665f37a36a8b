"""The process that runs inputs one after the other: `python -m tests.fuzz.worker SEED FIRST LAST GOOD BASE HOW`.

Its memory is limited, and an input that does not end is told with its stack. A line of JSON goes to
the process that started it before and after each input.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, TextIO

from atlas_ref.cli import main as command_line
from tests.fuzz import attempt, commands, processes
from tests.fuzz.room import loaded

#: Bytes of memory that a command may take, and of addresses that a process may ask for.
MEMORY, ADDRESSES = 2**30, 3 * 2**30

#: Seconds that an input may take on a machine with much else to do.
SECONDS = 30.0


def main(seed: str, first: int, last: int, good: str, base: str, how: str) -> None:
    """Run the inputs of a range, and tell of each.

    Args:
        how: here, in this process; apart, each in a process of its own with odd streams.
    """
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    place = Path(base)
    (place / attempt.TEMPORARY).mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(place / attempt.TEMPORARY)
    os.environ.update(TMPDIR=tempfile.tempdir, HOME=str(place), PYTHONDONTWRITEBYTECODE="1")
    warnings.simplefilter("always")
    files = loaded(Path(good))
    command_line.program = lambda command: commands.PROGRAM  # type: ignore[assignment]
    stack = (place / "stack").open("w")
    for number in range(first, last):
        tell.write(json.dumps({"number": number}) + "\n")
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=stack)
        outcome = _tried(seed, number, place, files, how)
        faulthandler.cancel_dump_traceback_later()
        tell.write(json.dumps({"number": number, **outcome}) + "\n")
        if outcome["memory"] > MEMORY:
            return  # the next process tells the memory of the next input


def _tried(seed: str, number: int, place: Path, files: Any, how: str) -> dict[str, Any]:
    room, temporary = place / "room", place / attempt.TEMPORARY
    os.chdir(place)
    each = attempt.drawn(seed, number, room, files)
    os.chdir(room)
    environment, path = dict(os.environ), list(sys.path)
    started = time.perf_counter()
    ran = _ran(each.words, place) if how == "here" else processes.ran(each)
    seconds = time.perf_counter() - started
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    found = (attempt if how == "here" else processes).problems(each, ran, temporary)
    memory = max(_peak(), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    if memory > MEMORY:
        found.append(f"{memory / 2**20:.0f} MiB of memory")
    if found:
        (room / "printed.txt").write_text(f"{ran.out}\n--- standard error\n{ran.err}")
        for file in temporary.iterdir():
            shutil.move(file, room / f"temporary-{file.name}")
    return {
        "command": each.command,
        "code": ran.code,
        "seconds": round(seconds, 3),
        "memory": memory,
        "words": commands.shown(each.words),
        "problems": found,
        "said": (ran.err or ran.out)[: 2000 if found else 200],
        "saved": _saved(room, seed, number) if found else "",
    }


def _peak() -> int:
    """Most bytes of memory that this process had, since it is this program.

    The number of getrusage begins, on Linux, with what the process that started this one had.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def _saved(room: Path, seed: str, number: int) -> str:
    """The folder where the files of a failing input are saved."""
    place = Path(os.environ["FUZZ_FAILURES"], f"{seed}-{number}")
    shutil.rmtree(place, ignore_errors=True)
    os.chdir("/")
    shutil.copytree(room, place, symlinks=True, ignore=lambda _, names: {"pipe"} & set(names))
    return str(place)


def _streams(place: Path) -> tuple[TextIO, TextIO]:
    """Standard output and error into new files, those of child processes too."""
    for number, name in ((1, "out"), (2, "err")):
        handle = os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    out = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    err = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return out, err


def _ran(words: list[str], place: Path) -> attempt.Ran:
    """Run the command line in this process, with standard streams of its own."""
    streams = _streams(place)
    sys.argv, (sys.stdout, sys.stderr) = ["atlas-ref", *words], streams
    try:
        command_line.main()
        code: Any = "returned"
    except SystemExit as stopped:
        code = stopped.code
    except BaseException as error:  # which the shell would see as a traceback
        code = f"{type(error).__name__}: {error}"
    if not os.path.samestat(os.fstat(1), os.stat(place / "out")):
        # standard output takes everything here, so that it was given up for another file's error
        code = f"{code}, after an error of the system that no reader of files expected"
    for stream in streams:
        stream.close()
    out, err = ((place / name).read_text(errors="backslashreplace") for name in ("out", "err"))
    return attempt.Ran(code, out, err)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
