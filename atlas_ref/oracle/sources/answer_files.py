"""Files of what an implementation answered, which other commands read (CASE-41).

folder = answer_files.place(Path("answers"), cases, asked=True)
folder.write(checked(case, source=source))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atlas_ref.oracle.cases.case import CaseError, load, save
from atlas_ref.oracle.judge.compare import Checked


class Place(NamedTuple):
    """Where answers go: one file, or a folder with a file of each case's name."""

    path: Path
    folder: bool

    def file(self, case: str) -> Path:
        """The file of a case's answer, by the case's file."""
        return self.path / Path(case).name if self.folder else self.path

    def write(self, checked: Checked) -> None:
        """Write the case as it was asked and its answer; nothing where there is none (CASE-41).

        Raises:
            CaseError: the place cannot be written, or a tensor that no file can hold.
        """
        case, answer = checked.case, checked.answer
        if answer.tensors is None:
            return
        if self.folder:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CaseError(f"--keep {self.path}: {error.strerror or error}") from None
        save(self.file(case.name), case.header, {**case.inputs, **answer.tensors})


def place(path: Path | None, cases: Sequence[Path], *, asked: bool) -> Place | None:
    """The place of answers to these cases; None where they are not written.

    Args:
        asked: whether an implementation is asked, whose answers are nowhere else.

    Raises:
        CaseError: nothing is asked; a file for several cases, or two cases of one name.
    """
    if path is None:
        return None
    if not asked:
        raise CaseError("--keep: saves what --impl or --exec answers; neither is given")
    several = len(cases) > 1
    if several and path.is_file():
        raise CaseError(f"--keep {path}: is one file for {len(cases)} cases; a folder is needed")
    names = [case.name for case in cases]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CaseError(f"--keep {path}: two cases are called {twice}")
    return Place(path, several or path.is_dir())


def check_free(file: Path) -> None:
    """Refuse a file that would be lost: one that holds no results (CASE-41).

    Raises:
        CaseError: names it.
    """
    if not os.path.lexists(file):
        return
    try:
        kept = load(file).recorded if file.is_file() else {}
    except CaseError:
        kept = {}
    if not kept:
        raise CaseError(f"--keep {file}: exists and holds no results, which would be lost")
