"""A temporary copy of the packages, to which a recipe of CONTRIBUTING.md is applied."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("atlas_ref", "tape")


class Copy:
    """A copy of the code of the packages, in which programs run as a user runs them."""

    def __init__(self, room: Path) -> None:
        self.room = room / "copy"
        for package in PACKAGES:
            shutil.copytree(ROOT / package, self.room / package)

    def add(self, path: str, text: str) -> None:
        """Write a file that is not there."""
        place = self.room / path
        assert not place.exists()
        place.write_text(text)

    def insert(self, path: str, before: str, row: str) -> None:
        """Put a row before the only line that is `before`."""
        place = self.room / path
        lines = place.read_text().splitlines(keepends=True)
        assert lines.count(f"{before}\n") == 1, (path, before)
        lines.insert(lines.index(f"{before}\n"), f"{row}\n")
        place.write_text("".join(lines))

    def put(self, path: str, before: str, after: str) -> None:
        """Text in the place of the only text that is `before`."""
        place = self.room / path
        text = place.read_text()
        assert text.count(before) == 1, (path, before)
        place.write_text(text.replace(before, after))

    def changed(self) -> list[str]:
        """Files of the code that are not those of the repository."""
        found = {
            path.relative_to(home)
            for home in (self.room, ROOT)
            for package in PACKAGES
            for path in (home / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        return sorted(
            str(path)
            for path in found
            if not (self.room / path).exists()
            or not (ROOT / path).exists()
            or not filecmp.cmp(self.room / path, ROOT / path, shallow=False)
        )

    def run(self, *words: Any, expected: int = 0) -> str:
        """What `atlas-ref` with these words prints, which must end with this exit code."""
        ran = self._ran(words)
        assert ran.returncode == expected, ran.stdout + ran.stderr
        return ran.stdout

    def refused(self, *words: Any) -> str:
        """The one line of `atlas-ref` with these words, which must be bad input."""
        ran = self._ran(words)
        assert (ran.returncode, ran.stdout) == (2, ""), ran.stdout + ran.stderr
        return ran.stderr.strip()

    def _ran(self, words: tuple[Any, ...]) -> subprocess.CompletedProcess[str]:
        code = "from atlas_ref.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, words)],
            cwd=self.room.parent,
            env={**os.environ, "PYTHONPATH": str(self.room), "COLUMNS": "160"},
            capture_output=True,
            text=True,
            check=False,
        )
