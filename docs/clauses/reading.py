"""Files of a clone as text and as Python, or one line that names the file that is neither."""

from __future__ import annotations

import ast
import io
import stat
from pathlib import Path


class ReadingError(ValueError):
    """A file that is not what its name says, or a clone without clauses."""


def contents(path: Path, name: str) -> bytes:
    """A file's bytes.

    Raises:
        ReadingError: the file cannot be read, or is a device or a pipe, which may have no end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ReadingError(f"{name}: cannot be read: not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise ReadingError(f"{name}: cannot be read: {error.strerror}") from None


def text(path: Path, name: str) -> str:
    """A file's text.

    Raises:
        ReadingError: the file is no text in UTF-8, or cannot be read.
    """
    try:
        return io.TextIOWrapper(io.BytesIO(contents(path, name)), encoding="utf-8").read()
    except UnicodeError:
        raise ReadingError(f"{name}: not text in UTF-8") from None


def parsed(source: str, name: str) -> ast.Module:
    """The tree of a Python file.

    Raises:
        ReadingError: file and line of what is not Python.
    """
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ReadingError(f"{name}:{error.lineno}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte, or endless nesting
        raise ReadingError(f"{name}: not Python: {error or type(error).__name__}") from None
