"""Parts of the commands model: errors of files, settings, sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def bad_input() -> Iterator[None]:
    """Turn an error of a file into one line with exit code 2 (CASE-17)."""
    from atlas_ref.oracle.cases.case import CaseError

    try:
        yield
    except ValueError as error:
        raise CaseError(" ".join(str(error).split())) from None


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Put the name of a file before an error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def settings(path: Path) -> Mapping[str, Any]:
    """The object of a JSON file.

    Raises:
        ValueError: names the file, and what is wrong with it.
    """
    from atlas_ref.storage.files import read_bytes
    from atlas_ref.storage.json_text import decoded

    with named(path):
        value = decoded(read_bytes(path))
        if not isinstance(value, dict):
            raise ValueError("an object of settings is needed")
    return value


def refuse_place(path: Path) -> None:
    """Refuse a place that no file can have, before any work is done for it.

    Raises:
        ValueError: names the place, and what is wrong with it.
    """
    from atlas_ref.storage.files import writable

    with named(path):
        writable(path)


def parameters(params: Any) -> int:
    """Number of entries of all parameters."""
    from tape.nested import flatten

    return sum(int(leaf.size) for leaf in flatten(params, "params")[0])
