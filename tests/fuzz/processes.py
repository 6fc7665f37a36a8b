"""Inputs in processes of their own, with standard streams that are closed, full or left early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.attempt import CODES, Input, Ran, left, printed

ROOT = Path(__file__).parents[2]

#: What a shell writes after the command.
STREAMS = ("", "", ">&-", ">/dev/full", "2>&-", "2>/dev/full", "<&-", "<&- >&- 2>&-", "| head -c 1")

#: Signals that an implementation sends to the command that asks it.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Seconds after which a process has hung.
SECONDS = 60.0


def ran(each: Input) -> Ran:
    """Run an input in a new process; its streams are drawn from its words."""
    streams, number = _drawn(each)
    words = list(each.words)
    if number is not None:
        each.room.put("does", f"kill -{number.value} $PPID; sleep 10\n".encode())
        words = ["check", _case(each), "--exec", "sh ./does {case} {out}"]
    command = f'ulimit -v 3145728; "$@" {streams}; exit ${{PIPESTATUS[0]}}'
    program = [sys.executable, "-m", "atlas_ref.cli"]
    done = subprocess.run(
        ["bash", "-c", command, "bash", *program, *words],
        cwd=each.room.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        preexec_fn=_heeding,
    )
    out, err = (text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr))
    return Ran(done.returncode, out, err)


def _heeding() -> None:
    """Heed signals that what runs in the background, or under nohup, has ignored from its start."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)


def problems(each: Input, ran: Ran, temporary: Path) -> list[str]:
    """Everything that an input may not bring about and did, whatever its streams are."""
    streams, number = _drawn(each)
    found = [*_ended(ran, number), *left(each, ran)]
    if not streams:
        found += printed(each, ran) if number is None else []
    return found + [f"left behind: {file}" for file in sorted(os.listdir(temporary))]


def _drawn(each: Input) -> tuple[str, signal.Signals | None]:
    random = Random(repr((each.command, each.words)))
    if random.random() < 0.1:
        return "", random.choice(SIGNALS)
    return random.choice(STREAMS), None


def _case(each: Input) -> str:
    """A case that is asked about, for the implementation that ends the command."""
    name = "signalled.safetensors"
    each.room.put(name, each.room.good["case"]["delta.safetensors"])
    each.before[name] = each.room.good["case"]["delta.safetensors"]
    each.before["does"] = (each.room.folder / "does").read_bytes()
    return name


def _ended(ran: Ran, number: signal.Signals | None) -> Iterator[str]:
    expected = CODES if number is None else (128 + number.value,)
    if ran.code not in expected:
        yield f"exit code {ran.code}, expected one of {expected}"
    if "Traceback" in ran.err + ran.out:
        yield "a traceback"
