"""The bytes of a set's files, of regular files inside its folder alone (VEC-1, VEC-15)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from atlas_ref.oracle.cases.case import CaseError
from atlas_ref.storage.files import read_bytes

#: Bytes that a set stays below (VEC-1), and so each of its files.
LARGEST = 20_000_000


def contents(folder: Path, name: str) -> bytes:
    """A file of a set.

    Args:
        name: as SHA256SUMS or the manifest writes it; a stranger's, so it may name anything.

    Raises:
        FileNotFoundError: there is none.
        CaseError: it is not a regular file inside the folder, is too large, or cannot be read.
    """
    path = folder / name
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    if inside and not os.path.lexists(path):
        raise FileNotFoundError(name)
    if not (inside and os.path.isfile(path)):
        raise CaseError(f"{folder}: {name}: is not a regular file inside the set")
    return _read(path, f"{folder}: {name}")


def text(folder: Path, name: str) -> str:
    """A text that every set has; a link to it is followed, as some installers make them.

    Raises:
        CaseError: there is none, or it cannot be read.
    """
    path = folder / name
    if not os.path.exists(path):
        raise CaseError(f"{folder}: is no set of vectors: it has no {name}")
    try:
        return _read(path, str(path)).decode()
    except UnicodeError as error:
        raise CaseError(f"{path}: cannot be read: {error}") from None


def _read(path: Path, name: str) -> bytes:
    try:
        return read_bytes(path, read=_bounded)
    except ValueError as error:
        raise CaseError(f"{name}: {error}") from None


def _bounded(stream: IO[bytes]) -> bytes:
    data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"is larger than the {LARGEST} bytes that a set may have")
    return data
