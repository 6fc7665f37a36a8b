"""A temporary folder for the files of one case, which is removed whatever still writes into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from atlas_ref.oracle.cases.case import CaseError

#: Attempts at removing a folder into which a process that has left its session still writes.
ATTEMPTS = 50


@contextlib.contextmanager
def room() -> Iterator[Path]:
    """A folder that is gone afterwards, also after a signal (SRC-4).

    Raises:
        CaseError: none can be made.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="atlas-ref-"))
    except OSError as error:
        raise CaseError(f"a temporary folder cannot be made: {error.strerror or error}") from None
    try:
        yield folder
    finally:
        try:
            _remove(folder)
        except BaseException:  # a signal, which comes once
            _remove(folder)
            raise


def _remove(folder: Path) -> None:
    """Remove a folder, under another name, so that who writes into it by its path no longer can."""
    gone = folder.with_name(f"{folder.name}-removed")
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
    for place in (folder, gone):
        for _ in range(ATTEMPTS):
            if not os.path.lexists(place):
                break
            shutil.rmtree(place, ignore_errors=True)
