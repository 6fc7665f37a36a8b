"""Code blocks of Markdown pages, run as they stand in one folder, in order.

A Python block with a title is a file to write; without one it runs. Of a console block, lines that
begin with "$ " run, `exit code N` says how the last one ends (0 where nothing is said), and every
other line is words of what it prints.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"

BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
EXIT = re.compile(r"exit code (\d)")


class Block(NamedTuple):
    kind: str
    title: str
    text: str

    def needs(self, module: str) -> bool:
        return re.search(rf"^import {module}\b", self.text, re.MULTILINE) is not None


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page."""
    return [
        Block(each["kind"], each["title"] or "", textwrap.dedent(each["text"]))
        for each in BLOCK.finditer(path.read_text())
    ]


def copied(page: Path, folder: Path) -> None:
    """The files of the adapters that a page asks its reader to copy."""
    for names in re.findall(r"Copy (`.*?`) of the \[adapters\]", page.read_text()):
        for name in re.findall(r"`(\w+\.py)`", names):
            shutil.copy(ADAPTERS / name, folder)


def run(block: Block, folder: Path) -> str:
    """Run a block in the folder and return its output; an assertion reports deviations from the
    page.
    """
    if block.title:
        (folder / block.title).write_text(block.text)
        return ""
    return _python(block.text, folder) if block.kind == "python" else _console(block.text, folder)


def _python(text: str, folder: Path) -> str:
    code, out = done([sys.executable, "-c", text], folder)
    assert code == 0, f"{text}\n{out}"
    return out


def _console(text: str, folder: Path) -> str:
    printed = ""
    for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *said = command.strip().split("\n")
        words = shlex.split(line)
        assert words[0] == "atlas-ref", line
        code, out = done([sys.executable, "-m", "atlas_ref.cli", *words[1:]], folder)
        want = next((int(ending[1]) for each in said if (ending := EXIT.fullmatch(each))), 0)
        assert code == want, f"$ {line}\nexit code {code}, the page says {want}\n{out}"
        plain = " ".join(out.split())
        missing = [
            each
            for each in said
            if not EXIT.fullmatch(each) and " ".join(each.split()) not in plain
        ]
        assert not missing, f"$ {line}\nthe page says {missing}, but it prints\n{out}"
        printed += out
    return printed


def done(command: list[str], folder: Path) -> tuple[int, str]:
    env = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
