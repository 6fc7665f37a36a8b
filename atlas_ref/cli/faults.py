"""Faults of the tool itself: one line, exit code 4, and the traceback in a file."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from pathlib import Path

import atlas_ref

#: Exit code of a run that the tool itself has broken.
FAULT = 4


def reported(error: Exception) -> str:
    """The line about a fault, whose traceback is written to a file of its own (CASE-34)."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    what = (
        f"{type(error).__name__}: {_first_line(error)} ({Path(last.filename).name}:{last.lineno})"
    )
    try:
        place = f"with {_written(error)}, which holds the traceback"
    except OSError as problem:
        place = f"with this line; the traceback cannot be written: {problem.strerror or problem}"
    return f"a fault of atlas-ref itself, not of your input: {what}; please report it {place}"


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
