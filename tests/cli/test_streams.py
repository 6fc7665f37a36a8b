"""Standard streams that are closed or full: one line, exit code 2, and every file is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.casefiles import some, written

ROOT = Path(__file__).parents[2]
COMMAND = f"exec {sys.executable} -m atlas_ref.cli"

#: What a shell writes after the command, and the reason that is told.
FULL, CLOSED = (">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")


def ran(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", f"{COMMAND} {words}"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a case that records a wrong result."""
    header, tensors = some("delta")
    y: Any = tensors["in/v"] * 0.0
    written(tmp_path / "case.safetensors", header, {**tensors, "out/y": y})
    return tmp_path


@pytest.mark.sample(1)
@pytest.mark.clause("CASE-28")
@pytest.mark.parametrize(("how", "why"), [FULL, CLOSED], ids=["full", "closed"])
@pytest.mark.parametrize(
    "words",
    ["show case.safetensors", "show case.safetensors --json", "--help", "eval --help", "schema"],
)
def test_a_standard_output_that_takes_nothing_is_one_line(
    words: str, how: str, why: str, folder: Path
) -> None:
    done = ran(folder, f"{words} {how}")
    assert (done.returncode, done.stderr) == (
        2,
        f"atlas-ref: standard output: cannot be written: {why}\n",
    )


@pytest.mark.slow
@pytest.mark.clause("CASE-28")
@pytest.mark.parametrize(("how", "why"), [FULL, CLOSED], ids=["full", "closed"])
def test_no_file_is_lost_with_the_output(how: str, why: str, folder: Path) -> None:
    done = ran(folder, f"eval case.safetensors -o out.safetensors --json {how}")
    assert done.returncode == 2
    assert ran(folder, "show out.safetensors").returncode == 0
    done = ran(folder, f"check case.safetensors --report report.json {how}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert json.loads((folder / "report.json").read_text())["results"][0]["verdict"] == "WRONG"


@pytest.mark.sample(1)
@pytest.mark.clause("CASE-28")
@pytest.mark.parametrize("how", [FULL[0], CLOSED[0]], ids=["full", "closed"])
@pytest.mark.parametrize("json_", ["", "--json"])
def test_bad_input_stays_one_line_where_the_output_takes_nothing(
    json_: str, how: str, folder: Path
) -> None:
    done = ran(folder, f"show absent {json_} {how}")
    assert (done.returncode, done.stderr) == (2, "atlas-ref: absent: no such file\n")


@pytest.mark.slow
@pytest.mark.clause("CASE-28")
@pytest.mark.parametrize("how", ["2>/dev/full", "2>&-"])
def test_words_that_nobody_hears_change_no_result(how: str, folder: Path) -> None:
    """They do not go to standard output instead, where results are read."""
    done = ran(folder, f"show absent {how}")
    assert (done.returncode, done.stdout) == (2, "")
    done = ran(folder, f"eval case.safetensors -o out.safetensors --json {how}")
    assert (done.returncode, json.loads(done.stdout)["out"]) == (0, "out.safetensors")
    done = ran(folder, f"eval case.safetensors -o out.safetensors {how}")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.clause("CASE-28")
def test_a_command_without_any_stream_computes(folder: Path) -> None:
    """A file that is opened would have the number of a stream that is closed."""
    done = ran(
        folder,
        "check case.safetensors --exec 'cp {case} {out}' --report report.json <&- >&- 2>&-",
    )
    assert done.returncode == 2
    assert json.loads((folder / "report.json").read_text())["results"]
