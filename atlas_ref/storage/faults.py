"""Faults of the tool itself: one line, exit code 4, and the traceback in a file.

What only explains a verdict may fail without taking it away (SRC-25).
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import atlas_ref

T = TypeVar("T")

#: Exit code of a run that the tool itself has broken.
FAULT = 4

#: Files of tracebacks by what they hold and their folder: a fault of a whole run has one.
_FILES: dict[tuple[str, str], str] = {}


def reported(error: Exception) -> str:
    """The line about a fault, whose traceback is written to a file of its own (CASE-34)."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = (
        f"{type(error).__name__}: {_first_line(error)} ({Path(last.filename).name}:{last.lineno})"
    )
    try:
        place = f"with {_file(what, error)}, which holds the traceback"
    except OSError as problem:
        place = f"with this line; the traceback cannot be written: {problem.strerror or problem}"
    return f"a fault of atlas-ref itself, not of your input: {what}; please report it {place}"


def failed(what: str, error: Exception) -> str:
    """Words about an explanation that failed, while what it would explain stands (SRC-25).

    Args:
        what: of the explanation, such as "the search".
    """
    if isinstance(error, MemoryError):
        return f"{what} failed: it needs more memory than there is"
    return f"{what} failed, {reported(error)}"


def told(what: str, tell: Callable[[], T], instead: Callable[[str], T]) -> T:
    """What `tell` returns; where that fails, what `instead` makes of the words about it (SRC-25)."""
    try:
        return tell()
    except Exception as error:
        return instead(failed(what, error))


def _file(what: str, error: Exception) -> str:
    """The file of a fault, written at its first time."""
    key = what, tempfile.gettempdir()
    if not os.path.exists(_FILES.get(key, "")):
        _FILES[key] = _written(error)
    return _FILES[key]


def _first_line(error: Exception) -> str:
    try:
        return " ".join(str(error).partition("\n\n")[0].split())[:200]
    except Exception:  # an error's own text may raise
        return "without words"


def _written(error: Exception) -> str:
    head = (
        f"atlas-ref {atlas_ref.__version__}, Python {platform.python_version()}, "
        f"{platform.platform()}\n{sys.argv}\n\n"
    )
    with tempfile.NamedTemporaryFile(
        "w", prefix="atlas-ref-fault-", suffix=".txt", delete=False, errors="backslashreplace"
    ) as file:
        file.write(head + "".join(traceback.format_exception(error)))
    return file.name
