"""What signals end, and what remains of a command then: no process and no temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.casefiles import some, written

ROOT = Path(__file__).parents[2]

#: An implementation that writes the numbers of its process and of a child, and never answers.
SLEEPS = """
import os, subprocess, sys, time

def sleeps(*arguments):
    child = subprocess.Popen(["sleep", "600"])
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    time.sleep(600)

if __name__ == "__main__":
    sleeps()
"""

#: Lets signals reach a command of tests that run under nohup, or in the background of a shell.
HEARD = """
import os, signal, sys

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder to run in; what a failing test leaves running is ended."""
    written(tmp_path / "case.safetensors", *some("delta"))
    (tmp_path / "mine.py").write_text(SLEEPS)
    (tmp_path / "temporary").mkdir()
    yield tmp_path
    for pid in (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else ():
        if not gone(pid):
            os.kill(int(pid), signal.SIGKILL)


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    places = {"TMPDIR": str(folder / "temporary"), "PIDS": str(folder / "pids")}
    return subprocess.Popen(
        [sys.executable, "-c", HEARD, sys.executable, "-m", "atlas_ref.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **places},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def gone(pid: str) -> bool:
    try:
        return "(zombie)" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


EXEC = ("check", "case.safetensors", "--exec", f"{sys.executable} mine.py {{case}} {{out}}")
IMPL = ("check", "case.safetensors", "--impl", "mine:sleeps")
JOBS = ("sweep", "delta", "--impl", "mine:sleeps", "--jobs", "2")


@pytest.mark.sample(1)
@pytest.mark.clause("SRC-5", "SRC-9")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [EXEC, IMPL, JOBS], ids=["exec", "impl", "jobs"])
def test_a_signal_ends_children_and_removes_temporary_folders(
    words: tuple[str, ...], number: signal.Signals, folder: Path
) -> None:
    process = started(folder, *words)
    pids, processes = folder / "pids", 2 if words == JOBS else 1
    wait_until(lambda: pids.exists() and pids.read_text().count("\n") == processes)
    assert list((folder / "temporary").iterdir())
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + number, "", "")
    wait_until(lambda: all(map(gone, pids.read_text().split())))
    assert list((folder / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.clause("SRC-5")
def test_a_hang_up_of_the_terminal_reaches_every_process_and_ends_all(folder: Path) -> None:
    process = started(folder, *JOBS)
    pids = folder / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().count("\n") == 2)
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGHUP
    wait_until(lambda: all(map(gone, pids.read_text().split())))
    assert list((folder / "temporary").iterdir()) == []


@pytest.mark.slow
@pytest.mark.clause("SRC-4", "SRC-5")
def test_an_escaped_process_that_writes_beside_out_is_no_end_of_the_run(folder: Path) -> None:
    """A process in a session of its own, which nothing here can find, writes as fast as it can."""
    (folder / "escapes.py").write_text(
        "import os, subprocess, sys\n"
        "code = '''\n"
        "import itertools, os, sys, time\n"
        "until = time.monotonic() + 4\n"
        "for i in itertools.count():\n"
        "    if time.monotonic() > until: break\n"
        "    try: open(os.path.join(sys.argv[1], str(i)), 'w').close()\n"
        "    except OSError: pass\n"
        "'''\n"
        "place = os.path.dirname(sys.argv[2])\n"
        "quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        "for _ in range(2):\n"
        "    words = [sys.executable, '-c', code, place]\n"
        "    subprocess.Popen(words, start_new_session=True, **quiet)\n"
        "import time; time.sleep(1)\n"
        "sys.exit(3)\n"
    )
    process = started(
        folder,
        "check",
        "case.safetensors",
        "--exec",
        f"{sys.executable} escapes.py {{case}} {{out}}",
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "NOT SUPPORTED" in out
    assert err == ""
    assert list((folder / "temporary").iterdir()) == []
