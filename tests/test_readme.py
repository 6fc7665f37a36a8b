"""Every code block of the README runs as it stands, in order, in one empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_every_block_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(README.read_text())
    assert [kind for kind, _ in blocks] == ["python", "console", "python", "console", "python", "python", "python", "console"]
    printed = []
    for kind, text in blocks:
        commands = (
            [[sys.executable, "-c", text]]
            if kind == "python"
            else [[sys.executable, "-m", "atlas_ref.cli", *shlex.split(line)[2:]] for line in text.splitlines() if line.startswith("$ ")]
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            printed.append(done.stdout)
    assert printed[0] == "(2, 8, 16) (2, 1)\n"
    forms = next(i for i, text in enumerate(printed) if text.startswith("True (16, 16)\nform chunkwise: the reference is running; "))
    assert "PASS" in printed[forms - 1]
    assert printed[forms + 1].endswith(" (8, 256, 16)\n")  # on a GPU, or on the host and why
    assert printed[forms + 2] == "[600  75  10   2] 1.14\nTrue 600\n(4,) (2, 8, 16)\n"
    assert printed[-1].endswith(" PASS\n")


def test_the_readme_names_only_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_the_readme_leads_to_every_spec() -> None:
    text = README.read_text()
    assert [path.name for path in sorted((README.parent / "specs").glob("*.md")) if f"(specs/{path.name})" not in text] == []
