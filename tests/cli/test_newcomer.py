"""The story of a newcomer with a wrong kernel, command by command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "newcomer.sh"


@pytest.mark.slow
def test_the_story_of_a_newcomer_plays(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, words in (("python", '"$@"'), ("atlas-ref", '-m atlas_ref.cli "$@"')):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}\n')
        (bin_ / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(SCRIPT.parents[1]),
    }
    played = subprocess.run(
        ["bash", str(SCRIPT)], capture_output=True, text=True, env=env, cwd=tmp_path, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr
    assert "Traceback" not in played.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["bin"]  # its own folder is gone

    chapters = played.stdout.split("\n\033[1m")[1:]
    assert [chapter.split("\033[0m")[0].split("  ")[0] for chapter in chapters] == [
        "A Titans memory, written from the paper in an evening.",
        "Is it right?",
        "Which step is wrong?",
        "The memory update. But it is what the paper prints?",
        "The gate is a forget gate there, and the case asks for a retain gate. One line changes.",
        "Is it right now?",
        "And where nobody looked: odd sizes, gates of 0 and 1, other formats.",
        "Right.",
    ]
    _, wrong, replayed, identified, _, right, swept, _ = chapters
    assert "first wrong   token 0, M" in wrong
    assert "3 WRONG" in wrong
    assert "first wrong   token 0, M" in replayed
    assert "4 PASS, 1 WRONG" in replayed
    assert "match: spec gate=forget" in identified
    assert "3 PASS" in right
    assert "5 PASS" in right
    assert "40 cases: 40 PASS" in swept
