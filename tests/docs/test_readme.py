"""Every code block of the README, run in order in one empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.page_blocks import blocks

README = Path(__file__).parents[2] / "README.md"
FIGURE = re.compile(r"-?0x[0-9a-fp.+-]+|-?\d+\.\d+(?:e[+-]\d+)?")


def test_every_block_of_the_readme_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    """A comparison without digits, since the last ones of an error depend on the processor."""
    found = blocks(README)
    assert [block.kind for block in found] == ["python", "console", "python", "console"]
    printed, codes = [], []
    for block in found:
        for command in commands(block.kind, block.text):
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "COLUMNS": "140"},
                check=False,
            )
            assert done.stderr == "" or done.returncode == 0, (
                f"{block.text}\n{done.stdout}{done.stderr}"
            )
            printed.append(done.stdout)
            codes.append(done.returncode)
    assert codes == [0, 0, 0, 0, 1]
    assert printed[0] == "(2, 8, 16) (2, 1)\n"
    assert {"WRONG", "DELTA-4", "decay=before_error:"} <= set(printed[-1].split())
    assert lines(printed[-1]) == lines(found[-1].text.partition("\n")[2])


def commands(kind: str, text: str) -> list[list[str]]:
    """The command lines of a block, for this Python."""
    if kind == "python":
        return [[sys.executable, "-c", text]]
    shown = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("$ ")]
    assert {words[0] for words in shown} == {"atlas-ref"}
    return [[sys.executable, "-m", "atlas_ref.cli", *words[1:]] for words in shown]


def lines(text: str) -> list[str]:
    """Printed lines without digits of decimals and without the rules and blanks that fit a table to
    them.
    """
    return [
        " ".join(FIGURE.sub("#", line).strip("┏┳┓┡╇┩└┴┘━─").split())
        for line in text.strip().splitlines()
    ]


def test_the_readme_names_only_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text())
    assert len(links) > 10
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_the_readme_leads_to_every_spec() -> None:
    text = README.read_text()
    assert [
        path.name
        for path in sorted((README.parent / "specs").glob("*.md"))
        if f"(specs/{path.name})" not in text
    ] == []
